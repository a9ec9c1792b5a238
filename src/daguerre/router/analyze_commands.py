"""The command that says what a log of decisions shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from daguerre.commands.options import AsJson
from daguerre.commands.serving import need_route
from daguerre.errors import InputError
from daguerre.files import atomic_write

MOST_COLUMNS = 6


def analyze(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The file of decisions.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Another configuration: what would it have done with the same requests?"),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with plots here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a log shows: cost, latency, promises kept, quality, what was saved and lost; with --config, the value of
    another configuration, or that the log has no support for it.
    """
    need_route()
    from daguerre.router.analyze import analyze as found_in
    from daguerre.router.config import read_config
    from daguerre.router.report import page
    from daguerre.router.tables import tables

    found = found_in(log, None if config is None else read_config(config, files=False))
    if html is not None:
        try:
            with atomic_write(html) as file:
                file.write(page(found).encode())
        except OSError as error:
            raise InputError(f"cannot write {html}: {error.strerror}") from None
    if as_json:
        typer.echo(json.dumps(found.to_dict(), allow_nan=False))
        return
    for table in tables(found):
        _print(table.title, table.about, table.head, table.rows)
    for note in (*found.notes, *(found.other.notes if found.other else ())):
        typer.echo(f"* {note}")


def _print(title: str, about: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for a terminal: a block for each row where it has many columns."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"\n[bold]{escape(title)}[/bold]")
    console.print(escape(about))
    if not rows:
        return
    many = len(head) > MOST_COLUMNS
    shown = Table(box=None, pad_edge=False, show_header=not many)
    for name in ("", "") if many else head:
        shown.add_column(escape(name), overflow="fold")
    for row in rows:
        if many:
            shown.add_row(f"[bold]{escape(row[0])}[/bold]", "")
            for name, value in zip(head[1:], row[1:], strict=True):
                shown.add_row(f"  {escape(name)}", escape(value))
        else:
            shown.add_row(*map(escape, row))
    console.print(shown)
