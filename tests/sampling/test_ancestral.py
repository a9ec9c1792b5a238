"""Ancestral sampling with the exact denoiser of a small joint distribution, and its promises about a canvas.

Letters: Z pairs of tokens, S steps, B samples, L = 2 positions, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from daguerre.canvas import Canvas
from daguerre.decoding.modes.ancestral import Probs, Sampler, step_tokens, times
from daguerre.errors import InputError
from daguerre.models.session import Asking
from daguerre.noise.process import Absorbing, Hybrid, Uniform
from daguerre.sampling.random import NOISE as BEGIN
from daguerre.sampling.random import TOKEN, Counter
from daguerre.trace import Event, Trace
from driving import run_steps
from enumerated import JOINT, MASK, NOISE, NOISY, PROCESSES, V, exact_denoiser, transitions
from oracles.reverse import undone

Denoise = Callable[[Tensor, float], Tensor]


def denoiser(name: str) -> Denoise:
    return lambda tokens, t: exact_denoiser(PROCESSES[name], tokens, t)


def end_of_chain(name: str, num_steps: int) -> Tensor:
    """The distribution of the two tokens that S steps end with, (V, V): every path summed over."""
    reverse = PROCESSES[name]
    start = transitions(PROCESSES[name], 1.0)[0]
    out = (start[:, None] * start).flatten()
    for step in range(num_steps):
        t, s = 1 - step / num_steps, 1 - (step + 1) / num_steps
        each_position = reverse.posterior(NOISY, denoiser(name)(NOISY, t), t, s)
        possible = out > 0
        moves = each_position[possible, 0, :, None] * each_position[possible, 1, None, :]
        out = (out[possible] @ moves.flatten(1)).clamp_min(0)
    return out.view(V, V)


def distance(a: Tensor, b: Tensor) -> float:
    """Total variation."""
    return float((a - b).abs().sum() / 2)


def test_with_more_steps_the_chain_has_the_joint_distribution(subtests: pytest.Subtests) -> None:
    """Positions are drawn on their own within a step; that is what the error comes from."""
    for name in PROCESSES:
        with subtests.test(name):
            few, many = (distance(end_of_chain(name, steps), JOINT) for steps in (8, 128))
            assert distance(end_of_chain(name, 1), JOINT) > 0.2
            assert many < 0.2 * few
            assert many < 0.01


def test_many_samples_follow_the_chain(subtests: pytest.Subtests) -> None:
    num, num_steps = 30_000, 6
    place = np.arange(2 * num).reshape(num, 2)
    even = torch.full((V * V,), 1 / V**2, dtype=torch.float64)
    for name in PROCESSES:
        with subtests.test(name):
            reverse, rng = undone(PROCESSES[name]), Counter(seed=5)
            tokens = reverse.prior_from(rng.uniform(BEGIN, place, 0))
            for step in range(num_steps):
                t, s = 1 - step / num_steps, 1 - (step + 1) / num_steps
                probs = denoiser(name)(torch.from_numpy(tokens), t).numpy()
                tokens = step_tokens(reverse, tokens, probs, t, s, rng.uniform(TOKEN, place, step))
            share = torch.bincount(torch.from_numpy(tokens @ np.array([V, 1])), minlength=V * V).double() / num
            expected = end_of_chain(name, num_steps).flatten()
            sigma = (expected * (1 - expected) / num).sqrt()
            assert ((share - expected).abs() <= 4 * sigma + 1e-12).all()
            assert distance(share, expected) < 0.25 * distance(share, even)


# A canvas of six positions, two gaps in which the pairs of positions 1, 2 and 3, 4 each follow the joint distribution.
GIVEN = 4


def pairs(name: str) -> Probs:
    """Predictions for the canvas [4 . . . . 4], whatever its fixed tokens are."""

    def probs(tokens: np.ndarray, t: float, positions: np.ndarray) -> Asking[np.ndarray]:
        yield from ()
        assert positions.tolist() == [1, 2, 3, 4]
        return exact_denoiser(PROCESSES[name], torch.tensor(tokens[1:5]).view(2, 2), t).view(4, V).numpy()

    return probs


def canvas(placeholder: int = 0) -> Canvas:
    return Canvas.lay_out([[GIVEN], [MASK]], [4], placeholder).at((1, 5))


def run(name: str, start: Canvas, seed: int = 0, num_steps: int = 8) -> tuple[list[Event], Canvas]:
    return run_steps(Sampler(undone(PROCESSES[name]), pairs(name), times(num_steps)).run(start, Counter(seed)))


def test_a_run_fills_the_span_and_never_touches_what_is_given() -> None:
    """The given mask at the right end is the caller's own token."""
    for name, seed in product(PROCESSES, range(6)):
        events, final = run(name, canvas(), seed)
        assert len(events) == 8 + (PROCESSES[name].mask_id is None), (name, seed)
        assert all(e.canvas.tokens[[0, 5]].tolist() == [GIVEN, MASK] for e in events), (name, seed)
        assert not final.open.any(), (name, seed)
        assert not (final.tokens[1:5] == MASK).any(), (name, seed)
        assert np.array_equal(events[-1].canvas.tokens, final.tokens), (name, seed)


