"""The command `run`, as people know it from Ollama, and the model that `chat` offers where none is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from daguerre.commands.asking import Effort, SystemText, converse
from daguerre.commands.loading import Loading
from daguerre.commands.options import makes_request, read_text
from daguerre.errors import InputError


@makes_request
def run(
    name: Annotated[
        str, typer.Argument(metavar="MODEL", help="A name, as `daguerre models` lists them, a file or a folder.")
    ],
    question: Annotated[
        list[str] | None, typer.Argument(help="Answered once; `-` reads standard input. Without one, a conversation.")
    ] = None,
    *,
    loading: Loading,
    effort: Effort = "medium",
    system: SystemText = None,
    **options: Any,
) -> None:
    """Answer a question by a model, which is pulled if need be; without a question, converse."""
    if loading.model not in ("default", name):
        raise InputError(f"two models are named, {name} and {loading.model}: leave out --model")
    words = " ".join(question or ())
    converse(replace(loading, model=name), effort, system, options, read_text(words) if words else None)
