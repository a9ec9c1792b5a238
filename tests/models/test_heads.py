"""Concept heads and the vocabulary projection in NumPy say what the modules say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from daguerre.models import heads as heads_module
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ConceptShape, ModelConfig
from daguerre.models.core.module_heads import ModuleHeads
from daguerre.models.heads import ArrayHeads, largest
from daguerre.models.model_weights import BackboneWeights

SHAPE = ConceptShape(known=8, discovered=12, rank=5, kept_known=4, kept_discovered=5)
CONFIG = ModelConfig(
    width=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
    mlp_width=16,
    max_positions=16,
    vocab_size=40,
    mask_id=3,
    eos_id=2,
    bos_id=1,
    pad_id=0,
    concepts=SHAPE,
)
CASES = {
    "plain": CONFIG,
    "untied, with biases": replace(CONFIG, tied=False, output_bias=True),
    "rows that are no concepts": replace(
        CONFIG, concepts=replace(SHAPE, bias=False, spare_known=3, spare_discovered=2)
    ),
    "all are kept": replace(CONFIG, concepts=replace(SHAPE, kept_known=8, kept_discovered=12)),
}


def both(config: ModelConfig, dtype: torch.dtype = torch.float32) -> tuple[ArrayHeads, ModuleHeads]:
    torch.manual_seed(0)
    backbone = Backbone(config).initialize(1, scale=2.0).requires_grad_(False)
    for weight in backbone.parameters():
        weight.add_(0.1 * torch.randn_like(weight))
    backbone = backbone.to(dtype)
    return ArrayHeads(BackboneWeights(backbone)), ModuleHeads(backbone)


def answers(heads: ArrayHeads | ModuleHeads) -> Iterator[np.ndarray]:
    rng, shape = np.random.default_rng(1), heads.shape
    hidden = rng.normal(scale=3.0, size=(9, CONFIG.width)).astype(np.float32)
    tokens, concepts = np.array([4, 30, 39]), np.array([0, 7, 8, 19])
    yield heads.logits(hidden)
    yield heads.known_logits(hidden)
    yield heads.weights(hidden)
    kept = heads.kept(hidden)
    yield from (kept.concepts, kept.weights, kept.residual)
    yield heads.vectors(concepts)
    yield from heads.sums(rng.random(shape.known + shape.discovered))
    yield heads.effects(tokens, np.tile(concepts, (3, 1)))
    yield heads.promoted(heads.vectors(concepts))
    yield heads.rows(tokens)
    yield heads.bias(tokens)


@pytest.mark.parametrize("rows", [heads_module.ROWS_AT_ONCE, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_numpy_says_what_the_modules_say(
    name: str, dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads_module, "ROWS_AT_ONCE", rows)
    if rows == 3:  # as of matrices that are too large to be held or multiplied at once
        monkeypatch.setattr(heads_module, "MOST_HELD", 0)
        monkeypatch.setattr(heads_module, "SMALL", 0)
    for ours, theirs in zip(*map(answers, both(CASES[name], dtype)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_of_equal_numbers_the_first_are_the_largest() -> None:
    numbers = np.array([[1.0, 3.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], [4.0, 3.0, 2.0, 1.0]], np.float32)
    assert largest(numbers, 2).tolist() == [[0, 1], [0, 1], [0, 1]]
    assert largest(numbers, 4).tolist() == [[0, 1, 2, 3]] * 3
