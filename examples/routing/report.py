"""Tables of quality against processor seconds, for each kind of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tasks import Task

from daguerre.evals.statistics import wilson
from daguerre.evals.tables import between, table
from daguerre.router.quality_fit import GAP, apgr

Row = dict[str, Any]
Array = NDArray[np.float64]
ALL = "all"
DRAWS = 1000
CURVE = (0.0, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.01)


def report(
    tasks: Sequence[Task],
    ways: Mapping[str, Sequence[Row]],
    scores: Sequence[Mapping[str, float]],
    small: str,
    large: str,
) -> str:
    """All tables as Markdown. ways: rows in the order of tasks, of each model, "router" and "cascade"; scores: the
    predicted quality of each model.
    """
    sizes = [float(len(str(task.body))) for task in tasks]
    parts = ["# Quality and processor seconds of a task\n"]
    for kind in (*dict.fromkeys(task.kind for task in tasks), ALL):
        chosen = [place for place, task in enumerate(tasks) if kind in (task.kind, ALL)]
        some = {way: [rows[place] for place in chosen] for way, rows in ways.items()}
        parts.append(f"## {kind}\n\n{_ways(some, [sizes[place] for place in chosen], small, large)}")
    parts += [_gap_recovered(ways, scores, sizes, small, large), _curve(ways, small, large), _faults(ways)]
    return "\n\n".join(parts) + "\n"


def _ways(ways: Mapping[str, Sequence[Row]], sizes: Sequence[float], small: str, large: str) -> str:
    """A row for each way and reference."""
    most = float(_of(ways[large], "seconds").mean())
    out = [_cells(way, _of(rows, "right"), _of(rows, "seconds"), most) for way, rows in ways.items()]
    for way in ("router", "cascade"):
        budget = float(_of(ways[way], "seconds").mean())
        share = _share_for(_of(ways[small], "seconds"), _of(ways[large], "seconds"), budget)
        mixed = {name: _mixed(ways, name, share, small, large) for name in ("right", "seconds")}
        out.append(_cells(f"random mixture, seconds of the {way}", mixed["right"], mixed["seconds"], most))
        longest = _longest(ways, sizes, budget, small, large)
        out.append(_cells(f"longest to {large}, seconds of the {way}", *longest, most))
    head = ["way", "tasks", "right", "seconds", f"of {large}'s"]
    return table(head, out)


def _cells(way: str, right: Array, seconds: Array, most: float) -> list[str]:
    low, high = wilson(float(right.sum()), len(right))
    took, shown = float(seconds.mean()), between(float(right.mean()), low, high)
    return [way, str(len(right)), shown, f"{took:.2f}", f"{took / max(most, 1e-9):.2f}"]


def _of(rows: Sequence[Row], name: str) -> Array:
    return np.array([row[name] for row in rows], np.float64)


def _share_for(small: Array, large: Array, budget: float) -> float:
    """Which share of requests to the large model takes so many seconds at the mean."""
    gap = float(large.mean() - small.mean())
    return float(np.clip((budget - small.mean()) / gap, 0, 1)) if gap > 0 else 1.0


def _mixed(ways: Mapping[str, Sequence[Row]], name: str, share: float, small: str, large: str) -> Array:
    """What is expected of each task, if a share of all goes to the large model by chance."""
    return (1 - share) * _of(ways[small], name) + share * _of(ways[large], name)


def _longest(
    ways: Mapping[str, Sequence[Row]], sizes: Sequence[float], budget: float, small: str, large: str
) -> tuple[Array, Array]:
    """Right and seconds where as many of the longest requests go to the large model as the seconds allow."""
    seconds, right = _of(ways[small], "seconds"), _of(ways[small], "right")
    for place in np.argsort(-np.array(sizes), kind="stable").tolist():
        if seconds.mean() >= budget:
            break
        seconds[place], right[place] = ways[large][place]["seconds"], ways[large][place]["right"]
    return right, seconds


def _gap_recovered(
    ways: Mapping[str, Sequence[Row]],
    scores: Sequence[Mapping[str, float]],
    sizes: Sequence[float],
    small: str,
    large: str,
) -> str:
    """APGR between the pair, with 95% intervals by a bootstrap over tasks."""
    gains = _of(ways[large], "right") - _of(ways[small], "right")
    found = {
        "predicted quality": np.array([one.get(large, 0.0) - one.get(small, 0.0) for one in scores]),
        "length": np.array(sizes),
        "own likelihood of the small answer (a cascade)": -np.array([row["likelihood"] or 0.0 for row in ways[small]]),
        "both known": gains,
    }
    rng, drawn = np.random.default_rng(0), list[dict[str, float]]()
    for _ in range(DRAWS):
        rows = rng.integers(0, len(gains), len(gains))
        if gains[rows].mean() >= GAP:
            drawn.append({name: apgr(score[rows], gains[rows]) for name, score in found.items()})
    if gains.mean() < GAP or not drawn:
        return f"## APGR between {small} and {large}\n\nThere is no gap to recover."
    out = [["random", "0.500"]]
    for name, score in found.items():
        low, high = np.quantile([one[name] for one in drawn], [0.025, 0.975])
        out.append([name, f"{apgr(score, gains):.3f} ({low:.3f} to {high:.3f})"])
    return f"## APGR between {small} and {large}\n\n{table(['ranked by', 'APGR'], out)}"


def _curve(ways: Mapping[str, Sequence[Row]], small: str, large: str) -> str:
    """What cascades of other thresholds would do, if drafts saved nothing."""
    likelihood = np.array([row["likelihood"] or 0.0 for row in ways[small]])
    ones, others = (([_of(ways[name], part) for part in ("right", "seconds")]) for name in (small, large))
    out = list[list[str]]()
    for least in CURVE:
        kept = likelihood >= least
        right = np.where(kept, ones[0], others[0]).mean()
        took = (ones[1] + np.where(kept, 0.0, others[1])).mean()
        share = took / max(others[1].mean(), 1e-9)
        out.append([f"{least:g}", f"{kept.mean():.3f}", f"{right:.3f}", f"{took:.2f}", f"{share:.2f}"])
    head = ["least likelihood", "accepted", "right", "seconds", f"of {large}'s"]
    return f"## Cascades of one threshold, drafts apart\n\n{table(head, out)}"


def deadlines(ways: Mapping[str, Sequence[Row]], deadline: float, rate: float) -> str:
    """The share of answers that were there in time, for each way."""
    out = list[list[str]]()
    for way, rows in ways.items():
        met = sum(row["ok"] and row["ms"] <= deadline for row in rows)
        shown = between(met / len(rows), *wilson(met, len(rows)))
        p95 = float(np.quantile([row["ms"] for row in rows], 0.95))
        out.append([way, str(len(rows)), shown, f"{p95:.0f}", f"{np.mean([row['right'] for row in rows]):.3f}"])
    about = f"{rate:.2f} gaps a second at random times, to be filled within {deadline:.0f} ms."
    head = ["way", "gaps", "in time", "95th percentile, ms", "right"]
    return f"\n## Deadlines\n\n{about}\n\n{table(head, out)}\n"


def _faults(ways: Mapping[str, Sequence[Row]]) -> str:
    """What must be 0: answers without the shape that was asked for, and answers that are not those of their backend."""
    invalid = sum(row["able"] and not row["valid"] for rows in ways.values() for row in rows)
    other = accepted = 0
    for way in ("router", "cascade"):
        for place, row in enumerate(ways[way]):
            named = ways.get(row["backend"] or "")
            other += named is not None and named[place]["said"] != row["said"]
            accepted += row["cascade"] == "accepted"
    routing = float(np.mean([row["routing"] for way in ("router", "cascade") for row in ways[way]]))
    return (
        f"## Faults\n\n{invalid} answers without the shape that was asked for; {other} answers that are not what the "
        f"backend that the router names says when it is asked alone. The cascade accepted {accepted} of "
        f"{len(ways['cascade'])} answers. The router itself took {1000 * routing:.1f} ms of processor time a task."
    )
