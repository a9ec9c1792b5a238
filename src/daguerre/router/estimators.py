"""Intervals of what was measured, and the value of another configuration from the log of one.

    wilson             shares, and means of grades from 0 to 1, which vary no more than a share does
    bootstrap          means and ratios of sums: 1,000 draws of runs of neighboring requests, at most 500 runs, so that
                       requests which depend on the ones before them do not make an interval too narrow
    order statistics   quantiles, from ranks and the binomial distribution

The value of another configuration needs the probability with which it would send each request to each backend
(`spread_of`) and the one with which the log's configuration did. What the log never does has no support.

    ips     mean(w r), with w = target / logged: unbiased (Horvitz and Thompson, 1952)
    snips   sum(w r) / sum(w) (Swaminathan and Joachims, NeurIPS 2015)
    dr      mean(sum_a target(a) q(a) + w (r - q(logged))): unbiased, and of little variance where the model q is good
            (Dudik, Langford and Li, ICML 2011); q is fitted on other requests than those that it is used for
    ess     sum(w)^2 / sum(w^2), how many requests the weighted ones are worth (Kish, 1965)

Weights are clipped at the square root of the number of requests (Ionides, JCGS 2008). The share of the target that is
clipped off, or that the log never does, is known without error. It is reported, estimates are of the rest, and the
interval of a share counts it as anything from 0 to 1; so it does decisions that change and were hardly ever seen.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from daguerre.router.config import Config

Z95 = 1.959963984540054
DRAWS, RUNS, FOLDS = 1000, 500, 5
QUANTILE_DRAWS = 200
PRIOR = 8.0
"""Requests that a mean of the reward model is worth before any was seen."""
LEAST_ESS, MOST_UNSUPPORTED, LEAST_CLIP = 20.0, 0.05, 10.0
ROUNDING = 1e-6
"""Of sums of probabilities of 32 bits."""
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, of `num` requests; low or high is None where there are too few to say."""

    value: float
    low: float | None
    high: float | None
    num: int
    by: str


def wilson(share: float, num: float) -> tuple[float, float]:
    """Wilson's score interval of a share of `num`, at 95%; (0, 1) where `num` is 0."""
    if num <= 0:
        return 0.0, 1.0
    spread = Z95 * Z95 / num
    center = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(max(share * (1 - share), 0.0) / num + spread / (4 * num))
    return max(0.0, center - half), min(1.0, center + half)


def share(values: Array) -> Estimate | None:
    """The mean of numbers from 0 to 1, float (n,); None without any."""
    if not len(values):
        return None
    mean = float(values.mean())
    return Estimate(mean, *wilson(mean, len(values)), len(values), "wilson")


def quantile(values: Array, at: float) -> Estimate | None:
    """A quantile of numbers, float (n,), between the two ranks that hold it with 95%; None without any. A bound for
    which there are too few numbers is None.
    """
    num = len(values)
    if not num:
        return None
    ordered = np.sort(values)
    low, high = ranks(num, at)
    bounds = (float(ordered[low - 1]) if low >= 1 else None, float(ordered[high - 1]) if high <= num else None)
    return Estimate(float(np.quantile(ordered, at)), *bounds, num, "order statistics")


@functools.lru_cache(maxsize=256)
def ranks(num: int, at: float) -> tuple[int, int]:
    """The largest rank and the smallest, from 1, between which the quantile of a distribution is with at least 95%: at
    most 2.5% below the one and above the other. 0 and num + 1: there is no such rank.
    """
    if num > 2000:
        middle, half = num * at, Z95 * math.sqrt(num * at * (1 - at))
        return math.floor(middle - half), math.ceil(middle + half) + 1
    below, low, high = 0.0, 0, num + 1
    for count in range(num + 1):
        log = math.lgamma(num + 1) - math.lgamma(count + 1) - math.lgamma(num - count + 1)
        below += math.exp(log + count * math.log(at) + (num - count) * math.log1p(-at))
        if below <= 0.025:
            low = count + 1
        if below >= 0.975:
            high = count + 1
            break
    return low, high


def runs(num: int) -> Array:
    """The run of neighbors that each of `num` requests belongs to, int (num,)."""
    return np.arange(num) * min(num, RUNS) // max(num, 1)


@functools.lru_cache(maxsize=8)
def _drawn(num: int, draws: int) -> Array:
    """How often each run is in each draw, float (draws, num): the same at each call, so that reports repeat."""
    return np.random.default_rng(0).multinomial(num, np.full(num, 1 / num), draws).astype(np.float64)


def draws_of(num: int, draws: int) -> Iterator[Array]:
    """How often each of `num` requests is in each draw of the bootstrap, float (num,)."""
    run = runs(num)
    for counts in _drawn(int(run[-1]) + 1, draws):
        yield counts[run]


def drawn_ratios(above: Array, below: Array) -> Array:
    """sum(above) / sum(below) in each draw of the bootstrap, float (DRAWS,). Equal lengths have equal draws, so that
    differences of ratios are paired.
    """
    run = runs(len(above))
    drawn = _drawn(int(run[-1]) + 1, DRAWS)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (drawn @ np.bincount(run, above)) / (drawn @ np.bincount(run, below))


