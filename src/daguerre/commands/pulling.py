"""Commands about models by their names: download, list, delete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daguerre.commands.loading import AsJson, FamilyName, Revision, fetch
from daguerre.commands.machine import in_words
from daguerre.errors import InputError

if TYPE_CHECKING:
    from daguerre.commands.machine import MachineSpeed
    from daguerre.models.hub import Cached
    from daguerre.models.pulling.catalogue import CatalogueEntry
    from daguerre.models.pulling.store import PulledModel

Named = Annotated[
    str,
    typer.Argument(
        help="A name, as `daguerre models` lists them; a GGUF file of a hub, hf:OWNER/REPO or hf:OWNER/REPO:Q4_K_M; or "
        "a folder of a hub, OWNER/REPO[@REVISION]."
    ),
]


def pull(name: Named, revision: Revision = None, family: FamilyName = None, as_json: AsJson = False) -> None:
    """Download a model, if it is not there yet; or an adapter. What was interrupted goes on where it stopped."""
    from daguerre.commands.describing import facts_of
    from daguerre.models.hub import is_name, kind_of
    from daguerre.models.hub import pull as download
    from daguerre.models.pulling.wanted import hint

    place = fetch(name, revision, family=family)
    if place is None and not is_name(name):
        raise InputError(f"{name!r} is no name of a model: {hint(name)}")
    place = place or download(name, revision, family=family)
    facts: dict[str, Any] = {} if place.is_file() else {"family": kind_of(place, name.partition("@")[0], family)}
    if facts.get("family") != "adapter":
        facts = {key: value for key, value in facts_of(place, family).items() if key in ("family", "parameters")}
    if as_json:
        typer.echo(json.dumps({"name": name, **facts, "folder": str(place)}, ensure_ascii=False))
        return
    typer.echo(f"{name}  {facts['family']}  {place}")


def remove(
    name: Annotated[str, typer.Argument(help="As `daguerre models` lists what is here.")],
) -> None:
    """Delete a model that was pulled."""
    from daguerre.models.hub import delete, is_name
    from daguerre.models.pulling import store
    from daguerre.models.pulling.bring import held
    from daguerre.models.pulling.wanted import is_wanted, wanted

    one = held(name) if is_wanted(name) else store.find(name)
    asked = wanted(name) if is_wanted(name) else None
    repository = asked.repository if asked is not None else name if is_name(name) else None
    size = store.remove(one) if one is not None else delete(repository) if repository is not None else None
    if size is None:
        raise InputError(f"nothing was pulled as {name!r}: `daguerre models` lists what is here")
    typer.echo(f"deleted {name}, {in_words(size)}")


def models(
    families: Annotated[
        bool, typer.Option("--families", help="List the families of models that are supported.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the models that are here, and those that can be pulled: what fits this machine, and how fast it may be."""
    from daguerre.models.families import FAMILIES
    from daguerre.models.pulling.catalogue import catalogue

    if as_json:
        typer.echo(json.dumps(_as_json(), ensure_ascii=False))
        return
    if families:
        for name, family in FAMILIES.items():
            typer.echo(f"{name:18}{family.title}, such as {family.examples[0]}")
        return
    for line in [*_here(), "", *_catalogue_lines(catalogue())]:
        typer.echo(line)
    typer.echo(
        "\nAny other: hf:OWNER/REPO:TYPE, a GGUF file of a hub; OWNER/REPO, a folder (--families lists what loads)"
    )


def _here() -> Iterator[str]:
    """What is here, a line each."""
    from daguerre.models.hub import cached
    from daguerre.models.loading import PACKAGED
    from daguerre.models.pulling.store import pulled

    yield f"In the package: {', '.join(PACKAGED)}"
    lines = [*map(_pulled_line, pulled()), *map(_cached_line, cached())]
    yield "Here:" if lines else "Pulled: nothing; `daguerre pull NAME` downloads a model"
    yield from lines


