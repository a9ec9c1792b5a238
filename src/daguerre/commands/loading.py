"""Which model a command loads and how, with a bar where it takes long."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

DTYPES = ("bfloat16", "float32")
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
CHOICE: dict[str, Any] = {
    "revision": Revision,
    "family": FamilyName,
    "adapter": AdapterName,
    "tokenizer": TokenizerName,
    "rope_scaling": RopeScaling,
}


class Chosen(str):
    """The name of a model, and the options of `daguerre.load` that were given with it."""

    __slots__ = ("how",)
    how: dict[str, Any]


def chooses_model(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of CHOICE; its `model` becomes a `Chosen`, which `load` understands."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in CHOICE.items()
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        chosen = Chosen(values["model"])
        chosen.how = {name: value for name in CHOICE if (value := values.pop(name, None)) is not None}
        command(**values | {"model": chosen})

    wrapper.__signature__ = inspect.Signature([*parameters, *added])  # type: ignore[attr-defined]
    return wrapper


def load(name: str, told: Callable[[int, int], object] | None = None, **how: Any) -> Any:
    """`daguerre.load`, with a bar on an interactive terminal while weights are read. told: is called as the bar is."""
    import daguerre

    with loading_bar() as bar:

        def progress(done: int, total: int) -> None:
            bar(done, total)
            if told is not None:
                told(done, total)

        return daguerre.load(str(name), progress=progress, **how, **getattr(name, "how", {}))


def load_folder_of(
    folder: Path, dtype: str, *, family: str | None, adapter: str | None, rope_scaling: Any = None
) -> Any:
    """`daguerre.models.loading.load_folder`, with a bar."""
    from daguerre.models import loading

    adapter_folder = None if adapter is None else loading.model_folder(adapter)
    tokenizer_path = loading.tokenizer_folder(folder, None, family)
    with loading_bar() as progress:
        return loading.load_folder(
            folder,
            dtype,
            family=family,
            adapter=adapter_folder,
            tokenizer=tokenizer_path,
            rope_scaling=rope_scaling,
            progress=progress,
        )


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
