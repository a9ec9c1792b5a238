"""Fit how likely each backend's answer is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.options import AsJson
from daguerre.commands.serving import need_route
from daguerre.errors import InputError

FOLDS = 5


def fit(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG", help="Lines of outcomes, or a router's log with texts and grades; may be gzipped."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file for `quality_model`.")] = Path("quality.npz"),
    folds: Annotated[
        int, typer.Option(min=2, max=20, help="Parts that groups are dealt into, to be held out.")
    ] = FOLDS,
    seed: Annotated[int, typer.Option(min=0, help="Of how groups are dealt.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit how likely each backend's answer is right, from outcomes or graded answers, and say how the fit does on
    groups of requests that it has not seen.
    """
    need_route()
    from daguerre.router.quality_fit import fit_quality
    from daguerre.router.quality_rows import read_outcomes

    model = fit_quality(read_outcomes(log), folds, seed)
    try:
        model.save(out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from None
    typer.echo(json.dumps({"out": str(out), **model.report}) if as_json else said(model.report, out))


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
