"""Which model a command loads and how, with a bar where it takes long; and options that several commands share."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from daguerre.kinds import options_of
from daguerre.models.load_options import LoadOptions

OPTIONS = options_of(LoadOptions)
SOON = 0.3
"""Seconds without a bar."""


def _option(name: str, *flags: str) -> Any:
    """An option of `daguerre.load` as one of the command line."""
    return typer.Option(*(flags or (f"--{name.replace('_', '-')}",)), help=OPTIONS[name].sentence)


ModelName = Annotated[str, _option("name", "--model", "-m")]
BackendName = Annotated[str | None, _option("backend")]
QuantizeName = Annotated[str | None, _option("quantize")]
DtypeName = Annotated[str, _option("dtype")]
Revision = Annotated[str | None, _option("revision")]
FamilyName = Annotated[str | None, _option("family")]
AdapterName = Annotated[str | None, _option("adapter")]
DraftsName = Annotated[str | None, _option("drafts")]
ConceptsName = Annotated[str | None, _option("concepts")]
DraftsQuantize = Annotated[str | None, _option("drafts_quantize")]
TokenizerName = Annotated[str | None, _option("tokenizer")]
RopeScaling = Annotated[str | None, _option("rope_scaling")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """Which model a command loads."""

    model: ModelName = "default"
    revision: Revision = None
    family: FamilyName = None
    adapter: AdapterName = None
    drafts: DraftsName = None
    concepts: ConceptsName = None
    tokenizer: TokenizerName = None
    rope_scaling: RopeScaling = None

    def load(self, **how: Any) -> Any:
        """The model, by `daguerre.load`."""
        chosen = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "model"}
        return load(self.model, **how, **{name: value for name, value in chosen.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class Loading(ModelChoice):
    """Which model a command loads, and how."""

    backend: BackendName = None
    quantize: QuantizeName = None
    dtype: DtypeName = "auto"
    drafts_quantize: DraftsQuantize = None


@dataclass(frozen=True, kw_only=True)
class ConceptModelOptions(ModelChoice):
    """Which model with concept heads a command loads."""

    model: ModelName = "concepts"


def with_parameters(
    command: Callable[..., None], call: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """`call` in a command's place, with these parameters."""
    made = functools.wraps(command)(call)
    made.__signature__ = inspect.Signature([*parameters])  # type: ignore[attr-defined]
    return made


def parameters_of(command: Callable[..., None]) -> list[inspect.Parameter]:
    """A command's parameters, with their types."""
    return [*inspect.signature(command, eval_str=True).parameters.values()]


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of those of its parameters that are dataclasses, which it receives."""
    parameters = parameters_of(command)
    groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}

    def wrapper(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    spread = [parameters_in(groups[one.name]) if one.name in groups else [one] for one in parameters]
    return with_parameters(command, wrapper, chain(*spread))


def parameters_in(group: Any) -> list[inspect.Parameter]:
    """The options of a group."""
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(one.name, kind, default=one.default, annotation=hints[one.name]) for one in fields(group)]


def load(name: str, told: Callable[[int, int], object] | None = None, **how: Any) -> Any:
    """`daguerre.load`, with a bar on an interactive terminal while weights are read. told: is called as the bar is."""
    import daguerre

    fetch(name, how.get("revision"))
    with loading_bar() as bar:

        def progress(done: int, total: int) -> None:
            bar(done, total)
            if told is not None:
                told(done, total)

        return daguerre.load(name, progress=progress, **how)


def fetch(name: str, revision: str | None = None, **how: Any) -> Path | None:
    """Where the model of a short name or of a repository's file is, brought with a bar if it is not here; None for any
    other name. how: see `daguerre.models.pulling.bring.path_of`.
    """
    from daguerre.models.loading import named_path
    from daguerre.models.pulling.bring import path_of
    from daguerre.models.pulling.wanted import is_wanted

    if not is_wanted(name) or named_path(name, "a model").exists():
        return None
    with loading_bar("downloading") as bar:
        return path_of(name, revision, told=bar, **how)


@contextmanager
def loading_bar(what: str = "loading") -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, which comes after SOON and goes away when the block ends; call it with the bytes that
    are done, and all.
    """
    shown = sys.stderr is not None and sys.stderr.isatty()
    begun, bar = time.monotonic(), None

    def told(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and shown and time.monotonic() - begun > SOON:
            bar = stack.enter_context(_bar(what))
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done, total=total)

    with ExitStack() as stack:
        yield told


def _bar(what: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=None)
    return bar
