"""Processes undone in NumPy: beginnings and posteriors are those of PyTorch's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conftest import tiny_config
from daguerre.models.tokenizer import Tokenizer
from daguerre.noise.process import process_of
from daguerre.noise.remasking import Remasking
from daguerre.noise.reverse import reverse_of
from oracles.reverse import undone

PLAIN = replace(tiny_config(Tokenizer.default("2k")), context="full", shift=False)
CONFIGS = {
    "absorbing": PLAIN,
    "uniform": replace(PLAIN, process="uniform", time_input=True),
    "uniform, all tokens": replace(PLAIN, process="uniform", time_input=True, noise_ids=(20, 90)),
    "hybrid": replace(PLAIN, process="hybrid", time_input=True),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_reverse_is_its_process_undone(name: str) -> None:
    config, random = CONFIGS[name], np.random.default_rng(0)
    pairs = [(reverse_of(config), undone(process_of(config)))]
    if name == "absorbing":
        pairs += [(reverse_of(config, most), undone(Remasking(process_of(config), most))) for most in (0.3, 1.0)]  # type: ignore[arg-type]
    u = random.random((3, 5))
    tokens = random.integers(0, config.vocab_size, (3, 5))
    probs = random.random((3, 5, config.vocab_size))
    probs[..., [index for index in (config.mask_id,) if index is not None]] = 0
    probs /= probs.sum(-1, keepdims=True)
    if config.mask_id is not None and config.process != "uniform":
        tokens[:, ::2] = config.mask_id
    for ours, theirs in pairs:
        assert ours.mask_id == theirs.mask_id and np.array_equal(ours.prior_from(u), theirs.prior_from(u))
        for t, s in ((1.0, 0.75), (0.6, 0.1), (0.3, 0.0)):
            assert np.allclose(ours.posterior(tokens, probs, t, s), theirs.posterior(tokens, probs, t, s), atol=1e-12)
