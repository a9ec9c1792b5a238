"""The absorbing process against Bayes' rule on explicit transition matrices.

Letters: V tokens and the mask, so matrices are (V+1, V+1): row the earlier token, column the later one.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from daguerre.noise.process import Absorbing
from daguerre.noise.schedule import Cosine, Linear, Polynomial, Schedule

V, MASK = 5, 5
SCHEDULES = pytest.mark.parametrize("schedule", [Linear(), Cosine(), Polynomial(2.0)], ids=repr)


def alpha(schedule: Schedule, t: float) -> float:
    return schedule.alpha(torch.tensor(t, dtype=torch.float64)).item()


def transition(schedule: Schedule, s: float, t: float) -> np.ndarray:
    """q(x_t given x_s): a token survives with probability alpha_t / alpha_s, a mask stays one."""
    survive = alpha(schedule, t) / alpha(schedule, s)
    matrix = survive * np.eye(V + 1)
    matrix[:, MASK] += 1 - survive
    return matrix


def bayes_posterior(schedule: Schedule, x_t: int, x_0: int, t: float, s: float) -> np.ndarray:
    """q(x_s given x_t, x_0) = q(x_t given x_s) q(x_s given x_0) / q(x_t given x_0)."""
    forward = transition(schedule, s, t)[:, x_t] * transition(schedule, 0.0, s)[x_0]
    return forward / forward.sum()


def test_the_prior_is_all_masks() -> None:
    assert Absorbing(MASK).prior_from(torch.rand(2, 3)).tolist() == [[MASK] * 3] * 2


@SCHEDULES
def test_corruption_masks_each_token_with_the_schedule_s_probability(schedule: Schedule) -> None:
    x0 = torch.arange(V).repeat(4000)[None].expand(3, -1)
    times = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    xt = Absorbing(MASK, schedule).corrupt(x0, times, torch.Generator().manual_seed(0))
    share = (xt == MASK).double().mean(1)
    expected = 1 - schedule.alpha(times)
    assert torch.allclose(share, expected, atol=4 * 0.5 / x0.shape[1] ** 0.5)
    assert torch.equal(xt[xt != MASK], x0[xt != MASK])


def test_nothing_is_masked_at_zero_everything_at_one_and_draws_repeat() -> None:
    process, x0 = Absorbing(MASK), torch.randint(V, (2, 50), generator=torch.Generator().manual_seed(1))
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    xt = process.corrupt(x0, ends, torch.Generator().manual_seed(2))
    assert torch.equal(xt[0], x0[0])
    assert (xt[1] == MASK).all()
    half = torch.full((2,), 0.5, dtype=torch.float64)
    first, again = (process.corrupt(x0, half, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)


@SCHEDULES
def test_the_posterior_of_known_tokens_is_bayes_rule(schedule: Schedule) -> None:
    process = Absorbing(MASK, schedule)
    steps = [(1.0, 0.0), (1.0, 0.5), (0.7, 0.4), (0.02, 0.01), (0.3, 0.0)]
    for (t, s), x_0 in itertools.product(steps, range(V)):
        one_hot = torch.zeros(1, 1, V + 1, dtype=torch.float64)
        one_hot[..., x_0] = 1
        for x_t in {x_0, MASK} if t < 1 else {MASK}:
            ours = process.posterior(torch.tensor([[x_t]]), one_hot, t, s)[0, 0].numpy()
            assert ours == pytest.approx(bayes_posterior(schedule, x_t, x_0, t, s), abs=1e-12)


@SCHEDULES
def test_the_posterior_of_a_prediction_is_the_mean_over_its_tokens(schedule: Schedule) -> None:
    process = Absorbing(MASK, schedule)
    probs = np.append(np.random.default_rng(0).dirichlet(np.ones(V)), 0.0)
    ours = process.posterior(torch.tensor([[MASK]]), torch.from_numpy(probs)[None, None], 0.8, 0.3)[0, 0].numpy()
    expected = sum(probs[x] * bayes_posterior(schedule, MASK, x, 0.8, 0.3) for x in range(V))
    assert ours == pytest.approx(expected, abs=1e-12)
    assert ours.sum() == pytest.approx(1.0)


def test_the_posterior_leaves_its_arguments_alone() -> None:
    probs = torch.full((1, 2, V + 1), 1 / V, dtype=torch.float64)
    probs[..., MASK] = 0
    before = probs.clone()
    Absorbing(MASK).posterior(torch.tensor([[MASK, 1]]), probs, 0.5, 0.2)
    assert torch.equal(probs, before)


def test_the_bound_weighs_masks_by_the_schedule() -> None:
    x0, xt = torch.ones(2, 1, dtype=torch.int64), torch.full((2, 1), MASK)
    given = torch.zeros(2, 1, V + 1), x0, xt, torch.tensor([0.25, 0.5])
    ratio = Absorbing(MASK).nelbo(*given) / Absorbing(MASK).cross_entropy(*given)
    assert ratio[:, 0].tolist() == pytest.approx([4.0, 2.0])
