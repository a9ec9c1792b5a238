"""The bound of every process on a joint distribution of two positions, with all corruptions summed over.

Letters: X texts, Z corrupted texts, L = 2 positions, V tokens.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from daguerre.noise.process import Absorbing, Hybrid, Process, Uniform
from daguerre.noise.schedule import Cosine, Polynomial
from enumerated import (
    ENTROPY,
    JOINT,
    MASK,
    NOISE,
    NOISY,
    NUM_SYMBOLS,
    PROCESSES,
    TEXTS,
    L,
    V,
    exact_denoiser,
    marginal_of,
    transitions,
)

RNG = np.random.default_rng(0)
GUESS = torch.zeros(len(NOISY), L, V, dtype=torch.float64)
GUESS[..., :NUM_SYMBOLS] = torch.from_numpy(RNG.dirichlet(np.full(NUM_SYMBOLS, 0.7), size=(len(NOISY), L)))
PROB_X = JOINT[TEXTS[:, 0], TEXTS[:, 1]]
MORE: dict[str, Process] = PROCESSES | {
    "absorbing, cosine": Absorbing(MASK, Cosine()),
    "uniform, polynomial": Uniform(NOISE, Polynomial(1.5)),
    "hybrid, gamma 1.6": Hybrid(NOISE, MASK, p_uniform=0.5, gamma=1.6),
}
each_process = pytest.mark.parametrize("process", MORE.values(), ids=MORE)


def exact(process: Process, t: float) -> Tensor:
    """The best predictions (Z, L, V) at time t."""
    return exact_denoiser(process, NOISY, t)


def fixed_guess(process: Process, t: float) -> Tensor:
    """Some predictions (Z, L, V), whatever the time."""
    return GUESS


def flat_at_ends(u: np.ndarray) -> np.ndarray:
    """Times that are dense where the hybrid's shares change fast, near 0 and 1."""
    return u**3 * (10 - 15 * u + 6 * u**2)


def bound(process: Process, denoiser: object, num: int = 96) -> Tensor:
    """The integral of the NELBO over t, (X,): Gauss-Legendre in u, where t = flat_at_ends(u)."""
    nodes, weights = np.polynomial.legendre.leggauss(num)
    u = (nodes + 1) / 2
    times, slope = flat_at_ends(u), 30 * u**2 * (1 - u) ** 2
    total = torch.zeros(len(TEXTS), dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(len(TEXTS)), torch.arange(len(NOISY)))
    for t, weight in zip(times.tolist(), (weights / 2 * slope).tolist(), strict=True):
        chance = marginal_of(process, t)
        log_probs = denoiser(process, t).log()  # type: ignore[operator]
        x, z = pairs[chance.flatten() > 0].T
        nats = process.nelbo(log_probs[z], TEXTS[x], NOISY[z], torch.full((len(x),), t, dtype=torch.float64)).sum(1)
        total.index_add_(0, x, weight * chance[x, z] * nats)
    return total


def discretized(process: Process, num_steps: int) -> Tensor:
    """Summed KL(q(x_s given x_t, x_0), p(x_s given x_t)) of a chain of steps with the fixed guess, (X,)."""
    times = flat_at_ends(np.linspace(0.0, 1.0, num_steps + 1))
    clean = torch.eye(V, dtype=torch.float64)[TEXTS]
    total = torch.zeros(len(TEXTS), dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(len(TEXTS)), torch.arange(len(NOISY)))
    for s, t in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        chance = marginal_of(process, t)
        x, z = pairs[chance.flatten() > 0].T
        q = process.posterior(NOISY[z], clean[x], t, s)
        p = process.posterior(NOISY[z], GUESS[z], t, s)
        total.index_add_(0, x, chance[x, z] * torch.xlogy(q, q / p).nansum((1, 2)))
    return total


@each_process
def test_with_the_exact_denoiser_the_mean_bound_is_the_entropy(process: Process) -> None:
    """The chain is then reversed exactly: in the mean over texts nothing is lost."""
    assert float(PROB_X @ bound(process, exact)) == pytest.approx(ENTROPY, rel=1e-5)


@each_process
def test_any_other_denoiser_has_a_larger_bound(process: Process) -> None:
    def blurred(process: Process, t: float) -> Tensor:
        return 0.95 * exact(process, t) + 0.05 * GUESS

    assert float(PROB_X @ bound(process, fixed_guess, 48)) > ENTROPY + 0.5
    assert ENTROPY + 1e-3 < float(PROB_X @ bound(process, blurred, 48)) < ENTROPY + 0.2


@pytest.mark.parametrize("name", ["uniform", "hybrid"])
def test_what_a_token_says_of_itself_is_not_part_of_the_prediction(name: str) -> None:
    """p(x_0(i) given all of x_t), which a model trained by plain cross-entropy gives, is not the minimum."""
    process = PROCESSES[name]

    def with_itself(process: Process, t: float) -> Tensor:
        probs = exact(process, t) * transitions(process, t)[:, NOISY].permute(1, 2, 0)
        total = probs.sum(-1, keepdim=True)
        return torch.where(total > 0, probs / total, GUESS)

    assert float(PROB_X @ bound(process, with_itself)) > ENTROPY + 0.05


@pytest.mark.parametrize("name", PROCESSES)
def test_a_finely_cut_chain_has_the_same_bound(name: str) -> None:
    """The error is proportional to 1/T, so two sums give the limit."""
    process = PROCESSES[name]
    limit = bound(process, fixed_guess)
    coarse, fine = discretized(process, 80), discretized(process, 160)
    assert (fine - limit).abs().max() < 0.51 * (coarse - limit).abs().max() < 0.05
    assert torch.allclose(2 * fine - coarse, limit, atol=3e-4)
