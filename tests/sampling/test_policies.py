"""One suite for the table of policies, and what each of them promises."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from daguerre.canvas import Decision
from daguerre.sampling.logits import Proposals, SamplingParams, propose
from daguerre.sampling.policies import (
    POLICIES,
    Confidence,
    Entropy,
    EntropyBounded,
    EntropyThreshold,
    Factor,
    Margin,
    Policy,
    Progress,
    Random,
    Threshold,
)
from daguerre.sampling.policies.base import static_count
from daguerre.sampling.random import Counter

RNG = Counter(seed=1)


def proposals(probabilities: list[float], first: int = 10) -> Proposals:
    """Proposals of these probabilities, whose distributions are equally uncertain."""
    num = len(probabilities)
    alike = {"entropies": np.ones(num), "best": np.full((num, 2), 0.5)}
    return Proposals(np.arange(first, first + num), np.arange(num) + 100, np.array(probabilities), **alike)


def only_what(policy: Policy, given: Proposals) -> Proposals:
    """The proposals with what the policy says it reads, and no more."""
    assert {*policy.reads} <= {"entropies", "best"}
    return dataclasses.replace(given, **{name: None for name in ("entropies", "best") if name not in policy.reads})


def run(policy: Policy, probabilities: list[float]) -> list[Decision]:
    """Decide until everything is committed; later steps see what is left."""
    left, out = proposals(probabilities), []
    for step in range(policy.bound(len(probabilities))):
        if not len(left):
            break
        decision = policy.decide(only_what(policy, left), Progress(step, step, len(probabilities)), RNG)
        out.append(decision)
        left = left.keep(~np.isin(left.positions, decision.positions))
    assert not len(left)
    return out


def test_every_policy_commits_at_least_one_and_ends_within_its_bound(subtests: pytest.Subtests) -> None:
    for name in POLICIES:
        with subtests.test(name):
            for num in (1, 2, 7, 16):
                chances = np.random.default_rng(num).random(num).tolist()
                decisions = run(POLICIES[name](), chances)
                assert all(len(d) >= 1 for d in decisions)
                committed = np.concatenate([d.positions for d in decisions])
                assert sorted(committed.tolist()) == list(range(10, 10 + num))
                for decision in decisions:
                    assert np.array_equal(decision.tokens, decision.positions - 10 + 100)
                    assert np.array_equal(decision.probabilities, np.array(chances)[decision.positions - 10])
                    assert not len(decision.reopen)


def test_a_policy_commits_what_it_ranks_highest(subtests: pytest.Subtests) -> None:
    for name in POLICIES:
        with subtests.test(name):
            logits = np.random.default_rng(3).normal(0, 2, (12, 20))
            made = propose(np.arange(10, 22), logits, SamplingParams(), entropy=True, num_best=2)
            policy, progress = POLICIES[name](), Progress(2, 5, 14)
            given = only_what(policy, made)
            decision, ranked = policy.decide(given, progress, RNG), policy.rank(given, progress, RNG)
            chosen = np.isin(given.positions, decision.positions)
            assert ranked.shape == (12,)
            assert ranked[chosen].min() >= ranked[~chosen].max(initial=-np.inf)
            assert np.array_equal(decision.confidence, ranked[chosen])


def test_a_policy_is_made_with_the_options_it_names() -> None:
    for kind in POLICIES.values():
        assert set(kind.options) == {field.name for field in dataclasses.fields(kind)}


def test_the_static_schedule_spends_all_positions() -> None:
    for num_start, num_steps in itertools.product((1, 5, 16, 33), (1, 3, 16, 50)):
        steps = min(num_steps, num_start)
        counts = [static_count(num_start, num_steps, s) for s in range(steps)]
        assert sum(counts) == num_start
        assert min(counts) >= 1
        assert max(counts) - min(counts) <= 1
        assert counts == sorted(counts, reverse=True)


def test_threshold_commits_the_sure_ones_and_always_the_best() -> None:
    chances = [0.2, 0.9, 0.89, 0.95]
    picked = Threshold(0.9).decide(proposals(chances), Progress(0, 0, 4), RNG)
    assert picked.positions.tolist() == [11, 13]
    alone = Threshold(0.99).decide(proposals(chances), Progress(0, 0, 4), RNG)
    assert alone.positions.tolist() == [13]
    assert len(Threshold(0.0).decide(proposals(chances), Progress(0, 0, 4), RNG)) == 4


def test_confidence_commits_the_best_of_each_step() -> None:
    first, second = run(Confidence(2), [0.2, 0.9, 0.5, 0.95, 0.1])
    assert first.positions.tolist() == [11, 12, 13]
    assert second.positions.tolist() == [10, 14]


def test_equal_confidence_goes_from_left_to_right() -> None:
    assert [d.positions.tolist() for d in run(Confidence(4), [0.5] * 4)] == [[10], [11], [12], [13]]


def test_random_order_is_keyed_and_not_by_probability() -> None:
    chances = np.linspace(0.9, 0.1, 16).tolist()
    orders = []
    for seed in range(30):
        decision = Random(4).decide(proposals(chances), Progress(0, 0, 16), Counter(seed))
        assert len(decision) == 4
        again = Random(4).decide(proposals(chances), Progress(0, 0, 16), Counter(seed))
        assert again.positions.tolist() == decision.positions.tolist()
        orders.append(decision.positions)
    assert 4 < np.mean(orders) - 10 < 11
    assert len({tuple(o.tolist()) for o in orders}) > 25


def most_likely_of(*distributions: list[float]) -> Proposals:
    """The most likely tokens of distributions, which are equally long; one more token is banned everywhere."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.array([[*one, 0.0] for one in distributions]))
    num = len(logits)
    return propose(np.arange(10, 10 + num), logits, SamplingParams(), entropy=True, num_best=2)


