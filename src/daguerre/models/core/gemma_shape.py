"""The shape of DiffusionGemma's core (`models.core.gemma`), beyond what every backbone has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError
from daguerre.models.core.limits import GEMMA, check

FIXED: dict[str, Any] = {
    "context": "causal",
    "shift": False,
    "process": "uniform",
    "time_input": False,
    "adaptive_width": 0,
    "tied": True,
    "gated_mlp": True,
    "qkv_bias": False,
    "out_bias": False,
    "mlp_bias": False,
    "norm": "rms",
    "norm_placement": "pre",
    "qk_norm": True,
    "qk_norm_scope": "head",
    "clip_qkv": None,
    "positions": "rotary",
    "rope_share": 1.0,
    "rope_scaling": None,
    "embedding_scale": 1.0,
    "attention_scale": None,
}
"""Fields of a `ModelConfig` that have no other value in this core."""


@dataclass(frozen=True, kw_only=True)
class GemmaShape:
    """Two kinds of layers, sliding and global, which `windows` of a `ModelConfig` tells apart. Its general head_width,
    num_kv_heads and rope_theta are those of the sliding ones; its mlp_width is that of the MLP beside the experts, and
    its block_size is the length of a canvas.

    global_head_width, global_kv_heads, global_rope_theta   of the global layers
    global_rope_share  share of the pairs of numbers of a head that is rotated there, those of the highest frequencies
    softcap            a logit x becomes softcap tanh(x / softcap)
    """

    global_head_width: int
    global_kv_heads: int
    global_rope_theta: float = 1_000_000.0
    global_rope_share: float = 0.25
    softcap: float = 30.0

    def __post_init__(self) -> None:
        check(self, GEMMA, "gemma: ")
        if self.global_head_width % 2:
            raise CheckpointError(f"gemma: global_head_width must be even, not {self.global_head_width}")

    def check(self, config: Any) -> None:
        """CheckpointError if the `ModelConfig` around this is of another core."""
        for name, value in FIXED.items():
            if getattr(config, name) != value:
                raise CheckpointError(f"a model with `gemma` has {name}={value!r}, and not {getattr(config, name)!r}")
        experts = config.experts
        if experts is None or experts.first_layer or experts.shared_width or experts.bias or not config.block_size:
            raise CheckpointError(
                "a model with `gemma` has experts in every layer, none shared and without a bias, and a block_size"
            )
        if config.windows is None or config.windows.rope_theta is not None:
            raise CheckpointError("a model with `gemma` has windows, without a rope_theta of their own")
        if config.num_heads % self.global_kv_heads:
            raise CheckpointError("gemma: global_kv_heads divide the heads")


def gemma_of(config: Any) -> GemmaShape:
    """The shape of the core, of a model that has it."""
    assert isinstance(config.gemma, GemmaShape)
    return config.gemma


def turns(config: Any) -> list[np.ndarray]:
    """Radians by which pairs of numbers are rotated from one position to the next, float32 (H/2,): in sliding layers,
    and in global ones, theta^(-2i/H) of the pairs that are rotated, 0 of the others.
    """
    gemma = gemma_of(config)
    num_rotated = int(gemma.global_rope_share * gemma.global_head_width // 2)
    return [
        _turns_of(config.rope_theta, config.head_width, config.head_width),
        _turns_of(gemma.global_rope_theta, gemma.global_head_width, num_rotated),
    ]


def _turns_of(theta: float, width: int, num_rotated: int) -> np.ndarray:
    pair = np.arange(width // 2, dtype=np.float32)
    made = 1 / np.float32(theta) ** (2 * pair / np.float32(width))
    return np.where(pair < num_rotated, made, np.float32(0)).astype(np.float32)
