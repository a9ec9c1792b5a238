"""Accuracy under parallelism (AUP): a curve of tokens per forward and accuracy as one figure, and its part of a report.

The measure is d3LLM's (Qian et al., arXiv 2601.07568; AUP_leaderboard/aup_utils.py and main.py of the repository
hao-ai-lab/d3LLM). Every model of theirs has a first point at one token per forward. A first point elsewhere matters,
because its own rectangle is not weighted, and because the cut is relative to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import itemgetter

from daguerre.errors import InputError
from daguerre.evals.tables import Column, Row, optional, table_of, text

ALPHA, MOST_LOST = 3.0, 5.0
Point = tuple[float, float]
"""Tokens per forward, and an accuracy in percent."""


def aup(points: Iterable[Point], y_max: float, alpha: float = ALPHA, y_min: float | None = None) -> float:
    """The area under a curve of accuracy y in percent over tokens per forward rho, in percent x tokens per forward.

        rho_1 y_1 + sum_{i>1} (rho_i - rho_{i-1}) (y_i W(y_i) + y_{i-1} W(y_{i-1})) / 2
        W(y) = min(1, exp(-alpha (1 - y / y_max)))

    points  (rho, y) in any order; sorted by rho. Dominated points stay: give `upper_envelope(points)` to be without
    y_max   percent: the best accuracy of any method on the task. A curve that stays there has rho_last * y_max
    y_min   percent: points below are dropped; None: MOST_LOST below the point of fewest tokens per forward. Where even
            the last point would be dropped so, d3LLM's script stops with an error.

    InputError for no points, for none of at least `y_min`, and for a `rho` or `y_max` that is not above 0.
    """
    curve = sorted(points, key=itemgetter(0))
    if not curve or curve[0][0] <= 0:
        raise InputError("AUP is of one point or more, each with more than 0 tokens per forward")
    if y_max <= 0:
        raise InputError(f"y_max must be above 0, not {y_max}: no method is right anywhere")
    lowest = curve[0][1] - MOST_LOST if y_min is None else y_min
    kept = [(rho, y) for rho, y in curve if y >= lowest]
    if not kept:
        raise InputError(f"no point has an accuracy of {lowest:g}% or more: give a lower y_min")

    def weighted(y: float) -> float:
        return y * min(1.0, math.exp(-alpha * (1 - y / y_max)))

    areas = ((rho - before) * (weighted(y) + weighted(last)) / 2 for (before, last), (rho, y) in pairwise(kept))
    return kept[0][0] * kept[0][1] + sum(areas)


def upper_envelope(points: Iterable[Point]) -> list[Point]:
    """The points that no other equals or exceeds in both coordinates, by rising tokens per forward; equal ones once."""
    out: list[Point] = []
    for point in sorted(points, reverse=True):
        if not out or point[1] > out[-1][1]:
            out.append(point)
    return out[::-1]


@dataclass(frozen=True)
class Area:
    """`aup` of the upper envelope `points`; `relative`: over `y_max`. Both are None where `y_max` is 0."""

    y_max: float
    points: tuple[Point, ...]
    aup: float | None
    relative: float | None


@dataclass(frozen=True)
class Curve:
    """Settings of mode "block" by one policy, or None: by all, that ran on the same `num` lines.

    same_as_ar  lines equal to those of mode "ar", in percent of all lines; y_max = 100
    exact       exact lines, in percent; y_max = those of mode "ar" on the same lines
    """

    policy: str | None
    num: int
    settings: int
    same_as_ar: Area
    exact: Area


def curves(rows: Sequence[Row]) -> list[Curve]:
    """Curves of completion rows, each by its policy and on its number of lines, most lines first.

    A setting that ran on all lines is on the curve of those lines, with its figures there. It is on the curve of the
    grid's lines too where `rows` has its figures there, which reports without `grid_rows` do not.
    """
    blocks = [row for row in rows if row["mode"] == "block"]
    out = []
    for num in sorted({row["num"] for row in blocks}, reverse=True):
        some = [row for row in blocks if row["num"] == num]
        policies = (*sorted({row["policy"] for row in some}), None)
        out += [_curve(policy, [row for row in some if policy in (None, row["policy"])]) for policy in policies]
    return out


def _curve(policy: str | None, rows: Sequence[Row]) -> Curve:
    num = rows[0]["num"]
    exact_of_ar = round((rows[0]["accuracy"] - rows[0]["difference"]) * num)
    return Curve(
        policy=policy,
        num=num,
        settings=len(rows),
        same_as_ar=_area("same_as_ar", rows, 100.0),
        exact=_area("accuracy", rows, 100 * exact_of_ar / num),
    )


def _area(name: str, rows: Sequence[Row], y_max: float) -> Area:
    points = upper_envelope((row["tokens_per_forward"], round(100 * row[name], 6)) for row in rows)
    area = aup(points, y_max) if y_max else None
    return Area(y_max, tuple(points), area, None if area is None else area / y_max)


def parallelism_section(task: Row) -> str:
    """The curves of a report's completions as a table."""
    columns: dict[str, Column] = {
        "policy": lambda c: c["policy"] or "all",
        "lines": text("{num}"),
        "settings": text("{settings}"),
        "AUP of same as ar (y_max = 100%)": lambda c: optional(c["same_as_ar"]["aup"], 1),
        "over y_max": lambda c: optional(c["same_as_ar"]["relative"], 3),
        "exact of ar, %": lambda c: f"{c['exact']['y_max']:.1f}",
        "AUP of exact (y_max = exact of ar)": lambda c: optional(c["exact"]["aup"], 2),
        "over exact of ar": lambda c: optional(c["exact"]["relative"], 3),
    }
    return (
        "Accuracy under parallelism (AUP; Qian et al., arXiv 2601.07568) of mode block: the area under accuracy, in "
        "percent, over tokens per forward. Up to the first point all of it counts; behind it, accuracies below y_max "
        "weigh less. Over y_max it is n for a mode that loses nothing at n tokens per forward. A curve is the upper "
        "envelope of settings that ran on the same lines: those that no other equals or exceeds in both. Of its "
        f"points, those more than {MOST_LOST:g} percentage points below the first are left out.\n\n"
        + table_of(columns, [asdict(curve) for curve in curves(report_rows(task))])
    )


def report_rows(task: Row) -> list[Row]:
    """All rows of a report's completions; reports written before `grid_rows` do not have these."""
    return [*task["rows"], *task.get("grid_rows", ())]
