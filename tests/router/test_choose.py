"""The decision: each rule by itself, their order, and a restatement over random inputs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from daguerre.router.choose import BackendState, Features, State, choose
from daguerre.router.config import NEEDS, OPERATIONS, STEPS, Config
from routing import backend, config, request

FAST = {"first": 10.0, "first_p95": 20.0, "token": 1.0, "token_p95": 2.0}
SLOW = {"first": 900.0, "first_p95": 2000.0, "token": 20.0, "token_p95": 50.0}


def chosen(features: Features, config_: Config, state: State | None = None) -> tuple[str | None, str]:
    found = choose(features, state or {}, config_)
    return found.backend, found.rule


@pytest.mark.parametrize(
    ("ask", "limit", "said"),
    [
        ({"operation": "fim"}, {"operations": ["chat"]}, "fim"),
        ({"needs": ("pins", "tools")}, {"needs": ["tools"]}, "pins"),
        ({"input_tokens": 90}, {"context": 100}, "context of 100"),
        ({"wishes": {"tags": ["eu", "gpu"]}}, {"tags": ["gpu"]}, "tagged eu"),
        ({"wishes": {"max_cost": 0.001}}, {"price": {"request": 0.002}}, "costs more"),
    ],
)
def test_a_backend_that_cannot_serve_a_request_does_not_get_it(
    ask: dict[str, Any], limit: dict[str, Any], said: str
) -> None:
    cannot, can = backend("cannot", **limit), backend("can", tags=["eu", "gpu"], price={"input": 1.0})
    ask = {"output_tokens": 20} | ask
    found = choose(request(**ask), {}, config(cannot, can))
    assert (found.backend, found.rule) == ("can", "only")
    without, others = found.candidates
    assert without.excluded is not None and said in without.excluded and others.excluded is None
    alone = choose(request(**ask), {}, config(cannot))
    assert alone.backend is None and alone.rule == "none"
    assert said in alone.reason


def test_a_step_type_may_want_tags_and_facts_want_quality_unless_the_file_says_otherwise() -> None:
    near, far = backend("near", quality={"default": 0.5}), backend("far", tags=["eu"], quality={"default": 0.9})
    price = {"price": {"request": 1.0}}
    given = config(near, far | price, steps={"extract": {"tags": ["eu"]}})

    assert choose(request("extract"), {}, given).backend == "far"
    assert choose(request("extract"), {}, given).candidates[0].excluded == "is not tagged eu"
    assert choose(request("extract"), {}, config(near, steps={"extract": {"tags": ["eu"]}})).backend is None
    assert [choose(request(step), {}, given).backend for step in ("plan", "facts")] == ["near", "far"]
    open_to_all = config(near, far | price, steps={"facts": {"quality": 0.0}})
    assert choose(request("facts"), {}, open_to_all).backend == "near"


def test_a_backend_that_is_down_or_full_does_not_get_it() -> None:
    both = config(backend("a", most_in_flight=3), backend("b", price={"input": 1.0}))
    assert chosen(request(input_tokens=10), both) == ("a", "cost")
    assert chosen(request(), both, {"a": BackendState(open=False)}) == ("b", "only")
    assert chosen(request(), both, {"a": BackendState(in_flight=3)}) == ("b", "only")


def test_a_conversation_with_an_open_tool_call_stays_where_it_is_unless_that_is_down() -> None:
    both = config(backend("cheap"), backend("dear", price={"input": 9.0}), overrides=["backend"])
    stays = request(conversation="dear", wishes={"backend": "cheap"})
    assert chosen(stays, both) == ("dear", "conversation")
    assert chosen(stays, both, {"dear": BackendState(open=False)}) == ("cheap", "wish")


def test_a_wish_comes_before_quality_time_and_cost() -> None:
    both = config(backend("good", quality={"plan": 0.9}), backend("bad", quality={"plan": 0.1}, latency=SLOW),
                  steps={"plan": {"quality": 0.5, "slo_ms": 100}})  # fmt: skip
    assert chosen(request(wishes={"backend": "bad"}), both) == ("bad", "wish")


def test_quality_comes_before_time_and_time_before_cost_and_cost_before_load() -> None:
    steps = {"plan": {"quality": 0.8, "slo_ms": 1000.0, "tokens": 100}}
    good = {"quality": {"plan": 0.9}, "latency": FAST, "price": {"output": 5.0}}
    late = good | {"latency": SLOW, "price": {"output": 0.0}}
    bad = good | {"quality": {"plan": 0.2}, "price": {"output": 0.0}}
    assert chosen(request(), config(backend("bad", **bad), backend("good", **good), steps=steps)) == ("good", "quality")
    assert chosen(request(), config(backend("late", **late), backend("good", **good), steps=steps)) == (
        "good",
        "latency",
    )
    cheap = good | {"price": {"output": 4.0}}
    three = config(backend("good", **good), backend("cheap", **cheap), backend("late", **late), steps=steps)
    assert chosen(request(), three) == ("cheap", "cost")
    near = config(backend("good", **good), backend("cheap", **cheap), steps=steps, cost_within=0.5)
    busy = {"cheap": BackendState(in_flight=9), "good": BackendState(in_flight=2)}
    assert chosen(request(), near, busy) == ("good", "load")
    assert chosen(request(), near.model_copy(update={"cost_within": 0.1}), busy) == ("cheap", "cost")


def test_where_none_is_good_enough_the_best_has_it_and_where_none_is_in_time_the_fastest() -> None:
    two = config(
        backend("a", quality={"facts": 0.3}, price={"request": 0.0}),
        backend("b", quality={"facts": 0.4}, price={"request": 1.0}),
        steps={"facts": {"quality": 0.9}, "plan": {"slo_ms": 1.0}},
    )
    found = choose(request("facts"), {}, two)
    assert (found.backend, found.rule) == ("b", "quality")
    assert "quality of 0.9" in found.reason and "0.40" in found.reason
    fast = {"b": BackendState(first=1.0, first_p95=2.0, whole=9.0, whole_p95=12.0)}
    found = choose(request("plan", output_tokens=10), fast, two)
    assert (found.backend, found.rule) == ("b", "latency")
    assert "1 ms" in found.reason and "12 ms" in found.reason


def test_predictions_use_what_was_measured_and_what_is_declared_where_nothing_was() -> None:
    one = config(
        backend("a", latency=FAST | {"cold_start": 5000.0}, price={"input": 2.0, "output": 10.0, "request": 0.001}),
        steps={"plan": {"tokens": 50}},
    )
    asked = request(input_tokens=1000, quality={"a": 0.7})
    (found,) = choose(asked, {}, one).candidates
    assert (found.first_p50, found.first_p95, found.p50, found.p95, found.quality) == (10.0, 20.0, 60.0, 120.0, 0.7)
    assert found.cost == pytest.approx(0.001 + 1000 * 2e-6 + 50 * 10e-6)
    state = {"a": BackendState(cold=True, first=7.0, first_p95=9.0, whole=30.0, in_flight=16)}
    (found,) = choose(request(output_tokens=10), state, one).candidates
    assert (found.first_p50, found.first_p95, found.p50, found.p95) == (5007.0, 5009.0, 5030.0, 5040.0)
    assert found.load == 0.25
    state = {"a": BackendState(whole=30.0, whole_p95=33.0, first_p95=9.0, waiting=35.0)}
    (found,) = choose(request(output_tokens=10), state, one).candidates
    assert (found.first_p95, found.p50, found.p95) == (35.0, 30.0, 35.0), "others have waited longer than predicted"


def test_an_explored_share_is_spread_evenly_and_its_propensity_is_the_share_of_draws() -> None:
    steps = {"plan": {"quality": 0.5}}
    names = {"a": 0.9, "b": 0.8, "c": 0.7, "bad": 0.1}
    all_ = [backend(name, quality={"plan": q}, price={"request": p}) for p, (name, q) in enumerate(names.items())]
    some = config(*all_, steps=steps, explore={"share": 0.3})
    draws = (np.arange(1000) + 0.5) / 1000
    found = [choose(request(draw=float(draw)), {}, some) for draw in draws]
    for name in names:
        share = np.mean([each.backend == name for each in found])
        said = {round(each.propensity, 12) for each in found if each.backend == name}
        assert share == pytest.approx({"a": 0.8, "bad": 0.0}.get(name, 0.1), abs=1e-3)
        assert said == ({round(float(share), 12)} if share else set()) or said == {pytest.approx(float(share))}
    assert all(each.fallbacks[-1] == "bad" for each in found)
    never = config(*all_, steps=steps, explore={"share": 0.3, "steps": ["reason"]})
    assert choose(request(draw=0.0), {}, never).propensity == 1.0
    refused = choose(request(draw=0.0, wishes={"explore": False}), {}, some)
    assert (refused.backend, refused.propensity) == ("a", 1.0)


def restated(features: Features, state: State, given: Config) -> str | None:
    """The choice, by filters over all backends."""
    rule = given.rule(features.step)
    tokens = min(rule.tokens, features.output_tokens or 10**9)

    def facts(each: Any) -> tuple[float, float, float, float]:
        now = state.get(each.name, BackendState())
        whole = now.whole_p95
        if whole is None:
            whole = each.latency.first_p95 + tokens * each.latency.token_p95
        whole = max(whole, now.waiting)
        cold = each.latency.cold_start if now.cold else 0.0
        cost = each.price.request + (features.input_tokens * each.price.input + tokens * each.price.output) / 1e6
        quality = features.quality.get(each.name, each.quality_of(features.step))
        return quality, cold + whole, cost, now.in_flight / each.most_in_flight

    able = [
        each
        for each in given.backends
        for now in [state.get(each.name, BackendState())]
        if features.operation in each.operations
        and set(features.needs) <= set(each.needs)
        and features.input_tokens + tokens <= each.context
        and now.open
        and now.in_flight < each.most_in_flight
    ]
    if not able:
        return None
    for name in (features.conversation, features.wishes.get("backend")):
        if name in [each.name for each in able]:
            return str(name)
    good = [each for each in able if facts(each)[0] >= rule.quality]
    if not good:
        return str(max(able, key=lambda each: facts(each)[0]).name)
    timely = [each for each in good if rule.slo_ms is None or facts(each)[1] <= rule.slo_ms]
    if not timely:
        return str(min(good, key=lambda each: facts(each)[1]).name)
    least = min(facts(each)[2] for each in timely)
    cheap = [each for each in timely if facts(each)[2] <= least * (1 + given.cost_within)]
    return str(min(cheap, key=lambda each: facts(each)[3]).name)


def test_random_decisions_are_those_of_the_restatement_and_of_their_own_record() -> None:
    rng = np.random.default_rng(0)

    def some(names: Any, share: float) -> list[str]:
        return [name for name in names if rng.random() < share]

    rules = set()
    for number in range(250):
        backends = [
            backend(
                f"b{place}",
                operations=some(OPERATIONS, 0.8) or ["chat"],
                needs=some(NEEDS, 0.85),
                context=int(rng.integers(500, 5000)),
                quality={"default": round(float(rng.random()), 2)},
                price={"input": float(rng.integers(3)), "output": float(rng.integers(3))},
                latency={"first_p95": float(rng.integers(100, 900)), "cold_start": 200.0},
            )
            for place in range(int(rng.integers(1, 7)))
        ]
        step = str(rng.choice(STEPS))
        limits = {"quality": float(rng.choice([0.0, 0.5, 0.9])), "slo_ms": float(rng.choice([500, 3000, 9000]))}
        given = config(*backends, steps={step: limits}, cost_within=float(rng.choice([0.0, 0.3])))
        state = {
            each["name"]: BackendState(
                open=bool(rng.random() < 0.85),
                cold=bool(rng.random() < 0.3),
                in_flight=int(rng.integers(66)),
                waiting=float(rng.choice([0.0, 2000.0])),
                whole_p95=float(rng.integers(100, 9000)) if rng.random() < 0.5 else None,
            )
            for each in backends
            if rng.random() < 0.8
        }
        features = Features(
            operation=str(rng.choice(OPERATIONS)),
            step=step,
            needs=tuple(some(NEEDS, 0.1)),
            input_tokens=int(rng.integers(2000)),
            output_tokens=None if rng.random() < 0.5 else int(rng.integers(1, 400)),
            conversation="b1" if rng.random() < 0.1 else None,
            wishes={"backend": "b2"} if rng.random() < 0.1 else {},
        )
        found = choose(features, state, given)
        assert found.backend == restated(features, state, given), number
        again = json.loads(json.dumps({"features": features.to_dict(), "decision": found.to_dict()}))
        assert choose(Features.from_dict(again["features"]), state, given).to_dict() == again["decision"]
        rules.add(found.rule)
    assert rules == {"none", "only", "conversation", "wish", "quality", "latency", "cost", "load"}
