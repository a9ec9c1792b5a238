"""What a log of decisions shows: cost, latency, promises kept, quality, and what was saved and lost.

Every estimate has a 95% interval and says how it was drawn (`values`). Sums, such as dollars paid, are of the log
itself and have none. A request counts as answered below status 400, and as failed where no backend could serve it or
all that were tried failed; what a client asked wrongly, or did not wait for, is neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.router.config import Config
from daguerre.router.counterfactual import Counterfactual, counterfactual_of
from daguerre.router.estimators import Array, Estimate, quantile, ratio, share
from daguerre.router.oracle import ShadowResults, shadows_of
from daguerre.router.rows import CACHES, GONE, LoggedRequests, read_rows

BUDGET = 0.05
"""The share of requests that may miss their SLO, which is of the 95th percentile."""
SPANS = 48
"""Parts of the log's time in its plots, at most."""


@dataclass(frozen=True)
class Group:
    """Some requests of a log.

    paid         dollars, of those whose cost is known; cost: of each
    first_*      milliseconds until the first text of streams; whole_*: until the end
    within, burn the share of answers within the SLO that was promised them, and the share that was not as a multiple of
                 the budget of 5%; None: none was promised
    quality      mean grade; None: none was graded
    """

    num: int
    answered: int
    failed: int
    left: int
    refused: int
    retries: int
    fallbacks: int
    hedges: int
    cache: dict[str, int]
    hits: Estimate | None
    paid: float
    input: int
    output: int
    cost: Estimate | None
    first_p50: Estimate | None
    first_p95: Estimate | None
    whole_p50: Estimate | None
    whole_p95: Estimate | None
    within: Estimate | None
    burn: Estimate | None
    quality: Estimate | None


@dataclass(frozen=True)
class BackendTotals:
    """A backend: what it was asked, hedges included, and how long its own answers took. answers: what it answered."""

    attempts: int
    failures: Estimate | None
    first_p50: Estimate | None
    first_p95: Estimate | None
    whole_p50: Estimate | None
    whole_p95: Estimate | None
    answers: Group


@dataclass(frozen=True)
class Baseline:
    """Sending all that a backend can serve to it, by its prices and the tokens of the answers that were given.

    others  the share of requests that it cannot serve, which cost what they did
    saving  what the router paid less, as a share of what the baseline pays; negative: it paid more
    """

    backend: str
    num: int
    others: float
    paid: float
    cost: Estimate
    saving: Estimate


@dataclass(frozen=True)
class Span:
    """A part of the log's time, from `start` (seconds since 1970)."""

    start: float
    num: int
    paid: float
    p95: Estimate | None
    missed: Estimate | None
    backends: dict[str, int]


@dataclass(frozen=True)
class Analysis:
    """All that a log shows."""

    log: str
    begin: float
    end: float
    configs: list[str]
    cut_off: int
    overall: Group
    steps: dict[str, Group]
    backends: dict[str, BackendTotals]
    baselines: list[Baseline]
    shadows: ShadowResults
    spans: list[Span]
    other: Counterfactual | None
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def analyze(path: Path, other: Config | None = None) -> Analysis:
    """Read a log, and say what it shows; and what another configuration would have done. DataError for what no router
    has written.
    """
    rows = read_rows(path, other)
    whole = np.ones(len(rows.requests), bool)
    by_step = {name: rows.requests["step"] == place for place, name in enumerate(rows.steps)}
    asked = set(np.unique(rows.attempts["backend"])) | set(np.unique(rows.requests["answered"]))
    times = rows.requests["time"]
    return Analysis(
        log=path.name,
        begin=float(times.min()) if len(times) else 0.0,
        end=float(times.max()) if len(times) else 0.0,
        configs=[each.sha256 for each in rows.configs],
        cut_off=rows.cut_off,
        overall=_group(rows, whole),
        steps={name: _group(rows, use) for name, use in sorted(by_step.items(), key=lambda each: -each[1].sum())},
        backends={name: _asked(rows, place) for place, name in enumerate(rows.backends) if place in asked},
        baselines=_baselines(rows),
        shadows=shadows_of(rows),
        spans=_spans(rows),
        other=None if other is None else counterfactual_of(rows, other),
        notes=_notes(rows),
    )


