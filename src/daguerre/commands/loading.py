"""Which model a command loads and how, with a bar where it takes long; and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

DTYPES = ("bfloat16", "float32")
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="A folder, a GGUF file, a name on a model hub, `default` or `concepts`.")
]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", help="What runs the model: native or torch; by default native where it can be compiled."),
]
QuantizeName = Annotated[
    str | None,
    typer.Option(
        "--quantize",
        help="Round matrices to q8_0, q6_k, q5_k, q5_1, q5_0, q4_k_m, q4_k, q4_1 or q4_0, GGUF's types: less memory, "
        "faster, approximate.",
    ),
]
DtypeName = Annotated[
    str,
    typer.Option("--dtype", help="float32, bfloat16, or auto: the faster one here, mostly bfloat16."),
]
Revision = Annotated[
    str | None,
    typer.Option("--revision", help="Of a name on a hub: branch, tag or commit; by default the main branch."),
]
FamilyName = Annotated[
    str | None,
    typer.Option("--family", help="What a published model is, where its files do not say it; see `daguerre models`."),
]
AdapterName = Annotated[
    str | None,
    typer.Option("--adapter", help="A LoRA adapter in PEFT's layout, to be merged: a folder, or a name on a hub."),
]
TokenizerName = Annotated[
    str | None,
    typer.Option("--tokenizer", help="A tokenizer in place of a published model's own: a folder, or a name on a hub."),
]
RopeScaling = Annotated[
    str | None,
    typer.Option(
        "--rope-scaling",
        help="More positions than the model was trained on: yarn:4 for four times as many; also linear, ntk, llama3, "
        "none; or the JSON of transformers' rope_scaling.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """Which model a command loads."""

    model: ModelName = "default"
    revision: Revision = None
    family: FamilyName = None
    adapter: AdapterName = None
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

    spread = [options_of(groups[one.name]) if one.name in groups else [one] for one in parameters]
    return with_parameters(command, wrapper, chain(*spread))


def options_of(group: Any) -> list[inspect.Parameter]:
    """The options of a group."""
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(one.name, kind, default=one.default, annotation=hints[one.name]) for one in fields(group)]


def load(name: str, told: Callable[[int, int], object] | None = None, **how: Any) -> Any:
    """`daguerre.load`, with a bar on an interactive terminal while weights are read. told: is called as the bar is."""
    import daguerre

    with loading_bar() as bar:

        def progress(done: int, total: int) -> None:
            bar(done, total)
            if told is not None:
                told(done, total)

        return daguerre.load(name, progress=progress, **how)


def load_folder_of(
    folder: Path, dtype: str, *, family: str | None, adapter: str | None, rope_scaling: Any = None
) -> Any:
    """`daguerre.models.loading.load_folder`, with a bar."""
    from daguerre.models import loading

    beside = None if adapter is None else loading.model_folder(adapter)
    words = loading.tokenizer_folder(folder, None, family)
    how: dict[str, Any] = {"family": family, "adapter": beside, "tokenizer": words, "rope_scaling": rope_scaling}
    with loading_bar() as progress:
        return loading.load_folder(folder, dtype, progress=progress, **how)


@contextmanager
def loading_bar() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, which goes away when the block ends; call it with the bytes that are done, and all."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("loading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
