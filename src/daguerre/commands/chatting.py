"""The command that converses."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from daguerre.commands.loading import Loading
from daguerre.commands.options import makes_request
from daguerre.commands.streams import check_input
from daguerre.errors import InputError


@makes_request
def chat(
    *,
    loading: Loading,
    effort: Annotated[
        str, typer.Option("--effort", help="How many forwards an answer may take: instant, low, medium or high.")
    ] = "medium",
    system: Annotated[str | None, typer.Option("--system", help="What the model is told first.")] = None,
    **options: Any,
) -> None:
    """Converse with a model in the terminal, by its own chat template; /help says what can be typed."""
    from rich.console import Console

    from daguerre.view.conversation import ChatSession, Terminal

    if options.get("n", 1) != 1:
        raise InputError("a conversation has one answer to each question: leave out --n")
    if options.get("explain"):
        raise InputError("a conversation explains no answer: leave out --explain")
    check_input()
    with contextlib.suppress(ImportError):  # arrow keys and a history where Python has them
        import readline  # noqa: F401
    Terminal(ChatSession(loading.load(), effort, system, **options), Console(), input).run()
