"""Intervals and off-policy values: against enumerations of every log, closed forms, and simulations of known truth."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from daguerre.evals.statistics import wilson as wilson_elsewhere
from daguerre.router import estimators
from daguerre.router.choose import BackendState, choose
from daguerre.router.estimators import (
    Estimate,
    LoggedOutcomes,
    ObservedOutcomes,
    effective,
    quantile,
    ranks,
    ratio,
    reward_model,
    share,
    spread_of,
    value_of,
    weighted_quantiles,
    wilson,
)
from routing import backend, config, request


def test_wilsons_interval_is_that_of_the_evaluations() -> None:
    for num in (0, 1, 7, 100, 12345):
        for hits in {0, num // 3, num}:
            assert wilson(hits / max(num, 1), num) == pytest.approx(wilson_elsewhere(hits, num))


@pytest.mark.parametrize("at", [0.5, 0.95])
def test_ranks_leave_at_most_two_and_a_half_percent_on_each_side_and_the_next_ones_more(at: float) -> None:
    for num in (1, 5, 40, 73, 200):
        mass = [math.comb(num, count) * at**count * (1 - at) ** (num - count) for count in range(num + 1)]
        low, high = ranks(num, at)
        assert sum(mass[:low]) <= 0.025 < sum(mass[: low + 1])
        assert sum(mass[high:]) <= 0.025 + 1e-12 < sum(mass[high - 1 :])


def test_ranks_of_many_are_nearly_those_of_fewer() -> None:
    for at in (0.5, 0.95):
        exact, near = ranks(2000, at), ranks(2001, at)
        assert abs(exact[0] - near[0]) <= 3 and abs(exact[1] - near[1]) <= 3


def test_a_quantile_of_few_has_no_upper_bound() -> None:
    found = quantile(np.arange(20.0), 0.95)
    assert found is not None and found.high is None and found.low is not None and found.low < found.value
    assert quantile(np.zeros(0), 0.5) is None and share(np.zeros(0)) is None and ratio(np.zeros(0)) is None


def test_the_bootstrap_of_a_mean_is_as_wide_as_the_normal_interval() -> None:
    rng = np.random.default_rng(3)
    for num in (100, 500, 20_000):
        some = rng.exponential(size=num)
        found = ratio(some)
        assert found is not None and found.low is not None and found.high is not None
        assert found.value == pytest.approx(some.mean())
        assert found.high - found.low == pytest.approx(2 * 1.96 * some.std() / math.sqrt(num), rel=0.12)


def test_the_bootstrap_of_neighbors_that_depend_on_each_other_is_wider() -> None:
    rng = np.random.default_rng(4)
    once = rng.normal(size=500)
    together, apart = ratio(np.repeat(once, 20)), ratio(rng.permutation(np.repeat(once, 20)))
    assert together is not None and apart is not None
    assert width(together) == pytest.approx(math.sqrt(20) * width(apart), rel=0.15)


def width(found: Estimate) -> float:
    assert found.low is not None and found.high is not None
    return found.high - found.low


def test_weighted_quantiles_are_those_of_repeated_values() -> None:
    rng = np.random.default_rng(5)
    some, times = rng.normal(size=301), rng.integers(1, 6, 301)
    found = weighted_quantiles(some, times.astype(float), (0.5, 0.95))
    repeated = np.sort(np.repeat(some, times))
    for each, at in zip(found, (0.5, 0.95), strict=True):
        assert each.value == repeated[math.ceil(at * len(repeated)) - 1]
        assert each.low is not None and each.high is not None and each.low <= each.value <= each.high


def random_case(rng: np.random.Generator) -> tuple[object, dict[str, BackendState], object]:
    names = "abcde"[: int(rng.integers(1, 6))]
    some = config(
        *(
            backend(
                name,
                quality={"default": round(float(rng.random()), 2)},
                price={"output": float(rng.integers(1, 4))},
                **({} if rng.random() < 0.8 else {"operations": ["edit"]}),
            )
            for name in names
        ),
        steps={"plan": {"quality": float(rng.choice([0, 0.3, 0.6])), "slo_ms": float(rng.choice([1e3, 1e5]))}},
        explore={"share": float(rng.choice([0, 0.05, 0.5, 0.9, 1.0]))},
        cost_within=float(rng.choice([0, 0.5])),
        overrides=["backend", "explore"],
    )
    wishes = [{}, {}, {}, {"backend": "a"}, {"explore": False}][int(rng.integers(5))]
    held = "b" if rng.random() < 0.1 else None
    state = {name: BackendState(in_flight=int(rng.integers(3)), open=bool(rng.random() < 0.9)) for name in names}
    return request(wishes=wishes, conversation=held, output_tokens=int(rng.integers(1, 200))), state, some


def test_propensities_are_the_shares_of_draws_and_what_each_logged_decision_implies() -> None:
    rng, explored = np.random.default_rng(6), 0
    for _ in range(50):
        features, state, some = random_case(rng)
        found = spread_of(choose(features, state, some).to_dict(), some)  # type: ignore[arg-type]
        counts = dict.fromkeys(found, 0)
        draws = (np.arange(200) + 0.5) / 200
        for value in draws:
            made = choose(replace(features, draw=float(value)), state, some)  # type: ignore[type-var, arg-type]
            if made.backend is None:
                assert not found
                continue
            counts[made.backend] += 1
            assert made.propensity == pytest.approx(found[made.backend])
            line = json.loads(json.dumps(made.to_dict()))
            assert spread_of(line, some) == pytest.approx(found)  # type: ignore[arg-type]
        for name, count in counts.items():
            assert count / 200 == pytest.approx(found[name], abs=2 / 200)
        assert not found or sum(found.values()) == pytest.approx(1)
        explored += len(found) > 1
    assert explored > 10


GIVEN = np.array([[0.7, 0.3, 0.0], [0.25, 0.5, 0.25], [0.0, 0.2, 0.8]])
TARGET = np.array([[0.1, 0.9, 0.0], [0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
RIGHT = np.array([[0.9, 0.4, 0.5], [0.2, 0.6, 0.8], [0.3, 0.7, 0.1]])
TRUTH = float((TARGET * RIGHT).sum(1).mean())


def test_over_all_logs_inverse_propensity_and_doubly_robust_are_right_on_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimators, "LEAST_ESS", 0.0)
    monkeypatch.setattr(estimators, "DRAWS", 2)
    models = {"wrong": np.full((3, 3), 0.33), "right": RIGHT}
    for model in models.values():
        means, total = {"ips": 0.0, "dr": 0.0}, 0.0
        for arms in itertools.product(range(3), repeat=3):
            for rewards in itertools.product((0, 1), repeat=3):
                chance = math.prod(
                    GIVEN[row, arm] * (RIGHT[row, arm] if reward else 1 - RIGHT[row, arm])
                    for row, (arm, reward) in enumerate(zip(arms, rewards, strict=True))
                )
                if not chance:
                    continue
                log = LoggedOutcomes(np.array(rewards, float), np.array(arms), GIVEN, TARGET, model, bounded=False)
                weights = log.weights()
                if not weights.any():
                    estimates = {"ips": 0.0, "dr": float((TARGET * model).sum(1).mean())}
                else:
                    estimates = {name: each.value for name, each in value_of(log).estimates.items()}
                for name in means:
                    means[name] += chance * estimates[name]
                total += chance
        assert total == pytest.approx(1)
        assert means["ips"] == pytest.approx(TRUTH) and means["dr"] == pytest.approx(TRUTH)


def some_log(
    rng: np.random.Generator, num: int, model: float | None = None, bounded: bool = True
) -> tuple[LoggedOutcomes, float]:
    """A log of `num` requests, three kinds of them in turn, and the other configuration's value on them."""
    kind = np.arange(num) % 3
    arm = np.array([rng.choice(3, p=GIVEN[each]) for each in kind])
    reward = (rng.random(num) < RIGHT[kind, arm]).astype(float)
    modeled = RIGHT[kind] if model is None else np.full((num, 3), model)
    return LoggedOutcomes(reward, arm, GIVEN[kind], TARGET[kind], modeled, bounded), float(
        (TARGET * RIGHT)[kind].sum(1).mean()
    )


