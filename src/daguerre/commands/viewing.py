"""What can be seen of a request beside its text: its steps, a record, a picture, and the concepts of its tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.table import RECORDER, at
from daguerre.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Watching:
    """Whether a request is drawn in the terminal while it runs."""

    watch: Annotated[
        bool,
        typer.Option("--watch", help="Draw the text in the terminal as it is refined, at a pace one can follow."),
    ] = False
    watch_rate: Annotated[
        float | None, typer.Option("--watch-rate", min=0, help="Steps a second with --watch; 0: at true speed.")
    ] = None

    def check(self, options: dict[str, Any]) -> None:
        """InputError, before any work, for what cannot be watched."""
        if self.watch_rate is not None and not self.watch:
            raise InputError("--watch-rate is for --watch: give both, or leave it out")
        if self.watch and options.get("n", 1) != 1:
            raise InputError("--watch shows one sample: leave out --n or --watch")

    @contextmanager
    def watched(self, model: Any) -> Iterator[dict[str, Any]]:
        """The arguments of a request that is drawn on standard error, so that standard output has the text alone; none
        where it is not to be drawn, or there is no terminal.
        """
        if not self.watch:
            yield {}
            return
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        if not console.is_terminal:
            typer.echo("daguerre: --watch draws in a terminal, and this is none: nothing is drawn", err=True)
            yield {}
            return
        from daguerre.view.watch import RequestWatch

        with RequestWatch(model, console, self.watch_rate) as on_step:
            yield {"on_step": on_step}


@dataclass(frozen=True, kw_only=True)
class Viewing(Watching):
    """What is made of a request beside its text."""

    picture: Annotated[
        Path | None,
        typer.Option("--picture", help="Draw the canvas over time to this PNG file (needs the train extra)."),
    ] = None
    audit: Annotated[
        Path | None,
        typer.Option("--audit", help="A ledger: what is asked and written becomes a record (needs --audit-key)."),
    ] = None
    audit_key: Annotated[
        Path | None,
        typer.Option("--audit-key", help="The key that signs it: make one with `daguerre audit key FILE`."),
    ] = None
    explain_html: Annotated[
        Path | None,
        typer.Option(
            "--explain-html", help="Write a page to this HTML file: which concepts each token's logit consists of."
        ),
    ] = None
    why: Annotated[
        int | None,
        typer.Option("--why", help="Print how much each token that this one saw raised its logit: a number, from 0."),
    ] = None

    def check(self, options: dict[str, Any]) -> None:
        """InputError or MissingExtra, before any work, for what cannot be made; else ask for what it shows."""
        several = options.get("n", 1) != 1
        if self.picture is not None:
            from daguerre.view.picture import check_picture

            if several:
                raise InputError("a picture is of one sample: leave out --n or --picture")
            check_picture(self.picture)
        if self.explain_html is not None or self.why is not None:
            if several:
                raise InputError("a page, and --why, are of one sample: leave out --n or them")
            if self.explain_html is not None:
                from daguerre.view.concepts import check_page

                check_page(self.explain_html)
            options["explain"] = True
        super().check(options)
        if self.watch and self.audit is not None:
            raise InputError("a recorded request is not watched: leave out --watch or --audit")

    @contextmanager
    def asked(self, model: Any, name: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        """What to ask for text, the model itself or, with a ledger, a recorder of it; and the arguments of a request
        that is watched. InputError for a ledger without a key.
        """
        if (self.audit is None) != (self.audit_key is None):
            raise InputError("--audit and --audit-key belong together: give both or neither")
        with self.watched(model) as more:
            if self.audit is None:
                yield model, more
                return
            with at(RECORDER)(self.audit, model, self.audit_key, name=name) as recorder:
                yield recorder, more

    def finish(self, result: Any, model: Any, before: str = "", after: str = "") -> None:
        """Make what was asked for, with the text before and after the only gap. Call it last: an error leaves what was
        printed.
        """
        if self.why is not None:
            print(model.attribute(result, self.why), file=sys.stderr)
        if self.explain_html is not None:
            from daguerre.view import concepts

            note = f"Written in mode {result.usage.mode}. Gray text was given."
            given = concepts.given_around(result, before, after)
            concepts.write_page(self.explain_html, result.concepts, "Concepts of a generated text", note, given=given)
        if self.picture is not None:
            from daguerre.view import picture

            picture.draw(result, model.tokenizer, self.picture)


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
