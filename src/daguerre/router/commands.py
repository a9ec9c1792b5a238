"""The commands of the router: serve, check a configuration, decide a log again, say what it shows, fit to it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.options import AsJson
from daguerre.commands.serving import KEYS, need_route
from daguerre.errors import DataError, InputError
from daguerre.files import atomic_write

SHOWN = 20
"""Lines that are named where they differ."""
MOST_COLUMNS = 6
QUALITY, CASCADE = Path("quality.npz"), Path("cascade.toml")
FOLDS = 5


def routing() -> typer.Typer:
    """`route`, and the commands below it."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(route)
    for command in (replay, analyze, fit, schema):
        group.command()(command)
    return group


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


def fit(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG", help="Lines of outcomes, or a router's log with texts and grades; may be gzipped."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help=f"The file for `quality_model` ({QUALITY}); with --cascade, of TOML ({CASCADE})."
        ),
    ] = None,
    folds: Annotated[
        int, typer.Option(min=2, max=20, help="Parts that groups are dealt into, to be held out.")
    ] = FOLDS,
    seed: Annotated[int, typer.Option(min=0, help="Of how groups are dealt.")] = 0,
    cascade: Annotated[
        str | None,
        typer.Option(metavar="SMALL", help="Fit when this backend's answers are accepted in a cascade, instead."),
    ] = None,
    large: Annotated[str | None, typer.Option(help="With --cascade: the other one, where there are several.")] = None,
    target: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="With --cascade: the share of the larger one's quality to keep.")
    ] = 0.95,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="With --cascade: how surely it is kept.")
    ] = 0.95,
    as_json: AsJson = False,
) -> None:
    """Fit how likely each backend's answer is right, from outcomes or graded answers, and say how the fit does on
    groups of requests that it has not seen. With --cascade: how likely a small backend's answer must be by its own
    model, so that a target of quality is kept.
    """
    need_route()
    if cascade is not None:
        _fit_cascade(log, out or CASCADE, cascade, large, target, confidence, as_json)
        return
    if large is not None:
        raise InputError("--large is the other backend of a cascade: give the small one as --cascade, or leave it out")
    out = out or QUALITY
    from daguerre.router.quality_fit import fit_quality
    from daguerre.router.quality_rows import read_outcomes

    model = fit_quality(read_outcomes(log), folds, seed)
    try:
        model.save(out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from None
    typer.echo(json.dumps({"out": str(out), **model.report}) if as_json else said(model.report, out))


def _fit_cascade(
    log: Path, out: Path, small: str, large: str | None, target: float, confidence: float, as_json: bool
) -> None:
    from daguerre.router.cascade_fit import fit_cascade

    found = fit_cascade(log, small, large, target, confidence)
    if not as_json:
        typer.echo(found.table())
    text = found.toml()
    try:
        with atomic_write(out) as file:
            file.write(text.encode())
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from None
    told = f"wrote {out}: put its tables into the configuration"
    typer.echo(json.dumps({"out": str(out), **found.to_dict()}) if as_json else told)


def said(report: Mapping[str, Any], out: Path) -> str:
    """The report as text."""
    lines = [f"{report['rows']:,} requests of {report['groups']:,} groups, held out in {report['folds']} parts:"]
    width = max(map(len, report["backends"]))
    lines.append(f"{'backend':{max(width, 7)}}    rows  right  log loss  constant  Brier    ECE    AUC")
    for name, one in report["backends"].items():
        area = "    -" if one["auc"] is None else f"{one['auc']:.3f}"
        lines.append(
            f"{name:{max(width, 7)}}  {one['rows']:6,}  {one['right']:.3f}     {one['loss']:.3f}     "
            f"{one['constant']:.3f}  {one['brier']:.3f}  {one['ece']:.3f}  {area}"
        )
    for pair in report["pairs"]:
        names = f"{pair['weak']} or {pair['strong']}, {pair['rows']:,} requests"
        if pair["apgr"] is None:
            lines.append(f"{names}: no gap to recover, or no request with both graded")
        else:
            lines.append(
                f"{names}: APGR {pair['apgr']:.3f}; by length {pair['length']:.3f}, at random .500, "
                f"with both outcomes known {pair['oracle']:.3f}; half of the gap for {pair['cpt_50']:.1%} of requests "
                f"to {pair['strong']}, .8 of it for {pair['cpt_80']:.1%}"
            )
    lines += [f"left out, too few graded answers: {one}" for one in report["left_out"]]
    lines += [f"not used: {num:,} {why}" for why, num in report["unused"].items()]
    lines.append(f"wrote {out}: name it in the configuration, quality_model = {json.dumps(str(out))}")
    return "\n".join(lines)