def bounds_of(drawn: Array) -> tuple[float, float]:
    """The 95% interval of draws; those without a value are left out."""
    kept = drawn[np.isfinite(drawn)]
    low, high = np.quantile(kept, [0.025, 0.975]) if len(kept) else (math.nan, math.nan)
    return float(low), float(high)


def ratio(above: Array, below: Array | None = None) -> Estimate | None:
    """sum(above) / sum(below), or the mean of `above`, both float (n,). None where sum(below) is 0."""
    below = np.ones(len(above)) if below is None else below
    if not len(above) or not below.sum():
        return None
    low, high = bounds_of(drawn_ratios(above, below)) if len(above) > 1 else (None, None)
    return Estimate(float(above.sum() / below.sum()), low, high, len(above), "bootstrap")


def weighted_quantiles(values: Array, weights: Array, at: tuple[float, ...]) -> list[Estimate]:
    """Quantiles of values with weights, both float (n,) with n above 0 and weights that do not sum to 0."""
    order = np.argsort(values, kind="stable")
    values, weights, run = values[order], weights[order], runs(len(values))[order]

    def of(each: Array) -> Array:
        total = np.cumsum(each)
        return values[np.minimum(np.searchsorted(total, np.array(at) * total[-1]), len(values) - 1)]

    found, drawn = of(weights), _drawn(int(run.max()) + 1, QUANTILE_DRAWS)
    many = np.array([of(weights * draw[run]) for draw in drawn])
    return [
        Estimate(float(value), *bounds_of(many[:, place]), len(values), "bootstrap")
        for place, value in enumerate(found)
    ]


def spread_of(decision: Mapping[str, Any], config: Config) -> dict[str, float]:
    """The probability with which a configuration sends a request to each backend, over the draws of its exploration,
    from a decision of it as a log has it; empty where none can serve it.
    """
    chosen, fallbacks, propensity = decision["backend"], decision["fallbacks"], decision["propensity"]
    if chosen is None:
        return {}
    if propensity == 1.0:
        return {chosen: 1.0}
    explored, floor = config.explore.share, config.rule(decision["step"]).quality
    quality = {each["name"]: each["quality"] for each in decision["candidates"]}
    some = [name for name in (chosen, *fallbacks) if quality[name] >= floor]
    each = explored / len(some)
    best = chosen if propensity > each + (1 - explored) / 2 else fallbacks[0]
    return {name: each + (1 - explored if name == best else 0.0) for name in some}


@dataclass(frozen=True)
class PolicyValue:
    """What another configuration is worth by one measure.

    num, ess      requests with an outcome, and how many they are worth under the other configuration
    changed, ess_changed   the share of decisions that change, and how many requests speak for them
    unsupported   the share of its decisions that the log cannot speak for
    clip          the largest weight
    estimates     by estimator; empty without support, and then `why` says what is missing
    gain          the doubly robust value less the log's own mean; None where too few decisions that change were seen
    """

    num: int
    ess: float
    changed: float
    ess_changed: float
    unsupported: float
    clip: float
    estimates: dict[str, Estimate] = field(default_factory=dict)
    gain: Estimate | None = None
    why: str | None = None

    @property
    def thin(self) -> bool:
        """Too few requests speak for the decisions that change."""
        return self.changed > ROUNDING and self.ess_changed < LEAST_ESS

    @property
    def open(self) -> float:
        """The share of decisions whose outcome may be anything."""
        return min(self.unsupported + (self.changed if self.thin else 0.0), 1.0)


@dataclass(frozen=True)
class LoggedOutcomes:
    """Requests whose outcome is known: R of them, K backends.

    reward   float (R,)
    arm      int (R,), the backend that was decided
    given    float (R, K), the probabilities of the log's configuration, 0 for what the other one means otherwise
    target   float (R, K), those of the other one
    model    float (R, K), the expected reward
    bounded  rewards are from 0 to 1
    """

    reward: Array
    arm: Array
    given: Array
    target: Array
    model: Array
    bounded: bool

    @property
    def clip(self) -> float:
        """The largest weight."""
        return max(LEAST_CLIP, math.sqrt(len(self.reward)))

    def kept(self) -> Array:
        """The part of the target that the log can speak for, float (R, K)."""
        return np.minimum(self.target, self.clip * self.given)

    def changes(self) -> Array:
        """Which requests the other configuration treats otherwise, bool (R,)."""
        return np.asarray(np.abs(self.target - self.given).sum(1) > ROUNDING)

    def weights(self) -> Array:
        """Of each request, float (R,)."""
        rows = np.arange(len(self.reward))
        given = self.given[rows, self.arm]
        return self.kept()[rows, self.arm] / np.where(given > 0, given, 1.0)


def effective(weights: Array) -> float:
    """How many requests the weighted ones are worth."""
    total = float((weights * weights).sum())
    return float(weights.sum()) ** 2 / total if total else 0.0


