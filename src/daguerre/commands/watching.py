"""The option --watch: a request drawn in the terminal while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.errors import InputError

WatchOption = Annotated[
    bool, typer.Option("--watch", help="Draw the text in the terminal as it is refined, at a pace one can follow.")
]
WatchRate = Annotated[
    float | None, typer.Option("--watch-rate", min=0, help="Steps a second with --watch; 0: at true speed.")
]


def check_watched(watch: bool, rate: float | None, audit: Path | None, options: dict[str, Any]) -> None:
    """InputError, before any work, for what cannot be watched."""
    if rate is not None and not watch:
        raise InputError("--watch-rate is for --watch: give both, or leave it out")
    if watch and options.get("n", 1) != 1:
        raise InputError("--watch shows one sample: leave out --n or --watch")
    if watch and audit is not None:
        raise InputError("a recorded request is not watched: leave out --watch or --audit")


@contextmanager
def watched(model: Any, watch: bool, rate: float | None) -> Iterator[dict[str, Callable[[Any], None]]]:
    """The arguments of a request that is drawn on standard error, so that standard output has the text alone; none
    where it is not to be drawn, or there is no terminal.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False) if watch else None
    if console is None or not console.is_terminal:
        if watch:
            typer.echo("daguerre: --watch draws in a terminal, and this is none: nothing is drawn", err=True)
        yield {}
        return
    from daguerre.view.watch import RequestWatch

    with RequestWatch(model, console, rate) as on_step:
        yield {"on_step": on_step}
