"""One NELBO, many estimators: five symbols, four positions, every corruption enumerated.

The model is a random table: probabilities of each position for each set of masked positions. Letters: L positions,
V symbols.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch

from daguerre.noise.process import Absorbing
from daguerre.noise.schedule import Cosine, Linear, Polynomial, Schedule

V, L, MASK = 5, 4, 5
X0 = np.array([3, 0, 4, 0])
Masked = tuple[int, ...]
SUBSETS: list[Masked] = [m for k in range(1, L + 1) for m in itertools.combinations(range(L), k)]
RNG = np.random.default_rng(0)
TABLE: dict[Masked, np.ndarray] = {m: RNG.dirichlet(np.full(V, 0.7), size=L) for m in SUBSETS}
ALL: list[Schedule] = [Linear(), Cosine(), Polynomial(2.0), Polynomial(0.7)]
each_schedule = pytest.mark.parametrize("schedule", ALL, ids=repr)


def nats(table_LV: np.ndarray, masked: Masked) -> float:
    """The process's summed cross-entropy of the masked positions, whose distributions are the rows of a table."""
    logits, hidden = torch.from_numpy(np.log(np.pad(table_LV, ((0, 0), (0, 1)), constant_values=1.0))), X0.copy()
    hidden[list(masked)] = MASK
    found = Absorbing(MASK, Linear()).cross_entropy(
        logits[None], torch.from_numpy(X0)[None], torch.from_numpy(hidden)[None], torch.tensor([0.5])
    )
    return float(found.sum())


@functools.cache
def surprise(masked: Masked) -> float:
    """Summed cross-entropy of the masked positions, in nats."""
    return nats(TABLE[masked], masked)


def k_of_l() -> float:
    """k uniform on 1..L, exactly k masked, weight L/k."""
    return sum(np.mean([surprise(m) for m in SUBSETS if len(m) == k]) / k for k in range(1, L + 1))


def gauss(low: float, high: float, num: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(num)
    return (high - low) / 2 * nodes + (high + low) / 2, (high - low) / 2 * weights


def test_continuous_time_gives_the_same_bound_on_every_schedule() -> None:
    """t-DCE: the integral over t of weight(t) E[summed cross-entropy], with t = u^2 to tame slopes at 0."""
    u, weights = gauss(0.0, 1.0, 400)
    t = torch.from_numpy(u**2)
    for schedule in ALL:
        alpha, scale = schedule.alpha(t).numpy(), schedule.weight(t).numpy() * 2 * u
        mean = sum((1 - alpha) ** len(m) * alpha ** (L - len(m)) * surprise(m) for m in SUBSETS)
        assert float((weights * scale * mean).sum()) == pytest.approx(k_of_l(), rel=1e-6)


def test_drawing_the_masked_share_itself_gives_the_same_bound() -> None:
    """Lambda-DCE: lambda uniform, Bernoulli masks, weight 1/lambda."""
    share, weights = gauss(0.0, 1.0)
    mean = sum(share ** len(m) * (1 - share) ** (L - len(m)) * surprise(m) for m in SUBSETS)
    assert float((weights * mean / share).sum()) == pytest.approx(k_of_l(), rel=1e-10)


def test_any_order_autoregression_gives_the_same_bound() -> None:
    """AO-AR: the mean over orders of the summed cross-entropy of the next position in order."""
    total = 0.0
    for order in itertools.permutations(range(L)):
        for step in range(L):
            masked = tuple(sorted(order[step:]))
            total -= math.log(TABLE[masked][order[step], X0[order[step]]])
    assert total / math.factorial(L) == pytest.approx(k_of_l(), rel=1e-10)


def discretized(schedule: Schedule, num_steps: int) -> float:
    """The D3PM sum: KL(q(x_s given x_t, x_0), p(x_s given x_t)) over T steps, each a product over positions."""
    process, total = Absorbing(MASK, schedule), 0.0
    times = np.linspace(0.0, 1.0, num_steps + 1)
    alphas = schedule.alpha(torch.from_numpy(times)).numpy()
    truth = torch.zeros(len(SUBSETS), L, V + 1, dtype=torch.float64)
    truth[:, range(L), X0] = 1
    xt = torch.from_numpy(X0).repeat(len(SUBSETS), 1)
    for row, masked in zip(xt, SUBSETS, strict=True):
        row[list(masked)] = MASK
    guess = torch.from_numpy(np.stack([np.pad(TABLE[masked], ((0, 0), (0, 1))) for masked in SUBSETS]))
    num_masked = np.array([len(masked) for masked in SUBSETS])
    for step in range(1, num_steps + 1):
        chance = (1 - alphas[step]) ** num_masked * alphas[step] ** (L - num_masked)
        q = process.posterior(xt, truth, times[step], times[step - 1])
        p = process.posterior(xt, guess, times[step], times[step - 1])
        total += float(chance @ torch.xlogy(q, q / p).nansum((1, 2)).numpy())
    return total


@each_schedule
def test_the_discretized_sum_approaches_the_continuous_bound(schedule: Schedule) -> None:
    gaps = {steps: abs(discretized(schedule, steps) - k_of_l()) for steps in (32, 128)}
    assert gaps[128] < 0.4 * gaps[32]
    assert gaps[128] < 0.02


def test_the_discretized_sum_extrapolates_to_the_continuous_bound() -> None:
    """On the linear schedule the error is proportional to 1/T, so two sums give the limit."""
    assert 2 * discretized(Linear(), 64) - discretized(Linear(), 32) == pytest.approx(k_of_l(), abs=2e-4)


@each_schedule
def test_score_entropy_with_the_plugged_in_score_is_the_same_loss(schedule: Schedule) -> None:
    """SEDD absorb: score of y at a mask = p(y) / expm1(sigma), sigma = -log alpha; equal at every t and mask."""
    for t in (0.05, 0.4, 0.95):
        time = torch.tensor(t, dtype=torch.float64)
        alpha, slope = schedule.alpha(time).item(), schedule.alpha_prime(time).item()
        sigma_slope, ratio = -slope / alpha, alpha / (1 - alpha)
        for masked in SUBSETS:
            loss = 0.0
            for i in masked:
                log_score = np.log(TABLE[masked][i]) + math.log(ratio)
                loss += np.exp(log_score).sum() - ratio * log_score[X0[i]] + ratio * (math.log(ratio) - 1)
            assert sigma_slope * loss == pytest.approx(schedule.weight(time).item() * surprise(masked), rel=1e-9)


def test_the_bound_is_above_the_likelihood_of_a_consistent_model() -> None:
    """With the true conditionals of a joint distribution: the mean over orders of exact chain rules, -log p(x0)."""
    joint = np.random.default_rng(1).dirichlet(np.ones(V**L)).reshape((V,) * L)
    bound = 0.0
    for masked in SUBSETS:
        known = joint[tuple(slice(None) if i in masked else X0[i] for i in range(L))]
        table = np.ones((L, V))
        for axis, position in enumerate(masked):
            others = tuple(a for a in range(len(masked)) if a != axis)
            table[position] = known.sum(axis=others) / known.sum()
        bound += nats(table, masked) / len(masked) / math.comb(L, len(masked))
    assert bound == pytest.approx(-math.log(joint[tuple(X0)]), rel=1e-9)