def _group(rows: LoggedRequests, use: Array) -> Group:
    some, answered, failed = rows.requests[use], rows.answered[use], rows.failed[use]
    left = some["status"] == GONE
    cache = {name: int((some["cache"] == place).sum()) for place, name in enumerate(CACHES)}
    through = _of(some["ms"][answered])
    first = _of(some["first"][answered])
    within = share(_of(rows.met()[use]))
    return Group(
        num=len(some),
        answered=int(answered.sum()),
        failed=int(failed.sum()),
        left=int(left.sum()),
        refused=int((~answered & ~failed & ~left).sum()),
        retries=int(some["retries"].sum()),
        fallbacks=int(some["fallbacks"].sum()),
        hedges=int(some["hedges"].sum()),
        cache=cache,
        hits=share(np.isin(some["cache"][some["cache"] >= 0], (0, 1)).astype(float)),
        paid=float(np.nansum(some["cost"])),
        input=int(np.nansum(some["input"])),
        output=int(np.nansum(some["output"])),
        cost=ratio(_of(some["cost"])),
        first_p50=quantile(first, 0.5),
        first_p95=quantile(first, 0.95),
        whole_p50=quantile(through, 0.5),
        whole_p95=quantile(through, 0.95),
        within=within,
        burn=_mapped(within, lambda kept: (1 - kept) / BUDGET),
        quality=share(_of(some["grade"])),
    )


def _asked(rows: LoggedRequests, place: int) -> BackendTotals:
    mine = rows.attempts[rows.attempts["backend"] == place]
    good = mine[mine["answered"]]
    first, through = _of(good["first"]), _of(good["ms"])
    return BackendTotals(
        attempts=len(mine),
        failures=share(mine["failed"].astype(float)),
        first_p50=quantile(first, 0.5),
        first_p95=quantile(first, 0.95),
        whole_p50=quantile(through, 0.5),
        whole_p95=quantile(through, 0.95),
        answers=_group(rows, rows.requests["answered"] == place),
    )


def _of(values: Array) -> Array:
    """Those that are known."""
    return values[np.isfinite(values)]


def _mapped(found: Estimate | None, change: Callable[[float], float]) -> Estimate | None:
    """An estimate on another scale, of the opposite direction."""
    if found is None or found.low is None or found.high is None:
        return None
    return Estimate(change(found.value), change(found.high), change(found.low), found.num, found.by)


def _baselines(rows: LoggedRequests) -> list[Baseline]:
    """Of each backend that a configuration of the log has."""
    paid = rows.requests["cost"]
    known = np.isfinite(paid) & np.isfinite(rows.requests["input"])
    costs, actual, out = rows.costs()[known], paid[known], list[Baseline]()
    for place, name in enumerate(rows.backends):
        can = np.isfinite(costs[:, place]) & (rows.excluded[known, place] == 0)
        theirs = np.where(can, costs[:, place], actual)
        cost, saving = ratio(theirs), ratio(theirs - actual, theirs)
        if can.any() and cost is not None and saving is not None:
            others = 1 - float(can.mean())
            out.append(Baseline(name, len(actual), others, float(theirs.sum()), cost, saving))
    return out


def _spans(rows: LoggedRequests) -> list[Span]:
    """The log in parts of equal length, those without a request left out."""
    times = rows.requests["time"]
    if not len(times):
        return []
    begin, num = float(times.min()), min(SPANS, len(times))
    length = (float(times.max()) - begin) / num or 1.0
    part = np.minimum(((times - begin) / length).astype(np.int64), num - 1)
    met, out = rows.met(), list[Span]()
    order = np.argsort(part, kind="stable")
    for use in np.split(order, np.flatnonzero(np.diff(part[order])) + 1):
        some, kept = rows.requests[use], _of(met[use])
        through = some["ms"][rows.answered[use]]
        counts = np.bincount(some["answered"][some["answered"] >= 0], minlength=len(rows.backends)).tolist()
        out.append(
            Span(
                start=begin + length * int(part[use[0]]),
                num=len(use),
                paid=float(np.nansum(some["cost"])),
                p95=quantile(through, 0.95),
                missed=share(1 - kept),
                backends={name: count for name, count in zip(rows.backends, counts, strict=True) if count},
            )
        )
    return out


def _notes(rows: LoggedRequests) -> list[str]:
    """What is assumed, and what is missing."""
    out = [
        "Intervals are of 95%, for requests like these. Sums of the log have none.",
        "Quality is that of the requests that were graded: it speaks for all only where those were drawn from all.",
        "The cost of a baseline takes an answer to have as many tokens from any backend as from the one that gave it.",
    ]
    unknown = int((rows.answered & ~np.isfinite(rows.requests["cost"]) & ~rows.cached).sum())
    if unknown:
        out.append(f"{unknown:,} answers have no cost in the log; they are in no sum and no mean of costs.")
    if rows.requests["hedges"].sum():
        out.append("What the backend that lost a hedge asks for its part of an answer is not in the log.")
    if rows.cut_off:
        out.append(f"{rows.cut_off:,} lines were cut off when the router was killed, and left out.")
    if rows.orphans:
        out.append(f"{rows.orphans:,} shadows are of requests that are not in this log, and left out.")
    return out
