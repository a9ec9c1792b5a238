"""The bound of processes with random tokens in NumPy is the reference's, and so are the random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daguerre.errors import InputError
from daguerre.noise.bound import NoisyBound, Uniforms
from daguerre.noise.process import process_of
from daguerre.noise.reverse import ReverseSteps, reverse_of
from noise.test_reverse import CONFIGS

NOISY = [name for name in CONFIGS if CONFIGS[name].process != "absorbing"]


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 7, 2**63 - 5])
def test_random_numbers_are_those_of_pytorch(seed: int) -> None:
    expected = torch.rand((2, 3, 57), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert np.array_equal(Uniforms(seed).draw((2, 3, 57)), expected.numpy())


@pytest.mark.parametrize("name", NOISY)
def test_noise_and_bound_are_those_of_the_process(name: str) -> None:
    config = CONFIGS[name]
    steps, process, rng = reverse_of(config), process_of(config), np.random.default_rng(0)
    assert isinstance(steps, ReverseSteps)
    bound, times = NoisyBound(steps), np.array([1e-9, 0.1, 0.5, 0.97, 1 - 1e-9])
    x0 = rng.integers(0, config.vocab_size, (5, 40))
    x0[x0 == config.mask_id] = 30
    xt = bound.corrupt(x0, times, 7)
    given = torch.from_numpy(x0), torch.from_numpy(times)
    assert np.array_equal(xt, process.corrupt(*given, torch.Generator().manual_seed(7)).numpy())
    assert (xt != x0).any() and (xt == x0).any()
    logits = rng.normal(scale=3.0, size=(5, 40, config.vocab_size)).astype(np.float32)
    expected = process.nelbo(torch.from_numpy(logits), given[0], torch.from_numpy(xt), given[1])
    np.testing.assert_allclose(bound.nelbo(logits, x0, xt, times), expected.numpy(), rtol=1e-9, atol=1e-9)
    with pytest.raises(InputError, match="strictly between"):
        bound.nelbo(logits, x0, xt, np.ones(5))
