"""Static schedules, their order by chance, and positions that are committed each by itself."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from daguerre.decoding.denoise import with_more
from daguerre.errors import InputError
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies import (
    POLICIES,
    Confidence,
    Entropy,
    FirstHitting,
    Margin,
    Origin,
    Policy,
    Progress,
    Random,
    Threshold,
)
from daguerre.sampling.policies.base import LAST_TIME, commit, top
from daguerre.sampling.random import Counter


def proposals(scores: list[float], waits: list[bool] | None = None) -> Proposals:
    num, chances = len(scores), np.array(scores)
    return Proposals(
        np.arange(num),
        np.arange(num) + 100,
        chances,
        entropies=-chances,
        best=np.stack([chances, np.zeros(num)], axis=1),
        waits=None if waits is None else np.array(waits),
    )


def run(policy: Policy, num: int, seed: int = 0) -> list[list[int]]:
    """The positions of each decision until none of `num` is left; their scores differ."""
    left, out = proposals(np.linspace(0.1, 0.9, num).tolist()), list[list[int]]()
    while len(left):
        assert len(out) < policy.bound(num)
        decision = policy.decide(left, Progress(len(out), len(out), num), Counter(seed))
        out.append(decision.positions.tolist())
        left = left.keep(~np.isin(left.positions, decision.positions))
    return out


# ---- the schedule in time -------------------------------------------------------------------------------------------


def published_counts(num: int, steps: int) -> list[int]:
    """int(N (1 - t_{s+1} / t_s)) in float32, and all in the last step, as Dream's script has them; without zeros."""
    times, out = torch.linspace(1, 1e-3, steps + 1), list[int]()
    for step in range(steps):
        share = 1 - times[step + 1] / times[step]
        out.append(int(torch.tensor(float(num)) * share) if step + 1 < steps else num)
        num -= out[-1]
    return [count for count in out if count]


def test_the_schedule_in_time_has_the_published_counts(subtests: pytest.Subtests) -> None:
    for steps in (1, 2, 3, 5, 8, 16, 33, 64, 200, 512):
        with subtests.test(str(steps)):
            for num in (1, 2, 3, 7, 8, 16, 31, 64, 100):
                counts = [len(positions) for positions in run(Confidence(steps, "time"), num)]
                assert counts == published_counts(num, steps), (num, steps)


def test_the_schedule_in_time_is_not_the_even_one() -> None:
    assert published_counts(16, 8) == [1, 2, 2, 2, 2, 2, 2, 3]
    assert [len(one) for one in run(Confidence(8, "time"), 16)] == [1, 2, 2, 2, 2, 2, 2, 3]
    assert [len(one) for one in run(Confidence(8), 16)] == [2] * 8
    assert published_counts(5, 50) == [1, 1, 1, 2], "steps that commit nothing take no forward"


