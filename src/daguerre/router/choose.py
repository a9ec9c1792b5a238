"""The decision: a pure function of a request's features, the backends' state, and the configuration.

Rules apply in this order, and each leaves some candidates:

    operation, needs, context, tags, circuit, load   what a backend cannot do now, it is not asked for
    conversation      a backend with an open tool call of the conversation has the request, if it can
    wish              so has one that the request names
    quality           at least the step type's floor, or the best there is
    latency           the 95th percentile within the SLO, or the fastest there is
    cost              the least, within `cost_within` of it
    load              the fewest requests in flight for what it takes, then the order of the file

Equal inputs have equal decisions, so a log of inputs can be decided again (`RoutingDecision.to_dict`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from daguerre.router.config import Backend, Config


@dataclass(frozen=True, kw_only=True)
class Features:
    """A request, as `choose` sees it.

    operation      of `config.OPERATIONS`
    needs          what only some backends can do, of `config.NEEDS`, sorted
    step           its step type, of `config.STEPS`, and `steps`, the probability of each
    input_tokens   an estimate
    output_tokens  the limit that the request names; None: it names none
    quality        by backend, the probability that its answer is right, where that was predicted for this request
    conversation   which backend has an open tool call of this conversation; None: none has
    wishes         what the request may choose: slo_ms, backend, tags, max_cost
    draw           a uniform number of the request, 0 to 1, for exploration
    """

    operation: str
    step: str
    needs: tuple[str, ...] = ()
    steps: dict[str, float] = field(default_factory=dict)
    input_tokens: int = 0
    output_tokens: int | None = None
    stream: bool = False
    quality: dict[str, float] = field(default_factory=dict)
    conversation: str | None = None
    wishes: dict[str, Any] = field(default_factory=dict)
    draw: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return vars(self) | {"needs": list(self.needs)}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Features:
        """From JSON values."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: given for name, given in value.items() if name in known} | {"needs": tuple(value["needs"])})


@dataclass(frozen=True, kw_only=True)
class BackendState:
    """A backend at the time of a decision. Times are milliseconds.

    open        requests may go there: its circuit is closed, or a probe is due
    cold        it has to start first
    in_flight   requests that it is computing for this router
    waiting     how long the second oldest of these has waited for its first text: two are no accident. 0: there is none
    first, first_p95, whole, whole_p95   until the first text and until the end, as measured in the request's size
                bucket; None: not measured yet
    """

    open: bool = True
    cold: bool = False
    in_flight: int = 0
    waiting: float = 0.0
    first: float | None = None
    first_p95: float | None = None
    whole: float | None = None
    whole_p95: float | None = None


State = dict[str, BackendState]
"""By backend; one that is not there is as `BackendState()`."""