def test_the_same_seed_gives_the_same_text_and_the_placeholder_is_not_read(subtests: pytest.Subtests) -> None:
    for name in PROCESSES:
        with subtests.test(name):
            first, again, other = (run(name, canvas(p), 3)[1].tokens.tolist() for p in (0, 0, 2))
            assert first == again == other
            assert len({tuple(run(name, canvas(), seed)[1].tokens.tolist()) for seed in range(10)}) > 3


def test_a_run_is_the_steps_of_its_positions(subtests: pytest.Subtests) -> None:
    """Position by position the same tokens as drawing from the posterior directly."""
    for name in PROCESSES:
        with subtests.test(name):
            rng, place = Counter(9), np.arange(1, 5)
            tokens = undone(PROCESSES[name]).prior_from(rng.uniform(BEGIN, place, 0))[None]
            states = []
            for step in range(8):
                t, s = 1 - step / 8, 1 - (step + 1) / 8
                probs = exact_denoiser(PROCESSES[name], torch.from_numpy(tokens).view(2, 2), t).view(1, 4, V).numpy()
                tokens = step_tokens(
                    undone(PROCESSES[name]), tokens, probs, t, s, rng.uniform(TOKEN, place, step)[None]
                )
                states.append(tokens[0].tolist())
            events, _ = run(name, canvas(), 9)
            shown = [np.where(e.canvas.open, MASK, e.canvas.tokens)[1:5].tolist() for e in events]
            assert shown[-8:] == states


def test_a_run_s_trace_replays_and_survives_json(subtests: pytest.Subtests) -> None:
    for name in PROCESSES:
        with subtests.test(name):
            start = canvas()
            events, final = run(name, start, 1)
            trace = Trace.from_json(Trace.record(start, events).to_json())
            replayed = list(trace.replay(start))
            for event, now in zip(events, replayed, strict=True):
                assert np.array_equal(event.canvas.tokens, now.tokens)
                assert np.array_equal(event.canvas.open, now.open)
            assert np.array_equal(replayed[-1].tokens, final.tokens)


def test_every_kind_of_change_occurs() -> None:
    """Masks are filled once; uniform noise is replaced; the hybrid fills, reopens and replaces."""
    seen = {}
    for name in PROCESSES:
        decisions = [e.decision for seed in range(15) for e in run(name, canvas(), seed)[0]]
        seen[name] = (any(len(d.reopen) for d in decisions), any(len(d.replace) for d in decisions))
    assert seen == {
        "absorbing": (False, False),
        "uniform": (False, True),
        "hybrid": (True, True),
    }


def test_only_the_active_span_is_written() -> None:
    two = Canvas.lay_out([[4], [4], [4]], [1, 1], 0).at((1, 2))
    even = torch.tensor([0, 0.25, 0.25, 0.25, 0.25, 0], dtype=torch.float64)

    def probs(tokens: np.ndarray, t: float, positions: np.ndarray) -> Asking[np.ndarray]:
        yield from ()
        return even.expand(len(positions), V).numpy()

    events, _ = run_steps(Sampler(undone(Absorbing(MASK)), probs, times(3)).run(two, Counter(0)))
    assert events[-1].canvas.open.tolist() == [False, False, False, True, False]
    with pytest.raises(InputError, match="all gaps"):
        run_steps(Sampler(undone(Uniform(NOISE)), probs, times(3)).run(two, Counter(0)))


def test_a_run_without_steps_is_refused_and_without_open_positions_is_empty() -> None:
    with pytest.raises(InputError, match="num_steps"):
        run("uniform", canvas(), num_steps=0)
    *_, full = (e.canvas for e in run("hybrid", canvas())[0])
    assert run("hybrid", full)[0] == []


def test_the_denoiser_sees_masks_at_open_positions_and_the_time() -> None:
    seen: list[tuple[list[int], float]] = []

    def probs(tokens: np.ndarray, t: float, positions: np.ndarray) -> Asking[np.ndarray]:
        seen.append((tokens.tolist(), t))
        return (yield from pairs("hybrid")(tokens, t, positions))

    run_steps(Sampler(undone(Hybrid(NOISE, MASK)), probs, times(4)).run(canvas(), Counter(0)))
    assert [t for _, t in seen] == [1.0, 0.75, 0.5, 0.25]
    assert seen[0][0] == [GIVEN, MASK, MASK, MASK, MASK, MASK]
