"""What an oracle would have done, which knows how well two backends answer a request: where a log has shadows.

The oracle sends each request to one of the two so that the sum of grades is largest for a sum of costs. It is allowed
to draw for one request between the two, so that its best is a straight line between points and never below the
router's own: all requests begin at the cheaper backend, and those with the most gain of grade for a dollar change
first (the greedy solution of the fractional knapsack, which is exact). An oracle knows luck, too: no router reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from daguerre.router.estimators import Array, Estimate, bounds_of, draws_of, ratio, share
from daguerre.router.rows import LoggedRequests

LEAST_PAIRS = 2
ORACLE_DRAWS = 200
POINTS = 60
ROUNDING = 1e-12


@dataclass(frozen=True)
class Pair:
    """Requests that were sent to `main` and, as shadows, to `second`: how many, and the graded answers of both.

    difference  mean grade of the second less that of the first
    """

    main: str
    second: str
    num: int
    main_quality: Estimate
    second_quality: Estimate
    difference: Estimate


@dataclass(frozen=True)
class Agreement:
    """How often the shadow's answer was the same as the one that was given."""

    main: str
    second: str
    same: Estimate


@dataclass(frozen=True)
class Regret:
    """What the router lost to the oracle, on `num` requests with two grades and two costs.

    quality   the oracle's mean grade at the router's cost, less the router's
    cost      the share of the router's cost that the oracle saves at the router's quality
    curve     the oracle's best: dollars and mean grade for each request, from the cheapest on
    router    the same of the router
    """

    num: int
    quality: Estimate
    cost: Estimate | None
    curve: list[tuple[float, float]]
    router: tuple[float, float]


@dataclass(frozen=True)
class ShadowResults:
    """All that shadows say; `why` where they say nothing of regret."""

    num: int
    orphans: int
    pairs: list[Pair] = field(default_factory=list)
    agreement: list[Agreement] = field(default_factory=list)
    regret: Regret | None = None
    why: str | None = None


@dataclass(frozen=True)
class Frontier:
    """Requests with two options, P of them. Costs and grades of the cheaper option, what the other one adds to each, 0
    where it adds no grade, and the order in which they change; all (P,).
    """

    cost: Array
    grade: Array
    more_cost: Array
    more_grade: Array
    order: Array

    @classmethod
    def of(cls, costs: Array, grades: Array) -> Frontier:
        """Of the costs and grades of two options, float (P, 2) each."""
        cheap = np.lexsort((-grades, costs), axis=1)[:, :1]
        cost, grade = (np.take_along_axis(each, cheap, 1)[:, 0] for each in (costs, grades))
        gain = np.maximum(grades.sum(1) - 2 * grade, 0)
        extra = np.where(gain > 0, costs.sum(1) - 2 * cost, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(gain > 0, gain / extra, -1.0)
        return cls(cost, grade, extra, gain, np.argsort(-rate, kind="stable"))

    def curve(self, counts: Array | None = None) -> tuple[Array, Array]:
        """Sums of costs and of grades, from the cheapest on, float (P + 1,) each; requests counted `counts` times."""
        times = np.ones(len(self.cost)) if counts is None else counts
        cost = np.concatenate([[times @ self.cost], (times * self.more_cost)[self.order]]).cumsum()
        grade = np.concatenate([[times @ self.grade], (times * self.more_grade)[self.order]]).cumsum()
        return cost, grade


def lost(frontier: Frontier, cost: Array, grade: Array, counts: Array | None = None) -> tuple[float, float]:
    """Mean grade lost at the same cost, and dollars lost at the same grade, by a router with these, float (P,) each."""
    times = np.ones(len(cost)) if counts is None else counts
    own_cost, own_grade, num = float(times @ cost), float(times @ grade), float(times.sum())
    costs, grades = frontier.curve(times)
    best = float(np.interp(own_cost, costs, grades))
    least = float(np.interp(own_grade, grades, costs)) if own_grade > grades[0] else float(costs[0])
    more, less = best - own_grade, own_cost - least
    return (more / num if more > ROUNDING * num else 0.0), (less / num if less > ROUNDING * own_cost else 0.0)


def shadows_of(rows: LoggedRequests) -> ShadowResults:
    """What the shadows of a log say."""
    pairs = rows.pairs
    main = rows.requests["answered"][pairs["row"]]
    graded = rows.both_graded
    found = ShadowResults(len(pairs), rows.orphans, _pairs(rows, main, graded), _agreement(rows, main))
    if not len(pairs):
        return ShadowResults(0, rows.orphans, why="no shadows: set [shadow] and [grader] in the router's configuration")
    own = rows.requests["cost"][pairs["row"]]
    known = graded & np.isfinite(own) & np.isfinite(pairs["cost"])
    if known.sum() < LEAST_PAIRS:
        return replace(found, why="no two shadows have grades and costs of both answers")
    chosen = pairs[known]
    costs = np.stack([own[known], chosen["cost"]], 1)
    grades = np.stack([chosen["main"], chosen["grade"]], 1)
    return replace(found, regret=_regret(costs, grades))


def _pairs(rows: LoggedRequests, main: Array, graded: Array) -> list[Pair]:
    """By both backends, the most frequent first."""
    out = list[Pair]()
    for one, two in np.unique(np.stack([main[graded], rows.pairs["backend"][graded]], 1), axis=0):
        these = rows.pairs[graded & (main == one) & (rows.pairs["backend"] == two)]
        first, second, more = share(these["main"]), share(these["grade"]), ratio(these["grade"] - these["main"])
        assert first is not None and second is not None and more is not None
        out.append(Pair(rows.backends[one], rows.backends[two], len(these), first, second, more))
    return sorted(out, key=lambda each: -each.num)


def _agreement(rows: LoggedRequests, main: Array) -> list[Agreement]:
    """By both backends, the most frequent first."""
    out, exact = list[Agreement](), rows.pairs["exact"] & np.isfinite(rows.pairs["grade"]) & (main >= 0)
    for one, two in np.unique(np.stack([main[exact], rows.pairs["backend"][exact]], 1), axis=0):
        same = share(rows.pairs["grade"][exact & (main == one) & (rows.pairs["backend"] == two)])
        assert same is not None
        out.append(Agreement(rows.backends[one], rows.backends[two], same))
    return sorted(out, key=lambda each: -each.same.num)


def _regret(costs: Array, grades: Array) -> Regret:
    """Of the costs and grades of the router's answers and of the shadows', float (P, 2) each."""
    num, frontier = len(costs), Frontier.of(costs, grades)
    own_cost, own_grade = costs[:, 0], grades[:, 0]
    quality, dollars = lost(frontier, own_cost, own_grade)
    drawn, paid = list[tuple[float, float]](), list[float]()
    for counts in draws_of(num, ORACLE_DRAWS):
        drawn.append(lost(frontier, own_cost, own_grade, counts))
        paid.append(float(counts @ own_cost) / float(counts.sum()))
    losses, own = np.array(drawn), float(own_cost.mean())
    cost = None
    if own > 0:
        with np.errstate(divide="ignore", invalid="ignore"):
            cost = Estimate(dollars / own, *bounds_of(losses[:, 1] / np.array(paid)), num=num, by="bootstrap")
    curve = np.stack(frontier.curve(), 1) / num
    some = curve[np.unique(np.linspace(0, len(curve) - 1, POINTS).astype(int))]
    return Regret(
        num,
        Estimate(quality, *bounds_of(losses[:, 0]), num=num, by="bootstrap"),
        cost,
        [(float(each[0]), float(each[1])) for each in some],
        (own, float(own_grade.mean())),
    )