def test_doubly_robust_is_exact_where_outcomes_are_what_the_model_says() -> None:
    log, truth = some_log(np.random.default_rng(7), 90, bounded=False)
    kind = np.arange(90) % 3
    exact = LoggedOutcomes(RIGHT[kind, log.arm], log.arm, log.given, log.target, log.model, bounded=False)
    found = value_of(exact).estimates
    assert found["dr"].value == pytest.approx(truth)
    assert found["ips"].value != pytest.approx(truth, abs=1e-6) and width(found["dr"]) < width(found["ips"]) / 2


def test_self_normalized_weights_follow_a_shift_of_all_rewards() -> None:
    log, _ = some_log(np.random.default_rng(8), 90, bounded=False)
    up = LoggedOutcomes(log.reward + 5, log.arm, log.given, log.target, log.model, bounded=False)
    assert value_of(up).estimates["snips"].value == pytest.approx(value_of(log).estimates["snips"].value + 5)


def test_the_same_configuration_is_worth_what_the_log_shows() -> None:
    log, _ = some_log(np.random.default_rng(9), 120, model=0.4)
    found = value_of(LoggedOutcomes(log.reward, log.arm, log.given, log.given, log.model, bounded=True))
    assert found.ess == 120 and found.unsupported == 0
    assert found.estimates["ips"].value == pytest.approx(log.reward.mean())
    assert found.estimates["snips"].value == pytest.approx(log.reward.mean())


