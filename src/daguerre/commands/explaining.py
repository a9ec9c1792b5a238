"""What commands that write text say of concepts: a table of its lines, a page, and what a token owes to others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.errors import InputError

ExplainPage = Annotated[
    Path | None,
    typer.Option(
        "--explain-html", help="Write a page to this HTML file: which concepts each token's logit consists of."
    ),
]
Why = Annotated[
    int | None,
    typer.Option("--why", help="Print how much each token that this one saw raised its logit: a number, from 0."),
]


def check_explained(path: Path | None, why: int | None, options: dict[str, Any]) -> None:
    """InputError, before any work, for a page that cannot be written; else ask for what it and --why show."""
    if path is None and why is None:
        return
    if options.get("n", 1) != 1:
        raise InputError("a page, and --why, are of one sample: leave out --n or them")
    if path is not None:
        from daguerre.view import concepts

        concepts.check_page(path)
    options["explain"] = True


def write_explained(
    result: Any, model: Any, path: Path | None, why: int | None, before: str = "", after: str = ""
) -> None:
    """Write the page, if one is requested, with the text before and after the only gap; and print what --why asks."""
    if why is not None:
        print(model.attribute(result, why), file=sys.stderr)
    if path is not None:
        from daguerre.view import concepts

        note = f"Written in mode {result.usage.mode}. Gray text was given."
        given = concepts.given_around(result, before, after)
        concepts.write_page(path, result.concepts, "Concepts of a generated text", note, given=given)


def print_explained(result: Any) -> None:
    """The concepts of each line and of the whole text, on standard error, so that the text can be piped."""
    if result.concepts is None:
        return
    from rich.console import Console

    from daguerre.view import concepts

    console = Console(stderr=True, highlight=False)
    console.print(concepts.line_table(result.concepts))
    console.print(concepts.top_table(result.concepts))
    console.print(concepts.summary(result.concepts))