def _pulled_line(one: PulledModel) -> str:
    return f"  {', '.join(one.names)}  GGUF  {in_words(one.size)}  {one.path}"


def _cached_line(one: Cached) -> str:
    what = one.family or f"not supported: {one.reason.partition(';')[0]}"
    return f"  {one.name} ({one.revision})  {what}  {in_words(one.num_bytes)}  {one.folder}"


def _catalogue_lines(entries: Iterable[CatalogueEntry]) -> Iterator[str]:
    """The catalogue as a table, with what to expect of each model on this machine."""
    from daguerre.commands.machine import measure_speed
    from daguerre.models.backends.disk import free_memory
    from daguerre.models.pulling.store import pulled

    free, speed = free_memory(), measure_speed()
    here = {name for one in pulled() for name in one.names}
    yield "To be pulled; memory, speed, and sizes with ~, are estimates:"
    yield f"  {'':4} {'name':21} {'file':>8} {'memory':>8} {'speed':>15}  for"
    for one in entries:
        state = "here" if one.name in here else "no" if free is not None and one.memory > free else ""
        size = f"{'' if one.bytes else '~'}{in_words(one.size)}"
        tried, known = "*" if one.tried else "", "" if one.licence is None else f" ({one.licence})"
        yield (
            f"  {state:4} {one.name + tried:21} {size:>8} {in_words(one.memory):>8} {_rate(one, speed):>15}  "
            f"{one.purpose}{known}"
        )
    memory = "memory" if free is None else f"{in_words(free)} of memory are free, and it"
    yield f"no: it does not fit. By what was measured just now: {memory} is read at {in_words(speed.reading)} a second."
    yield "*: was downloaded here. Nobody here has downloaded the others: please report."


def _rate(entry: CatalogueEntry, speed: MachineSpeed) -> str:
    """How fast a model may be: in tokens, or, where a forward commits several, in forwards."""
    value, what = speed.forwards(entry), "token" if entry.rows == 1 else "forward"
    number = value if value >= 1 else 1 / value
    written = f"{number:.1f}" if number < 10 else f"{number:.0f}"
    return f"{written} {what}s/s" if value >= 1 else f"{written} s/{what}"


def _as_json() -> dict[str, Any]:
    """What is here, what can be pulled with what to expect, and the families."""
    from daguerre.commands.machine import measure_speed
    from daguerre.models.backends.disk import free_memory
    from daguerre.models.families import FAMILIES
    from daguerre.models.hub import cached
    from daguerre.models.loading import PACKAGED
    from daguerre.models.pulling.catalogue import catalogue
    from daguerre.models.pulling.store import pulled

    speed = measure_speed()
    return {
        "packaged": [*PACKAGED],
        "pulled": [
            {"names": one.names, "bytes": one.size, "source": one.source, "sha256": one.sha256, "path": str(one.path)}
            for one in pulled()
        ],
        "cached": [
            {
                "name": one.name,
                "revision": one.revision,
                "family": one.family,
                "reason": one.reason,
                "bytes": one.num_bytes,
                "folder": str(one.folder),
            }
            for one in cached()
        ],
        "machine": {"free_memory": free_memory(), "bytes_read_per_second": round(speed.reading)},
        "catalogue": [_entry(one, speed) for one in catalogue()],
        "families": {name: {"title": one.title, "examples": [*one.examples]} for name, one in FAMILIES.items()},
    }


def _entry(one: CatalogueEntry, speed: MachineSpeed) -> dict[str, Any]:
    return {
        "name": one.name,
        "also": one.also,
        "source": one.wheel or one.repository,
        "file": one.file or one.quantization,
        "bytes": one.size,
        "bytes_are_known": one.bytes is not None,
        "memory": one.memory,
        "forwards_per_second": round(speed.forwards(one), 3),
        "writes_token_by_token": one.rows == 1,
        "licence": one.licence,
        "purpose": one.purpose,
        "tried": one.tried,
    }