def test_the_effective_sample_size_is_the_number_of_equal_weights_and_less_of_others() -> None:
    assert effective(np.full(40, 3.0)) == pytest.approx(40)
    assert effective(np.array([0, 0, 5.0])) == 1 and effective(np.zeros(3)) == 0
    assert effective(np.array([1.0, 2.0, 3.0])) == pytest.approx(36 / 14)


def test_without_support_there_is_no_number_but_the_reason() -> None:
    ones, given = np.ones(200), np.tile([1.0, 0.0], (200, 1))
    never = LoggedOutcomes(
        ones, np.zeros(200, int), given, np.tile([0.9, 0.1], (200, 1)), np.zeros((200, 2)), bounded=True
    )
    found = value_of(never)
    assert found.unsupported == pytest.approx(0.1) and not found.estimates and found.gain is None
    assert found.why is not None and "10.0%" in found.why
    few = LoggedOutcomes(ones[:15], np.zeros(15, int), given[:15], given[:15], np.zeros((15, 2)), bounded=True)
    why = value_of(few).why
    assert why is not None and "15.0" in why
    assert (
        value_of(LoggedOutcomes(ones[:0], np.zeros(0, int), given[:0], given[:0], np.zeros((0, 2)), True)).why
        is not None
    )


def test_what_little_has_no_support_widens_the_interval_by_as_much() -> None:
    rng = np.random.default_rng(10)
    reward, given = (rng.random(400) < 0.7).astype(float), np.tile([1.0, 0.0], (400, 1))
    all_ = LoggedOutcomes(reward, np.zeros(400, int), given, given, np.zeros((400, 2)), bounded=True)
    less = LoggedOutcomes(
        reward, np.zeros(400, int), given, np.tile([0.96, 0.04], (400, 1)), np.zeros((400, 2)), bounded=True
    )
    for name, found in value_of(less).estimates.items():
        whole = value_of(all_).estimates[name]
        assert whole.low is not None and whole.high is not None
        assert found.value == pytest.approx(whole.value)
        assert (found.low, found.high) == (pytest.approx(0.96 * whole.low), pytest.approx(0.96 * whole.high + 0.04))


def partly_changed(num: int, changed: int, seen: int, chance: float) -> LoggedOutcomes:
    """A log: of its first `changed` requests, `seen` are explored, which the other configuration does with all."""
    given, target = np.tile([1.0, 0.0], (num, 1)), np.tile([1.0, 0.0], (num, 1))
    given[:changed], target[:changed] = [1 - chance, chance], [0.0, 1.0]
    arm = (np.arange(num) < seen).astype(int)
    reward = (np.random.default_rng(14).random(num) < 0.8).astype(float)
    return LoggedOutcomes(reward, arm, given, target, np.full((num, 2), 0.8), bounded=True)