def value_of(logged: LoggedOutcomes) -> PolicyValue:
    """What the other configuration is worth."""
    num = len(logged.reward)
    if not num:
        return PolicyValue(0, 0.0, 0.0, 0.0, 1.0, logged.clip, why="no support: no request of the log has this outcome")
    kept, weights = logged.kept(), logged.weights()
    missing = max(0.0, 1 - float(kept.sum(1).mean()))
    moved = max(0.0, 1 - float(np.minimum(logged.target, logged.given).sum(1).mean()))
    out = PolicyValue(
        num,
        effective(weights),
        moved if moved > ROUNDING else 0.0,
        effective(weights[logged.changes()]),
        missing if missing > ROUNDING else 0.0,
        logged.clip,
    )
    if missing > MOST_UNSUPPORTED:
        why = f"no support: the log says nothing of {missing:.1%} of the decisions (at most {MOST_UNSUPPORTED:.0%})"
        return replace(out, why=why)
    if out.ess < LEAST_ESS:
        return replace(out, why=f"no support: an effective sample size of {out.ess:.1f} (at least {LEAST_ESS:.0f})")
    if out.thin and out.changed > MOST_UNSUPPORTED:
        seen = f"an effective sample size of {out.ess_changed:.1f} (at least {LEAST_ESS:.0f})"
        return replace(out, why=f"no support: {out.changed:.1%} of the decisions change, and they have {seen}")
    return replace(out, estimates=_estimates(logged, kept, weights, out), gain=_gain(logged, kept, weights, out))


def _corrected(logged: LoggedOutcomes, kept: Array, weights: Array) -> Array:
    """The doubly robust value of each request, float (R,)."""
    modeled = logged.model[np.arange(len(weights)), logged.arm]
    return np.asarray((kept * logged.model).sum(1) + weights * (logged.reward - modeled))


def _estimates(logged: LoggedOutcomes, kept: Array, weights: Array, of: PolicyValue) -> dict[str, Estimate]:
    supported = kept.sum(1)
    sums = {
        "ips": (weights * logged.reward, supported),
        "snips": (weights * logged.reward, weights),
        "dr": (_corrected(logged, kept, weights), supported),
    }
    out = dict[str, Estimate]()
    for name, (above, below) in sums.items():
        value = float(above.sum() / below.sum())
        low, high = bounds_of(drawn_ratios(above, below))
        by = "bootstrap"
        if logged.bounded:
            least, most = wilson(min(max(value, 0.0), 1.0), of.ess)
            low, high, by = min(low, least), max(high, most), "bootstrap, at least as wide as wilson's"
            low, high = low * (1 - of.open), high * (1 - of.open) + of.open
        out[name] = Estimate(value, low, high, of.num, by)
    return out


def _gain(logged: LoggedOutcomes, kept: Array, weights: Array, of: PolicyValue) -> Estimate | None:
    """None also where all outcomes are alike, of which no interval can be drawn."""
    if of.thin:
        return None
    corrected, supported = _corrected(logged, kept, weights), kept.sum(1)
    ones = np.ones(of.num)
    drawn = drawn_ratios(corrected, supported) - drawn_ratios(logged.reward, ones)
    low, high = bounds_of(drawn)
    if of.changed and high - low < 1e-12:
        return None
    value = float(corrected.sum() / supported.sum() - logged.reward.mean())
    if logged.bounded:
        low, high = low - of.unsupported, high + of.unsupported
    return Estimate(value, low, high, of.num, "bootstrap")


@dataclass(frozen=True)
class ObservedOutcomes:
    """Outcomes that a reward model is fitted on, F of them: the request, int (F,), the backend, int (F,), and the
    outcome, float (F,).
    """

    row: Array
    arm: Array
    reward: Array


def reward_model(step: Array, predicted: Array, seen: ObservedOutcomes, bounded: bool) -> Array:
    """The expected outcome of each request with each backend, float (R, K): what was `predicted`, float (R, K), and the
    mean error of it by backend and step type, drawn towards the backend's and that towards the mean of all, as if PRIOR
    outcomes had said so. A request's own outcomes, and those of a fifth of all, are left out.

    step: int (R,).
    """
    num, arms = predicted.shape
    fold, steps = runs(num) % FOLDS, int(step.max(initial=0)) + 1
    error = seen.reward - predicted[seen.row, seen.arm]
    cell = seen.arm * steps + step[seen.row]
    out = predicted.copy()
    for each in range(FOLDS):
        use = fold[seen.row] != each
        total = np.bincount(cell[use], error[use], arms * steps).reshape(arms, steps)
        count = np.bincount(cell[use], minlength=arms * steps).reshape(arms, steps)
        overall = total.sum() / max(count.sum(), 1)
        by_arm = (total.sum(1) + PRIOR * overall) / (count.sum(1) + PRIOR)
        shift = (total + PRIOR * by_arm[:, None]) / (count + PRIOR)
        mine = fold == each
        out[mine] += shift[:, step[mine]].T
    return np.clip(out, 0.0, 1.0) if bounded else out