FRESH = BackendState()


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A backend in a decision.

    quality    predicted share of right answers, 0 to 1
    first_p50, first_p95   milliseconds until the first text, at the median and at the 95th percentile
    p50, p95   milliseconds until the end
    cost       dollars
    load       requests in flight for each that it takes
    excluded   why it is not chosen from; None: it is
    """

    name: str
    quality: float
    first_p50: float
    first_p95: float
    p50: float
    p95: float
    cost: float
    load: float
    excluded: str | None = None


@dataclass(frozen=True, kw_only=True)
class RoutingDecision:
    """What was decided, and why.

    backend     None: no backend can serve the request
    rule        which rule decided: conversation, wish, quality, latency, cost, load, explore, only; none
    reason      the same in words
    fallbacks   where to try next, in order
    propensity  the probability with which `backend` was chosen
    """

    backend: str | None
    rule: str
    reason: str
    step: str
    fallbacks: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    propensity: float
    config: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return vars(self) | {
            "fallbacks": list(self.fallbacks),
            "candidates": [dict(vars(each)) for each in self.candidates],
        }


def choose(features: Features, state: State, config: Config) -> RoutingDecision:
    """Which backend has a request; see the module."""
    candidates = [_candidate(each, features, state.get(each.name, FRESH), config) for each in config.backends]
    able = [each for each in candidates if each.excluded is None]
    ranked = _ranked(able, features, config)

    def decided(chosen: str | None, rule: str, reason: str, propensity: float = 1.0) -> RoutingDecision:
        return RoutingDecision(
            backend=chosen,
            rule=rule,
            reason=reason,
            step=features.step,
            fallbacks=tuple(each.name for each in ranked if each.name != chosen),
            candidates=tuple(candidates),
            propensity=propensity,
            config=config.sha256,
        )

    if not able:
        return decided(None, "none", _why_none(candidates))
    for rule, name, reason in (
        ("conversation", features.conversation, "it has an open tool call of the conversation"),
        ("wish", features.wishes.get("backend"), "the request names it"),
    ):
        if any(each.name == name for each in able):
            return decided(name, rule, reason)
    return decided(*_explored(ranked, _why(able, ranked, features, config), features, config))


def _candidate(backend: Backend, features: Features, state: BackendState, config: Config) -> Candidate:
    """A backend with what is predicted of it."""
    declared, tokens = backend.latency, expected_tokens(features, config)
    start = declared.cold_start if state.cold else 0.0
    first = _known(state.first, declared.first)
    first_p95 = _known(state.first_p95, declared.first_p95)
    whole = _known(state.whole, declared.first + tokens * declared.token)
    whole_p95 = _known(state.whole_p95, declared.first_p95 + tokens * declared.token_p95)
    price = backend.price
    cost = price.request + (features.input_tokens * price.input + tokens * price.output) / 1e6
    return Candidate(
        name=backend.name,
        quality=features.quality.get(backend.name, backend.quality_of(features.step)),
        first_p50=start + first,
        first_p95=start + max(first_p95, state.waiting),
        p50=start + whole,
        p95=start + max(whole_p95, state.waiting),
        cost=cost,
        load=state.in_flight / backend.most_in_flight,
        excluded=_excluded(backend, features, state, tokens, cost, config),
    )


def _excluded(
    backend: Backend, features: Features, state: BackendState, tokens: int, cost: float, config: Config
) -> str | None:
    """What keeps a backend from a request; None: nothing does."""
    if features.operation not in backend.operations:
        return f"does not serve {features.operation}"
    if missing := [need for need in features.needs if need not in backend.needs]:
        return f"cannot do {', '.join(missing)}"
    if features.input_tokens + tokens > backend.context:
        return f"its context of {backend.context} is too short"
    if missing := sorted(tags_of(features, config) - set(backend.tags)):
        return f"is not tagged {', '.join(missing)}"
    most = features.wishes.get("max_cost")
    if most is not None and cost > most:
        return "costs more than the request allows"
    if not state.open:
        return "its circuit is open"
    if state.in_flight >= backend.most_in_flight:
        return "has as many requests as it takes"
    return None


def tags_of(features: Features, config: Config) -> set[str]:
    """What a backend must be tagged to see a request: by its own wish, by its key, and by its step type."""
    return {*features.wishes.get("tags", ()), *config.rule(features.step).tags}


def expected_tokens(features: Features, config: Config) -> int:
    """How long the answer is expected to be."""
    expected = config.rule(features.step).tokens
    return expected if features.output_tokens is None else min(expected, features.output_tokens)


def _known(measured: float | None, declared: float) -> float:
    return declared if measured is None else measured


def slo_of(features: Features, config: Config) -> float | None:
    """Milliseconds within which the answer must be there."""
    own = features.wishes.get("slo_ms")
    return config.rule(features.step).slo_ms if own is None else float(own)


def _ranked(able: Sequence[Candidate], features: Features, config: Config) -> list[Candidate]:
    """Candidates, the best first: those that meet more of the rules in their order."""
    floor, slo = config.rule(features.step).quality, slo_of(features, config)
    order = {each.name: place for place, each in enumerate(config.backends)}
    good = [each for each in able if each.quality >= floor]
    rest = sorted((each for each in able if each.quality < floor), key=lambda each: (-each.quality, order[each.name]))
    late = [] if slo is None else sorted((each for each in good if each.p95 > slo), key=lambda each: each.p95)
    timely = [each for each in good if each not in late]
    out = list[Candidate]()
    while timely:
        most = min(each.cost for each in timely) * (1 + config.cost_within)
        cheap = [each for each in timely if each.cost <= most]
        out += sorted(cheap, key=lambda each: (each.load, order[each.name]))
        timely = [each for each in timely if each.cost > most]
    return out + late + rest


def _why(able: Sequence[Candidate], ranked: Sequence[Candidate], features: Features, config: Config) -> tuple[str, str]:
    """Which rule put the first of the ranked there, and the same in words."""
    best, floor, slo = ranked[0], config.rule(features.step).quality, slo_of(features, config)
    if len(able) == 1:
        return "only", "no other backend can serve the request"
    if best.quality < floor:
        return "quality", f"none reaches the quality of {floor:g}; it is the best, with {best.quality:.2f}"
    good = [each for each in able if each.quality >= floor]
    if len(good) == 1:
        return "quality", f"it alone reaches the quality of {floor:g} that {features.step} needs"
    if slo is not None and best.p95 > slo:
        return "latency", f"none is within {slo:g} ms; it is the fastest, with {best.p95:.0f} ms (p95)"
    timely = good if slo is None else [each for each in good if each.p95 <= slo]
    if len(timely) == 1:
        return "latency", f"it alone is within {slo:g} ms, with {best.p95:.0f} ms (p95)"
    cheap = [each for each in timely if each.cost <= min(one.cost for one in timely) * (1 + config.cost_within)]
    if len(cheap) == 1:
        return "cost", f"it costs least of {len(timely)} that are good and fast enough"
    return "load", f"it has the least load of {len(cheap)} that are good, fast and cheap enough"


def _explored(
    ranked: Sequence[Candidate], why: tuple[str, str], features: Features, config: Config
) -> tuple[str, str, str, float]:
    """The best candidate or, for a share of requests, any of those that reach the quality: its name, the rule, the
    reason and its propensity.
    """
    share, floor, best = config.explore.share, config.rule(features.step).quality, ranked[0]
    some = [best, *(each for each in ranked[1:] if each.quality >= floor)]
    refused = features.wishes.get("explore") is False or features.step not in config.explore.steps
    if not share or refused or len(some) == 1:
        return best.name, *why, 1.0
    if features.draw >= share:
        return best.name, *why, 1 - share + share / len(some)
    chosen = some[min(int(features.draw / share * len(some)), len(some) - 1)]
    propensity = share / len(some) + (1 - share if chosen is best else 0.0)
    return chosen.name, "explore", f"explored, one of {len(some)}; the best is {best.name}", propensity


def _why_none(candidates: Sequence[Candidate]) -> str:
    return "no backend can serve the request: " + "; ".join(f"{each.name} {each.excluded}" for each in candidates)
