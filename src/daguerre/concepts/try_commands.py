"""Commands about concepts of one's own: `try` shows one added or forbidden, `mark` writes texts to mark."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from daguerre.commands.loading import BackendName, ConceptModelOptions, DtypeName, takes_groups
from daguerre.commands.options import AsJson
from daguerre.errors import InputError, printable

LINES = 2
"""Of a prompt, its last ones, that are shown."""


@takes_groups
def try_concept(
    name: Annotated[str, typer.Argument(help="A concept's name.")],
    *,
    chosen: ConceptModelOptions,
    backend: BackendName = None,
    dtype: DtypeName = "auto",
    forbid: Annotated[bool, typer.Option("--forbid", help="Forbid it; by default it is added.")] = False,
    strength: Annotated[
        float | None, typer.Option(min=0, help="Logits of its top token; by default chosen on other held-out prompts.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="It is added until so many tokens are written.")] = 3,
    taxonomy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A taxonomy of your own, whose rule says what has the concept.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help='Prompts, a line each: {"prompt": "..."}; by default ours.')
    ] = None,
    num: Annotated[int, typer.Option("--num", "-n", min=1, help="Prompts that are shown.")] = 5,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens that are written.")] = 32,
    as_json: AsJson = False,
) -> None:
    """Show prompts with a concept added, or forbidden, and without; the strength is chosen on others."""
    from daguerre.concepts.own import read_taxonomy
    from daguerre.concepts.trying import CHOSEN_ON, ConceptTrial, finder_of, held_out_prompts

    own = None if taxonomy is None else read_taxonomy(taxonomy)
    model = chosen.load(backend=backend, dtype=dtype)
    finder, known = finder_of(model, name, own)
    texts = held_out_prompts(known, forbid, num + CHOSEN_ON) if prompts is None else _prompts(prompts)
    if not texts:
        raise InputError(f"no held-out file has {name} near its beginning: give --prompts")
    kind = "forbid" if forbid else "add"
    trial = ConceptTrial(model=model, name=name, finder=finder, kind=kind, lasting=tokens, max_tokens=max_tokens)
    found = trial.run(texts, num, strength, Console(stderr=True, highlight=False).print)
    typer.echo(json.dumps(found.to_dict(), ensure_ascii=False) if as_json else "\n".join(_lines(found)))


def mark(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of text, or files.")],
    taxonomy: Annotated[Path, typer.Option(metavar="FILE", help="A taxonomy of your own.")],
    out: Annotated[Path, typer.Option(help="The new file of JSON Lines; set `is` to true or false in each line.")],
    num: Annotated[int, typer.Option("--num", "-n", min=1, help="Texts for each concept without a rule.")] = 40,
    ask: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A chat model: half of the texts are those it thinks likeliest.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
) -> None:
    """Write texts for you to mark, so that a model can be asked for concepts without a rule."""
    from rich.progress import track

    from daguerre.concepts.asked import ConceptAsker
    from daguerre.concepts.marking import check_marks, write_marks
    from daguerre.concepts.own import read_taxonomy

    own = read_taxonomy(taxonomy)
    check_marks(own, out)
    asker = None
    if ask is not None:
        from daguerre.model import load

        asker = ConceptAsker(load(ask, drafts="none", concepts="none"), own.asked)
    console = Console(stderr=True)
    asking = partial(track, description="asking", console=console, disable=not console.is_terminal)
    written = write_marks(own, folders, num, out, asker, seed, asking)
    typer.echo(f'{out}  {written:,} texts: set "is" in each, and name the file as `marks` in {taxonomy}')


def _prompts(path: Path) -> list[str]:
    from daguerre.concepts.own import records_of

    found = [(where, record.get("prompt")) for where, record in records_of(path)]
    for where, prompt in found:
        if not isinstance(prompt, str) or not prompt:
            raise InputError(f'{where} needs "prompt", a text')
    return [prompt for _, prompt in found if isinstance(prompt, str)]


def _lines(found: Any) -> list[str]:
    """A `TriedConcept`, for people."""
    out = [line for number, one in enumerate(found.shown, 1) for line in _of_prompt(number, one, found.kind)]
    had, has = (sum(getattr(one, key) for one in found.shown) for key in ("had", "has"))
    of = f"in {had} of {len(found.shown)} texts without and in {has} with {found.strength:g} logits"
    out.append(f"\n{found.name} is {of}, by {found.said_by}")
    return [*out, f"--steer: {json.dumps(found.steer)}"]


def _of_prompt(number: int, one: Any, kind: str) -> list[str]:
    marks = {True: "has it", False: "does not have it"}
    words = "forbidden" if kind == "forbid" else "added"
    return [
        f"\n{number}. ...{printable(''.join(one.prompt.splitlines(keepends=True)[-LINES:]))}",
        f"plain ({marks[one.had]}):\n{printable(one.plain)}",
        f"{words} ({marks[one.has]}):\n{printable(one.steered)}",
    ]
