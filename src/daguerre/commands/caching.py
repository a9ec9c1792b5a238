"""The command `cache`: what is kept to start faster."""

from __future__ import annotations

from typing import Annotated

import typer


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete the packed weights that are kept.")] = False,
) -> None:
    """Show the packed weights that are kept so that models start faster, or delete them."""
    from datetime import datetime

    from daguerre.models.backends import kept_weights
    from daguerre.models.backends.disk import gigabytes

    if clear:
        typer.echo(f"deleted {gigabytes(kept_weights.clear())}")
        return
    place, kept = kept_weights.folder(), kept_weights.entries()
    if place is None:
        typer.echo("nothing is kept: DAGUERRE_CACHE is off, or its folder is not this user's alone")
        return
    num = "1 entry" if len(kept) == 1 else f"{len(kept)} entries"
    typer.echo(f"{place}: {num}, {gigabytes(sum(entry.num_bytes for entry in kept))}")
    for entry in kept:
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        typer.echo(f"  {gigabytes(entry.num_bytes):>9}  last used {used}  {entry.path.name[:12]}")
