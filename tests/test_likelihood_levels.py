"""Bounds of models whose noise level is an input, against sums over all masks and all corruptions of a short text.

Letters: L positions, V tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.noise.process import process_of
from daguerre.scoring.likelihood import score_tokens

PAD, BOS, MASK, EOS = range(4)
NUM_SYMBOLS = 4
SYMBOLS = range(EOS, EOS + NUM_SYMBOLS)
ADAPTIVE: dict[str, Any] = {"norm": "layer", "norm_bias": False, "adaptive_width": 12, "qk_norm": False}
ADAPTIVE |= {"tied": False, "output_bias": True}
CORES: dict[str, dict[str, Any]] = {"time added": {}, "adaptive norms": ADAPTIVE}
each_core = pytest.mark.parametrize("core", CORES)


def model(core: str, scale: float = 2.5, **facts: Any) -> TorchBackend:
    """A random model whose level matters; with a scale of 2.5 its mean top probability is about one half."""
    values = {
        "vocab_size": EOS + NUM_SYMBOLS, "width": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1,
        "mlp_width": 48, "max_positions": 16, "mask_id": MASK, "eos_id": EOS, "bos_id": BOS, "pad_id": PAD,
        "reserved_ids": tuple(range(EOS)), "context": "full", "shift": False, "time_input": True,
    }  # fmt: skip
    config = ModelConfig(**(values | CORES[core] | facts))
    backbone = Backbone(config).initialize(1, zero_outputs=False, scale=scale).eval().requires_grad_(False)
    for name, weight in backbone.named_parameters():
        if name.startswith(("time_input", "level_embedding", "output")):
            weight.mul_(scale)
    return TorchBackend(backbone)


def log_probs(backend: TorchBackend, tokens: Sequence[Sequence[int]], levels: Sequence[float]) -> Tensor:
    """log p of clean tokens, float64 (texts, L, V)."""
    num = len(tokens[0])
    layout = Layout(np.arange(num), np.full(num, num, dtype=np.int32), 0)
    wanted = np.arange(num, dtype=np.int32)
    batch = [Forward(np.array(one), layout, None, wanted, Logits(), t) for one, t in zip(tokens, levels, strict=True)]
    logits = np.stack([answer.logits for answer in backend.forward(batch) if answer.logits is not None])
    return torch.from_numpy(logits).double().log_softmax(-1)


def bound_by_enumeration(backend: TorchBackend, text: list[int], given: int) -> float:
    """Mean over k of the mean over all masks of k tokens of n/k times the cross-entropy; the level is k/n."""
    places, total = range(given, len(text)), 0.0
    for k in range(1, len(places) + 1):
        masks = list(itertools.combinations(places, k))
        for mask in masks:
            shown = [MASK if i in mask else token for i, token in enumerate(text)]
            (logs,) = log_probs(backend, [shown], [k / len(places)])
            total -= sum(float(logs[i, text[i]]) for i in mask) / k / len(masks)
    return total


@each_core
@pytest.mark.parametrize("given", [1, 3])
def test_the_bound_of_a_masked_model_has_the_share_that_is_masked_as_its_level(core: str, given: int) -> None:
    backend, text = model(core), [BOS, 4, 3, 6, 5, 4]
    exact = bound_by_enumeration(backend, text, given)
    scores = score_tokens(backend, text, kind="elbo", given=given, samples=3000, seed=2)
    assert abs(scores.value - exact) < 4 * scores.stderr + 1e-4
    assert scores.stderr < 0.03 * exact
    low, high = log_probs(backend, [text, text], [0.1, 0.9])[..., EOS:]
    assert (low - high).abs().max() > 0.3


def bound_by_integral(backend: TorchBackend, text: tuple[int, int], drawn: Sequence[int], num: int) -> float:
    """The NELBO's integrand summed over all corruptions, and integrated over (0, 1): Gauss-Legendre in u with
    t = u^2 (3 - 2 u), which is dense at the ends.
    """
    nodes, weights = np.polynomial.legendre.leggauss(num)
    u, process = (nodes + 1) / 2, process_of(backend.config)
    times = np.repeat(u**2 * (3 - 2 * u), len(drawn) ** 2)
    weights = np.repeat(weights / 2 * 6 * u * (1 - u), len(drawn) ** 2)
    noisy = np.tile(list(itertools.product(drawn, repeat=2)), (num, 1))
    chance = (times[:, None] / len(drawn) + (1 - times[:, None]) * (noisy == text)).prod(1)
    logits = log_probs(backend, [[BOS, *one] for one in noisy], times)[:, 1:]
    clean = torch.tensor([text]).expand(len(noisy), -1)
    nats = process.nelbo(logits, clean, torch.from_numpy(noisy), torch.from_numpy(times)).sum(1)
    return float((weights * chance) @ nats.numpy())


@each_core
@pytest.mark.parametrize("noise_ids", [None, (0, EOS + NUM_SYMBOLS)])
def test_the_bound_of_uniform_noise_is_its_integral(core: str, noise_ids: tuple[int, int] | None) -> None:
    """Also where noise draws ids that are never predicted."""
    backend = model(core, 1.0, process="uniform", mask_id=None, noise_ids=noise_ids)
    exact = bound_by_integral(backend, (4, 6), range(*noise_ids) if noise_ids else SYMBOLS, 24)
    scores = score_tokens(backend, [BOS, 4, 6], kind="elbo", samples=3000, seed=3)
    assert abs(scores.value - exact) < 4 * scores.stderr + 1e-3
    assert scores.stderr < 0.05 * exact


@each_core
def test_the_bounds_of_all_texts_claim_no_more_probability_than_there_is(core: str) -> None:
    backend = model(core, 1.0, process="uniform", mask_id=None)
    total = sum(
        math.exp(-bound_by_integral(backend, text, SYMBOLS, 16)) for text in itertools.product(SYMBOLS, SYMBOLS)
    )
    assert 0.05 < total < 1