def test_every_static_policy_has_both_schedules(subtests: pytest.Subtests) -> None:
    for kind in (Confidence, Entropy, Margin, Random):
        with subtests.test(kind.__name__):
            for steps in (None, 4, 40):
                assert [len(one) for one in run(kind(steps, "time"), 12)] == published_counts(12, steps or 12)
                assert [len(one) for one in run(kind(steps), 12)] == [12 // min(steps or 12, 12)] * min(steps or 12, 12)


def test_positions_that_were_filled_besides_do_not_stop_the_schedule_in_time() -> None:
    """The rest of a span may be filled at once: fewer are left than planned, but at least one is committed."""
    policy = Confidence(8, "time")
    for step in range(8):
        decision = policy.decide(proposals([0.2, 0.6]), Progress(step, step, 16), Counter(0))
        assert decision.positions.tolist() == ([1] if step < 7 else [0, 1])


def test_an_unknown_schedule_gets_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean 'even'"):
        Confidence(schedule="evn")  # type: ignore[arg-type]


# ---- order by chance ------------------------------------------------------------------------------------------------


def plackett_luce(scores: list[float], heat: float, count: int) -> dict[tuple[int, ...], float]:
    """The chance of each set of `count` that are drawn one by one, each with a chance proportional to exp(s / heat)."""
    out: dict[tuple[int, ...], float] = {}
    weights = np.exp(np.array(scores) / heat)
    for order in permutations(range(len(scores)), count):
        chance, left = 1.0, weights.sum()
        for one in order:
            chance *= weights[one] / left
            left -= weights[one]
        key = tuple(sorted(order))
        out[key] = out.get(key, 0.0) + chance
    return out


def test_ranks_at_a_temperature_are_draws_without_replacement(subtests: pytest.Subtests) -> None:
    """Pearson's chi-square of the sets of two of five is within 4 sigma of its mean."""
    for kind, heat in ((Confidence, 0.2), (Entropy, 0.5), (Margin, 0.1)):
        with subtests.test(kind.__name__):
            scores, num = [0.1, 0.3, 0.35, 0.5, 0.15], 2000
            policy, given = kind(steps=3, rank_temperature=heat), proposals(scores)
            found: dict[tuple[int, ...], int] = {}
            for seed in range(num):
                chosen = tuple(policy.decide(given, Progress(0, 4, 5), Counter(seed)).positions.tolist())
                found[chosen] = found.get(chosen, 0) + 1
            want = plackett_luce(scores, heat, 2)
            assert set(found) <= set(want)
            statistic = sum((found.get(key, 0) - num * chance) ** 2 / (num * chance) for key, chance in want.items())
            freedom = len(want) - 1
            assert statistic < freedom + 4 * (2 * freedom) ** 0.5
            uniform = num / len(want)
            assert sum((count - uniform) ** 2 / uniform for count in found.values()) > 20 * freedom, "scores matter"


def test_ranks_at_a_small_temperature_are_those_without_and_change_with_the_step() -> None:
    given = proposals([0.1, 0.3, 0.35, 0.5, 0.15])
    cold = Confidence(3).decide(given, Progress(0, 0, 5), Counter(1))
    for heat in (1e-4, 1e-300):
        assert (
            Confidence(3, rank_temperature=heat).decide(given, Progress(0, 0, 5), Counter(1)).positions.tolist()
            == cold.positions.tolist()
        )
    chosen = {
        tuple(Confidence(3, rank_temperature=1.0).decide(given, Progress(0, step, 5), Counter(1)).positions.tolist())
        for step in range(30)
    }
    assert len(chosen) > 5


def test_a_rank_at_a_temperature_is_a_number_that_a_trace_can_keep(subtests: pytest.Subtests) -> None:
    class Ends(Counter):
        """The smallest and the largest uniform number."""

        def uniform(self, purpose: int, positions: np.ndarray, step: int) -> np.ndarray:
            return np.array([0.0, 1 - 2.0**-53])

    for kind in (Confidence, Entropy, Margin):
        with subtests.test(kind.__name__):
            ranked = kind(rank_temperature=1.0).rank(proposals([0.5, 0.5]), Progress(0, 0, 2), Ends(0))
            assert np.isfinite(ranked).all()
            assert ranked[0] < -3 < 30 < ranked[1]


# ---- each position by itself ----------------------------------------------------------------------------------------


def test_a_position_is_committed_with_the_chance_that_its_step_has(subtests: pytest.Subtests) -> None:
    """Step s has those with times in (t_{s+1}, t_s]. With one position the decision always has it, so its step is read
    from its time; with several, they are independent.
    """
    for policy, last in ((Origin(5), LAST_TIME), (FirstHitting(5), 0.0)):
        with subtests.test(type(policy).__name__):
            num, steps, times = 1500, 5, np.linspace(1, last, 6)
            times[-1] = 0.0
            found = np.zeros(steps)
            for seed in range(num):
                (order,) = [policy.decide(proposals([0.5]), Progress(0, 0, 1), Counter(seed)).confidence]
                found[np.flatnonzero(order[0] > times[1:])[0]] += 1
            want = num * -np.diff(times)
            assert ((found - want) ** 2 / want).sum() < 4 + 4 * 8**0.5


def test_a_step_commits_all_positions_of_its_time_and_no_other(subtests: pytest.Subtests) -> None:
    for kind, last in ((Origin, LAST_TIME), (FirstHitting, 0.0)):
        with subtests.test(kind.__name__):
            for seed in range(150):
                steps, num = 6, 9
                drawn = Counter(seed).uniform(2, np.arange(num), 0)  # of purpose ORDER
                times = np.linspace(1, last, steps + 1)
                times[-1] = 0.0
                step_of = np.array([np.flatnonzero(one > times[1:])[0] for one in drawn])
                want = [np.flatnonzero(step_of == step).tolist() for step in range(steps)]
                assert run(kind(steps), num, seed) == [positions for positions in want if positions]


def test_origin_is_first_hitting_but_for_its_last_time() -> None:
    """0.001 is left for the last step, so few positions have other steps."""
    alike = [run(Origin(8), 10, seed) == run(FirstHitting(8), 10, seed) for seed in range(120)]
    assert 0.9 < np.mean(alike) < 1


# ---- proposals that wait --------------------------------------------------------------------------------------------


def test_proposals_that_wait_are_committed_from_the_left_after_all_others() -> None:
    given = proposals([0.9, 0.2, 0.8, 0.7, 0.1], [True, False, True, False, True])
    for count, want in ((1, [3]), (2, [1, 3]), (3, [0, 1, 3]), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3, 4])):
        assert np.flatnonzero(top(given.confidence, count, given.waits)).tolist() == want
    decision = Confidence(2).decide(given, Progress(0, 0, 5), Counter(0))
    assert decision.positions.tolist() == [0, 1, 3]
    assert decision.confidence.tolist() == [0.9, 0.2, 0.7], "a trace has what they are ranked by, not that they waited"


def test_only_static_schedules_see_proposals_that_wait_while_there_are_others() -> None:
    given = proposals([0.9, 0.2, 0.8], [True, False, True])
    assert given.first.positions.tolist() == [1]
    every = proposals([0.9, 0.2, 0.8], [True, True, True])
    assert every.first is every
    assert {name for name, kind in POLICIES.items() if kind.fixed_counts} == {
        "confidence",
        "entropy",
        "margin",
        "random",
    }


def test_a_deadline_takes_proposals_that_wait_last_and_drops_none_that_were_chosen() -> None:
    given = proposals([0.9, 0.2, 0.8, 0.3], [True, False, False, True])
    chosen = commit(given, np.array([True, False, False, False]))
    for count, want in ((1, [0]), (2, [0, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 3])):
        assert with_more(chosen, given, given.confidence, count).positions.tolist() == want


def test_policies_say_whether_they_rank_and_whether_they_skip_steps() -> None:
    assert {name for name, kind in POLICIES.items() if not kind.ranks} == {"random", "first_hitting", "origin"}
    assert not Threshold().skips
    assert Origin(3).skips