def decided(policy: Policy, given: Proposals, step: int = 0) -> list[int]:
    return policy.decide(given, Progress(step, step, len(given)), RNG).positions.tolist()


def test_factor_lets_fewer_doubts_pass_the_more_are_committed() -> None:
    """2(1 - .9) = .2, 3(1 - .8) = .6, 4(1 - .75) = 1: the third is no longer below 1, whatever comes behind it."""
    given = proposals([0.75, 0.9, 0.5, 0.8])
    assert decided(Factor(1.0), given) == [11, 13]
    assert decided(Factor(1.01), given) == [10, 11, 13]
    assert decided(Factor(1e-9), given) == [11]
    assert decided(Factor(0.59), given) == [11]
    assert decided(Factor(100.0), given) == [10, 11, 12, 13]
    assert decided(Factor(1.0), proposals([1.0, 1.0, 1.0])) == [10, 11, 12]


def test_factor_stops_at_the_first_that_does_not_fit() -> None:
    """2(1 - .6) = .8 and 3(1 - .6) = 1.2 and 4(1 - .6) = 1.6."""
    assert decided(Factor(1.0), proposals([0.6, 0.6, 0.6])) == [10]
    assert decided(Factor(0.7), proposals([0.6, 0.6, 0.6])) == [10]
    assert decided(Factor(1.3), proposals([0.6, 0.6, 0.6])) == [10, 11]


def test_entropies_and_margins_are_those_of_the_distributions() -> None:
    given = most_likely_of([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.2, 0.7, 0.1])
    ranked = {kind: kind().rank(given, Progress(0, 0, 4), RNG) for kind in (Entropy, Margin)}
    assert np.allclose(-ranked[Entropy][:3], [np.log(2), 0.0, 1.5 * np.log(2)])
    assert np.allclose(ranked[Margin], [0.0, 1.0, 0.25, 0.5])


def test_the_entropy_bound_leaves_the_largest_out_of_its_sum() -> None:
    """Entropies log 2, 0, 1.5 log 2 and log 2: in order 0, .69, .69, 1.04; sums without the last 0, 0, .69, 1.39."""
    given = most_likely_of([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0])
    assert decided(EntropyBounded(0.0), given) == [10, 11]
    assert decided(EntropyBounded(0.69), given) == [10, 11]
    assert decided(EntropyBounded(0.70), given) == [10, 11, 13]
    assert decided(EntropyBounded(1.38), given) == [10, 11, 13]
    assert decided(EntropyBounded(1.39), given) == [10, 11, 12, 13]
    assert decided(EntropyBounded(0.0), most_likely_of([0.5, 0.5], [0.6, 0.4])) == [11]


def test_the_entropy_threshold_adds_a_penalty_for_each_position_from_the_first_proposal() -> None:
    """Entropies log 2, 0, 1.5 log 2 and log 2, of positions 10 to 13: .69, 0, 1.04 and .69."""
    given = most_likely_of([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0])
    assert decided(EntropyThreshold(0.70), given) == [10, 11, 13]
    assert decided(EntropyThreshold(0.69), given) == [11]
    assert decided(EntropyThreshold(0.70, 0.1), given) == [10, 11]
    assert decided(EntropyThreshold(1.0, 0.1), given) == [10, 11, 13]
    assert decided(EntropyThreshold(0.98, 0.1), given) == [10, 11]
    assert decided(EntropyThreshold(0.0, 0.5), given) == [11], "none is below 0: the lowest of .69, .5, 2.04 and 2.19"
    assert decided(EntropyThreshold(0.0, 0.7), given) == [10]
    assert decided(EntropyThreshold(0.7, 0.2), given.keep(np.array([False, False, True, True]))) == [13]


def test_entropy_and_margin_rank_differently_from_confidence() -> None:
    """The first distribution is surest, the second least uncertain, the third has the clearest first choice."""
    given = most_likely_of(
        [0.55, 0.40, 0.05, 0.0, 0.0],
        [0.52, 0.48, 0.0, 0.0, 0.0],
        [0.50, 0.125, 0.125, 0.125, 0.125],
    )
    assert decided(Confidence(3), given) == [10]
    assert decided(Entropy(3), given) == [11]
    assert decided(Margin(3), given) == [12]
    assert decided(Entropy(2), given) == [10, 11]
    assert decided(Margin(2), given) == [10, 12]
    assert decided(Margin(1), given) == decided(Entropy(1), given) == [10, 11, 12]


def test_a_decision_has_what_its_policy_ranked_by() -> None:
    given = most_likely_of([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
    for policy, want in (
        (Entropy(1), [-np.log(2), 0.0]),
        (EntropyBounded(9.0), [-np.log(2), 0.0]),
        (EntropyThreshold(9.0, 0.5), [-np.log(2), -0.5]),
        (Margin(1), [0, 1]),
    ):
        assert np.allclose(policy.decide(given, Progress(0, 0, 2), RNG).confidence, want)
