"""Derivatives of cores in NumPy are those of autograd, for every kind of core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ConceptShape, Experts, ModelConfig, Windows
from daguerre.models.forward import Edit, Forward, Logits
from daguerre.models.heads import ArrayHeads
from daguerre.models.model_weights import BackboneWeights
from daguerre.scoring.attribution import ArrayLine, integrated_gradients
from daguerre.scoring.embedding import clean_layout
from daguerre.scoring.gradients import ModuleLine

PLAIN = ModelConfig(
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    mlp_width=48,
    max_positions=64,
    vocab_size=64,
    mask_id=3,
    eos_id=2,
    bos_id=1,
    pad_id=0,
    concepts=ConceptShape(known=8, discovered=12, rank=5, kept_known=4, kept_discovered=5),
)
GPT = {"norm": "layer", "gated_mlp": False, "qk_norm": False}
FULL = {"context": "full", "shift": False}
BIASES = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
ADAPTIVE = {**GPT, **FULL, "norm_bias": False, "adaptive_width": 24, "activation": "gelu_tanh"}
WINDOWS = Windows(size=4, layers=(0,), rope_theta=100.0)
CASES: dict[str, dict[str, object]] = {
    "plain": {},
    "positions that are learned": {**GPT, **BIASES, "activation": "gelu", "positions": "learned"},
    "norms behind": {"norm_placement": "post", "qk_norm_scope": "all"},
    "norms before and behind, windows": {
        "norm_placement": "both",
        "activation": "gelu_tanh",
        "embedding_scale": 5.6,
        "attention_scale": 0.2,
        "windows": WINDOWS,
        "mask_id": None,
    },
    "clipped, partly rotated": {"clip_qkv": 0.5, "rope_share": 0.5},
    "blocks": {"context": "block", "block_size": 4, "shift": False},
    "experts": {"experts": Experts(num=8, per_token=3, width=16, normalized=True, scale=1.5)},
    "experts in groups": {
        "experts": Experts(
            num=8,
            per_token=2,
            width=16,
            shared_width=16,
            first_layer=1,
            score="sigmoid",
            bias=True,
            num_groups=4,
            kept_groups=2,  # type: ignore[arg-type]
        )
    },
    "a level that is added": {**FULL, "time_input": True},
    "adaptive norms": ADAPTIVE,
    "adaptive norms, a level": {**ADAPTIVE, "time_input": True},
    "untied": {"tied": False, "output_bias": True},
}
TOKENS, TOKEN = np.array([1, 30, 21, 55, 3, 40, 41, 22, 60, 25, 33, 47]), 33


def made(config: ModelConfig) -> Backbone:
    torch.manual_seed(0)
    backbone = Backbone(config).initialize(1, zero_outputs=False, scale=3.0).eval().requires_grad_(False)
    for weight in backbone.parameters():
        if weight.dim() < 2:
            weight.add_(0.2 * torch.randn_like(weight))
    return backbone


def edit_of(num: int) -> Edit:
    """One that adds, scales and bans, at known and at discovered concepts."""
    rng, concepts = np.random.default_rng(0), np.arange(0, 20, 3, dtype=np.int32)
    write, mask, shift, scale = (
        rng.normal(size=(rows, columns)).astype(np.float32)
        for rows, columns in ((len(concepts), 32), (len(concepts), 64), (num, len(concepts)), (num, len(concepts)))
    )
    return Edit(concepts, write, np.abs(mask), shift, scale, np.ones_like(scale))


@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_autograd(name: str, subtests: pytest.Subtests) -> None:
    config = replace(PLAIN, **CASES[name])  # type: ignore[arg-type]
    backbone = made(config)
    level = 0.4 if config.time_input else None
    layout = clean_layout(config, len(TOKENS))
    forward = Forward(TOKENS, layout, None, np.array([9], np.int32), Logits(), level)
    weights = BackboneWeights(backbone)
    for edit in (None, edit_of(1)):
        with subtests.test(edit=edit is not None):
            ours = ArrayLine(weights, ArrayHeads(weights), forward, TOKEN, edit)
            theirs = ModuleLine(backbone, forward, TOKEN, edit)
            assert np.array_equal(ours.embeddings(TOKENS), theirs.embeddings(TOKENS))
            x = theirs.embeddings(TOKENS) * np.array([1.0, 0.5], np.float32)[:, None, None]
            np.testing.assert_allclose(ours.logits(x), theirs.logits(x), rtol=1e-4, atol=1e-5)
            expected = theirs.gradients(x)
            np.testing.assert_allclose(ours.gradients(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
            parts = [integrated_gradients(line, config, TOKENS, 8).scores for line in (ours, theirs)]
            np.testing.assert_allclose(*parts, rtol=0, atol=1e-5 * np.abs(parts[1]).max())
