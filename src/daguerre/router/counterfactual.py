"""What another configuration would have done with the requests of a log, as far as the log can say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from daguerre.router.config import Config
from daguerre.router.estimators import (
    LEAST_ESS,
    MOST_UNSUPPORTED,
    Array,
    Estimate,
    LoggedOutcomes,
    ObservedOutcomes,
    PolicyValue,
    bounds_of,
    drawn_ratios,
    ratio,
    reward_model,
    value_of,
    weighted_quantiles,
    wilson,
)
from daguerre.router.rows import LoggedRequests, prices_of


@dataclass(frozen=True)
class Changed:
    """Of some requests: how many, the share of decisions that change, the share that the log cannot speak for, and the
    share that each backend has under both configurations.

    changed  the least share of decisions that differ, whatever the draws of exploration: half the sum of |p - q|
    """

    num: int
    changed: float
    unsupported: float
    given: dict[str, float]
    target: dict[str, float]


@dataclass(frozen=True)
class Measure:
    """An outcome of requests, float (R,), NaN where there is none; from 0 to 1; a grade, which was predicted."""

    reward: Array
    bounded: bool
    graded: bool = False


@dataclass(frozen=True)
class Counterfactual:
    """The value of another configuration.

    refused      requests that it could not serve; all else is of the others
    cost         dollars for each request, from its prices and the tokens of the answers that were given
    more_cost    that, less what was paid, as a share of what was paid
    quality      mean grade; by_step: by step type
    within       share of answers within the other configuration's SLO
    ms           milliseconds until the end, mean of what was answered; quantiles: 50th and 95th percentile
    both_known   mean grade where shadows make the grades of both backends known
    """

    config: str
    overall: Changed
    steps: dict[str, Changed]
    refused: int
    cost: Estimate | None
    more_cost: Estimate | None
    quality: PolicyValue
    by_step: dict[str, PolicyValue]
    within: PolicyValue | None
    ms: PolicyValue
    quantiles: list[Estimate]
    both_known: Estimate | None
    both_known_why: str | None
    notes: list[str] = field(default_factory=list)


def counterfactual_of(rows: LoggedRequests, other: Config) -> Counterfactual:
    """What another configuration would have done; `rows` were read with it."""
    assert rows.target is not None
    served = rows.target.sum(1) > 0
    asked = ~rows.cached
    use = asked & served
    overall = _changed(rows, use)
    steps = {name: _changed(rows, use & (rows.requests["step"] == place)) for place, name in enumerate(rows.steps)}
    cost, more_cost = _costs(rows, other, use)
    met = Measure(rows.met("other_slo"), bounded=True)
    ms = Measure(np.where(rows.answered, rows.requests["ms"], np.nan), bounded=False)
    grade = Measure(rows.requests["grade"], bounded=True, graded=True)
    known, why = _both_known(rows, use)
    return Counterfactual(
        config=other.sha256,
        overall=overall,
        steps=steps,
        refused=int((asked & ~served).sum()),
        cost=cost,
        more_cost=more_cost,
        quality=_value(rows, use, grade, overall),
        by_step={
            name: _value(rows, use & (rows.requests["step"] == place), grade, steps[name])
            for place, name in enumerate(rows.steps)
            if np.isfinite(grade.reward[use & (rows.requests["step"] == place)]).any()
        },
        within=_value(rows, use, met, overall) if np.isfinite(met.reward[use]).any() else None,
        ms=_value(rows, use, ms, overall),
        quantiles=_quantiles(rows, use, ms, overall),
        both_known=known,
        both_known_why=why,
        notes=_notes(rows, other),
    )


def _changed(rows: LoggedRequests, use: Array) -> Changed:
    assert rows.target is not None
    num = int(use.sum())
    if not num:
        return Changed(0, 0.0, 0.0, {}, {})
    given, target = rows.given[use].astype(np.float64), rows.target[use].astype(np.float64)
    kept = np.where(given > 0, target, 0).sum(1)
    return Changed(
        num,
        float((1 - np.minimum(given, target).sum(1)).mean().clip(0, 1).round(6)),
        float((1 - kept).mean().clip(0, 1).round(6)),
        {name: float(given[:, place].mean()) for place, name in enumerate(rows.backends)},
        {name: float(target[:, place].mean()) for place, name in enumerate(rows.backends)},
    )


def _costs(rows: LoggedRequests, other: Config, use: Array) -> tuple[Estimate | None, Estimate | None]:
    """Dollars for each request, and how much more that is than what was paid."""
    assert rows.target is not None
    paid = rows.requests["cost"]
    known = use & np.isfinite(paid) & np.isfinite(rows.requests["input"])
    price = np.nan_to_num(np.array(prices_of(other, rows.backends)))
    into, out, target = rows.requests["input"][known], rows.requests["output"][known], rows.target[known]
    theirs = into * (target @ price[:, 0]) + out * (target @ price[:, 1]) + target @ price[:, 2]
    more = ratio(theirs - paid[known], paid[known]) if paid[known].sum() > 0 else None
    return ratio(theirs), more


def logged_of(rows: LoggedRequests, use: Array, measure: Measure) -> LoggedOutcomes:
    """What is known of the requests that have the outcome."""
    assert rows.target is not None
    has = np.flatnonzero(use & np.isfinite(measure.reward) & (rows.requests["decided"] >= 0))
    arm, reward = rows.requests["decided"][has].astype(np.int64), measure.reward[has]
    given, target = rows.given[has].astype(np.float64), rows.target[has].astype(np.float64)
    predicted, seen = np.zeros(given.shape), ObservedOutcomes(np.arange(len(has)), arm, reward)
    if measure.graded:
        predicted, seen = rows.predicted[has].astype(np.float64), _with_shadows(rows, has, seen)
    model = reward_model(rows.requests["step"][has], predicted, seen, measure.bounded)
    return LoggedOutcomes(reward, arm, given, target, model, measure.bounded)


def _with_shadows(rows: LoggedRequests, has: Array, seen: ObservedOutcomes) -> ObservedOutcomes:
    """The grades of shadows, too."""
    place = np.full(len(rows.requests), -1)
    place[has] = np.arange(len(has))
    row = place[rows.pairs["row"]]
    good = (row >= 0) & rows.both_graded
    return ObservedOutcomes(
        np.concatenate([seen.row, row[good]]),
        np.concatenate([seen.arm, rows.pairs["backend"][good].astype(np.int64)]),
        np.concatenate([seen.reward, rows.pairs["grade"][good]]),
    )


def _value(rows: LoggedRequests, use: Array, measure: Measure, changed: Changed) -> PolicyValue:
    """The value by one measure; none where the log cannot speak for all requests, with this outcome or not."""
    found = value_of(logged_of(rows, use, measure))
    if changed.unsupported > MOST_UNSUPPORTED and found.estimates:
        said = f"no support: the log never does {changed.unsupported:.1%} of the decisions"
        return replace(found, unsupported=changed.unsupported, estimates={}, gain=None, why=f"{said} (at most 5%)")
    return found


def _quantiles(rows: LoggedRequests, use: Array, ms: Measure, changed: Changed) -> list[Estimate]:
    """The median and the 95th percentile of milliseconds; empty without support."""
    logged = logged_of(rows, use, ms)
    if changed.unsupported > MOST_UNSUPPORTED or not value_of(logged).estimates:
        return []
    return weighted_quantiles(logged.reward, logged.weights(), (0.5, 0.95))


def _both_known(rows: LoggedRequests, use: Array) -> tuple[Estimate | None, str | None]:
    """The mean grade of the other configuration where a shadow makes the grades of the backends known that it may
    choose, and why there is none.
    """
    assert rows.target is not None
    pairs = rows.pairs[rows.both_graded & use[rows.pairs["row"]]]
    row = pairs["row"]
    main, second = rows.requests["answered"][row], pairs["backend"]
    if not len(pairs):
        return None, "no shadow has the grades of both answers"
    valid = rows.target[row] * rows.same[rows.requests["config"][row]]
    place = np.arange(len(row))
    one, two = valid[place, main].astype(np.float64), valid[place, second].astype(np.float64)
    known = one + two
    missing = max(0.0, 1 - float(known.mean()))
    if missing > MOST_UNSUPPORTED:
        return None, f"no support: of {missing:.1%} of its decisions the shadows have no grade (at most 5%)"
    if len(pairs) < LEAST_ESS:
        return None, f"no support: {len(pairs)} shadows with both grades (at least {LEAST_ESS:.0f})"
    above = one * pairs["main"] + two * pairs["grade"]
    value = float(above.sum() / known.sum())
    low, high = bounds_of(drawn_ratios(above, known))
    least, most = wilson(value, len(pairs))
    low, high = min(low, least) * (1 - missing), max(high, most) * (1 - missing) + missing
    return Estimate(value, low, high, len(pairs), "bootstrap, at least as wide as wilson's"), None


def _notes(rows: LoggedRequests, other: Config) -> list[str]:
    """What is assumed, and what does not hold."""
    out = [
        "Latencies and loads of backends are those of the log: what another configuration does to them is not known.",
        "A request is decided by the features and the step type of the log.",
    ]
    theirs, place = {each.name for each in other.backends}, rows.backends.index
    logged = [{each.name for each in config.backends} & theirs for config in rows.configs]
    moved = {name for names, same in zip(logged, rows.same, strict=True) for name in names if not same[place(name)]}
    if moved:
        names = ", ".join(sorted(moved))
        out.append(
            f"Another server, model or body goes by the name of {names}: what the log says of it does not count."
        )
    if any(each.quality_model != other.quality_model for each in rows.configs):
        out.append("The configurations have different quality models: predictions are those of the log's.")
    return out
