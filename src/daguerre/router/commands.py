"""The commands of the router: serve, check a configuration, decide a log again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from daguerre.commands.options import AsJson
from daguerre.commands.serving import KEYS, need_route
from daguerre.errors import DataError, InputError
from daguerre.router.analyze_commands import analyze
from daguerre.router.fit_commands import fit

SHOWN = 20
"""Lines that are named where they differ."""


def add_commands(app: typer.Typer) -> None:
    """Add `route` to the command line."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(route)
    for command in (replay, analyze, fit, schema):
        group.command()(command)
    app.add_typer(group, name="route")


def route(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file: see docs/routing.md.")] = None,
    port: Annotated[int | None, typer.Option(help="In place of the file's; 0: any free one.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Read the file, say what is in it, and stop.")] = False,
) -> None:
    """Serve OpenAI's interface in front of other servers: each request goes where it is answered well enough, in time,
    at least cost.
    """
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise InputError("name a configuration: daguerre route --config route.toml")
    need_route()
    from daguerre.http.settings import Keys
    from daguerre.router.config import read_config
    from daguerre.router.run import run_router

    found = read_config(config)
    if check:
        for one in found.backends:
            typer.echo(f"{one.name}  {one.url}  {', '.join(one.operations)}")
        typer.echo(f"{len(found.backends)} backends, {len(found.steps)} rules of steps; configuration {found.sha256}")
        return
    run_router(found, Keys.read(found.server.keys_file, os.environ.get(KEYS)), port)


def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The file of decisions.")], as_json: AsJson = False
) -> None:
    """Decide all requests of a log again and compare: every number of every decision must be the same."""
    need_route()
    from daguerre.router.log import replay as again

    found = again(log)
    if as_json:
        value = {"decisions": found.decisions, "differing": list(found.differing), "cut_off": found.cut_off}
        typer.echo(json.dumps(value))
    else:
        typer.echo(f"{found.decisions:,} decisions, {len(found.differing):,} differ")
        if found.cut_off:
            typer.echo(f"{found.cut_off:,} lines were cut off when the router was killed, and left out")
    if found.differing:
        some = ", ".join(map(str, found.differing[:SHOWN]))
        raise DataError(f"decisions differ in line {some}: the log was changed, or another version has written it")


def schema() -> None:
    """Print the JSON Schema of a configuration."""
    need_route()
    from daguerre.router.config import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=2))
