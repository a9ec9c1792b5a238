"""ReMDM: tokens become masks again, and the distributions of the process stay what they were."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from daguerre.canvas import Canvas
from daguerre.decoding.modes.ancestral import Sampler, times
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.models.session import Asking
from daguerre.noise.process import Absorbing
from daguerre.noise.remasking import Remasking
from daguerre.noise.schedule import Cosine
from daguerre.sampling.random import Counter
from driving import run_steps
from enumerated import JOINT, MASK, NOISY, V, exact_denoiser
from oracles.reverse import undone

STEPS = [(1.0, 0.8), (0.9, 0.5), (0.5, 0.4), (0.3, 0.29), (0.2, 0.0)]
PROCESS = Absorbing(MASK)


def test_every_step_keeps_the_distribution_of_the_process(subtests: pytest.Subtests) -> None:
    processes = [PROCESS, Absorbing(MASK, Cosine())]
    for step, most, process in product(STEPS, (0.0, 0.05, 0.3, 1.0), processes):
        with subtests.test(step=step, most=most, schedule=type(process.schedule).__name__):
            check_step(*step, most, process)


def check_step(t: float, s: float, most: float, process: Absorbing) -> None:
    """Where x_0 is known, x_t from q(x_t given x_0) becomes x_s from q(x_s given x_0)."""
    alpha_t, alpha_s = process.schedule.alpha(torch.tensor([t, s], dtype=torch.float64)).tolist()
    clean = torch.zeros(V, dtype=torch.float64)
    clean[2] = 1
    before, after = clean * alpha_t, clean * alpha_s
    before[MASK], after[MASK] = 1 - alpha_t, 1 - alpha_s
    moves = Remasking(process, most).posterior(torch.arange(V)[None], clean.expand(1, V, V), t, s)[0]
    assert torch.allclose(before @ moves, after, atol=1e-12)
    assert (moves > -1e-12).all()
    assert torch.allclose(moves.sum(-1), torch.ones(V, dtype=torch.float64))


@pytest.mark.parametrize(("t", "s"), STEPS)
def test_a_step_is_the_published_one(t: float, s: float) -> None:
    """ReMDM, eq. 6 with the rule cap: sigma = min(eta, (1 - alpha_s) / alpha_t), alpha_t = 1 - t."""
    clean, eta = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(V))), 0.07
    clean[MASK] = 0
    clean /= clean.sum()
    sigma = min(eta, s / (1 - t)) if t < 1 else eta
    moves = Remasking(PROCESS, eta).posterior(torch.arange(V)[None], clean.expand(1, V, V), t, s)[0]
    for token in range(V):
        want = torch.zeros(V, dtype=torch.float64)
        if token == MASK:
            want = clean * ((1 - s) - (1 - sigma) * (1 - t)) / t
            want[MASK] = (s - sigma * (1 - t)) / t
        else:
            want[token], want[MASK] = 1 - sigma, sigma
        assert torch.allclose(moves[token], want, atol=1e-12)


def test_without_remasking_it_is_the_process_itself() -> None:
    clean = exact_denoiser(PROCESS, NOISY, 0.5)
    for t, s in STEPS:
        assert torch.equal(Remasking(PROCESS, 0.0).posterior(NOISY, clean, t, s), PROCESS.posterior(NOISY, clean, t, s))


def end_of_chain(reverse: Remasking, num_steps: int) -> torch.Tensor:
    """The distribution (V, V) that a chain ends with, every path summed over."""
    out = torch.zeros(V * V, dtype=torch.float64)
    out[MASK * V + MASK] = 1
    for t, s in zip(times(num_steps), times(num_steps)[1:], strict=False):
        each = reverse.posterior(NOISY, exact_denoiser(PROCESS, NOISY, t), t, s)
        out = out @ (each[:, 0, :, None] * each[:, 1, None, :]).flatten(1)
    return out.view(V, V)


def test_with_more_steps_the_chain_has_the_joint_distribution() -> None:
    """Positions are drawn on their own within a step; remasking as often as a step is long adds no other error."""
    few, many = (float((end_of_chain(Remasking(PROCESS, 2 / num), num) - JOINT).abs().sum()) for num in (8, 128))
    assert many < 0.2 * few
    assert many < 0.03


def test_a_run_reopens_positions_and_ends_full() -> None:
    def probs(tokens: np.ndarray, t: float, positions: np.ndarray) -> Asking[np.ndarray]:
        yield from ()
        return exact_denoiser(PROCESS, torch.from_numpy(tokens[1:3])[None], t)[0].numpy()

    start = Canvas.lay_out([[4], [MASK]], [2], 0).at((1, 3))
    reopened = 0
    for seed in range(20):
        runs = []
        for steady in (True, False):
            sampler = Sampler(undone(Remasking(PROCESS, 0.4)), probs, times(12), steady=steady)
            events, last = run_steps(sampler.run(start, Counter(seed)))
            runs.append([(event.canvas.tokens.tolist(), event.canvas.open.tolist()) for event in events])
            assert not last.open.any() and last.tokens[[0, 3]].tolist() == [4, MASK]
        reopened += sum(len(event.decision.reopen) for event in events)
        assert runs[0] == runs[1]
    assert reopened > 10


def test_a_request_may_ask_for_it(models: dict[str, Model]) -> None:
    model, options = models["full_unshifted"], {"mode": "ancestral", "temperature": 1.0, "seed": 2}
    plain = model.generate("x = 1\n", 16, min_tokens=16, **options)
    again = model.generate("x = 1\n", 16, min_tokens=16, remask=0.3, **options)
    assert len(again.tokens) == 16 and again.text != plain.text
    changes = [len(event.decision.reopen) for event in again.trace.steps]
    assert sum(changes) > 0
    with pytest.raises(InputError, match="from 0 to 1"):
        Remasking(PROCESS, 1.5)