def test_decisions_that_change_and_were_hardly_seen_may_be_worth_anything() -> None:
    found = value_of(partly_changed(400, 16, 8, 0.5))
    assert found.thin and found.changed == pytest.approx(0.02) and found.ess_changed == 8 and found.gain is None
    for each in found.estimates.values():
        assert each.low is not None and each.high is not None
        least, most = wilson(min(each.value, 1.0), found.ess)
        assert each.low <= 0.98 * least + 1e-9 and each.high >= 0.98 * most + 0.02 - 1e-9
    none = value_of(partly_changed(60, 30, 9, 0.3))
    assert none.ess > 20 and not none.estimates
    assert none.why is not None and "35.0%" in none.why and "9.0" in none.why
    many = value_of(partly_changed(400, 200, 60, 0.3))
    assert not many.thin and many.gain is not None and many.why is None


def test_weights_are_clipped_at_the_root_of_the_number_and_what_is_clipped_off_has_no_support() -> None:
    given = np.tile([0.998, 0.002], (400, 1))
    target = np.tile([0.9, 0.1], (400, 1))
    arm = np.zeros(400, int)
    arm[:2] = 1
    found = value_of(LoggedOutcomes(np.ones(400), arm, given, target, np.zeros((400, 2)), bounded=True))
    assert found.clip == 20 and found.unsupported == pytest.approx(0.1 - 20 * 0.002)


def test_outcomes_that_are_all_alike_have_an_interval_and_no_gain() -> None:
    log, _ = some_log(np.random.default_rng(11), 240)
    found = value_of(LoggedOutcomes(np.ones(240), log.arm, log.given, log.target, np.ones((240, 3)), bounded=True))
    low = found.estimates["dr"].low
    assert low is not None and low == pytest.approx(wilson(1.0, found.ess)[0]) and found.gain is None


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng, held, num = np.random.default_rng(12), dict.fromkeys(("ips", "snips", "dr", "gain"), 0), 100
    for _ in range(num):
        log, truth = some_log(rng, 240, model=0.5)
        found = value_of(log)
        own = float((GIVEN * RIGHT).sum(1).mean())
        for name, each in found.estimates.items():
            assert each.low is not None and each.high is not None
            held[name] += each.low <= truth <= each.high
        assert found.gain is not None and found.gain.low is not None and found.gain.high is not None
        held["gain"] += found.gain.low <= truth - own <= found.gain.high
    assert all(count >= 0.9 * num for count in held.values()), held
    assert held["gain"] < num


def test_the_reward_model_is_the_mean_error_drawn_towards_the_backends_and_all() -> None:
    num = 50
    step, arm = np.arange(num) % 2, np.arange(num) // 2 % 2
    predicted = np.tile([0.5, 0.2], (num, 1))
    reward = np.where(arm == 0, 0.8, np.where(step == 0, 0.3, 0.1))
    model = reward_model(step, predicted, ObservedOutcomes(np.arange(num), arm, reward), bounded=True)
    for row in range(num):
        use = np.arange(num) % 5 != row % 5
        error = reward - predicted[np.arange(num), arm]
        overall = error[use].mean()
        for other in range(2):
            mine = use & (arm == other)
            middle = (error[mine].sum() + 8 * overall) / (mine.sum() + 8)
            cell = mine & (step == step[row])
            expected = predicted[row, other] + (error[cell].sum() + 8 * middle) / (cell.sum() + 8)
            assert model[row, other] == pytest.approx(min(max(expected, 0), 1))


def test_a_request_is_modeled_without_its_own_outcome() -> None:
    rng = np.random.default_rng(13)
    step, arm, reward = rng.integers(0, 3, 80), rng.integers(0, 2, 80), rng.random(80)
    before = reward_model(step, np.full((80, 2), 0.5), ObservedOutcomes(np.arange(80), arm, reward), bounded=False)
    changed = reward.copy()
    changed[17] += 100
    after = reward_model(step, np.full((80, 2), 0.5), ObservedOutcomes(np.arange(80), arm, changed), bounded=False)
    assert (before[17] == after[17]).all() and (before[18] != after[18]).any()
    nothing = ObservedOutcomes(np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    assert (reward_model(step, np.full((80, 2), 0.5), nothing, bounded=True) == 0.5).all()
