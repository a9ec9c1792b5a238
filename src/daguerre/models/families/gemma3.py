"""Gemma 3, text alone: sliding layers and global ones, norms before and behind each branch, and scaled embeddings.

A norm multiplies by 1 + w, where w is what is published; ours has 1 + w.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from daguerre.models.core.config import ModelConfig, Windows
from daguerre.models.families.base import Family, Piece, Published, Weights, as_floats
from daguerre.models.families.llama import LLAMA, ROTARY_BUFFER, llama_pieces, llama_shape, rows_of_embedding
from daguerre.models.families.moe import with_values
from daguerre.models.families.reading import (
    GLOBAL,
    SLIDING,
    Values,
    activation,
    layer_kinds,
    number,
    refuse,
    vocabulary,
    whole,
)

NAMES = replace(
    LLAMA,
    after_attention_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    after_mlp_norm="post_feedforward_layernorm",
)
THETA, LOCAL_THETA, PATTERN, WINDOW = 1_000_000.0, 10_000.0, 6, 4096
"""Bases of rotary positions in global and in sliding layers, every which layer is global, and the window, of a config
without them.
"""


def _read(published: Published) -> ModelConfig:
    config = published.config
    refuse(config, dict.fromkeys(("attention_bias", "use_bidirectional_attention"), (False,)))
    refuse(config, dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping"), ()))
    every, local = _positions(config)
    width, head = whole(config, "hidden_size"), whole(config, "head_dim", 256)
    plain = with_values(published, rope_parameters=every, rope_scaling=None, head_dim=head, sliding_window=None)
    shape = llama_shape(with_values(plain, layer_types=None), tied=True, theta=THETA)
    per_query = number(config, "query_pre_attn_scalar", 256.0)
    kinds = _kinds(config)
    sliding = tuple(layer for layer, kind in enumerate(kinds) if kind == SLIDING)
    shape |= {
        "activation": activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        "qk_norm": True,
        "norm_placement": "both",
        "embedding_scale": width**0.5,
        "attention_scale": None if per_query == head else per_query**-0.5,
        "windows": None
        if not sliding
        else Windows(size=whole(config, "sliding_window", WINDOW), layers=sliding, rope_theta=local),
    }
    return ModelConfig(**shape, **vocabulary(published, rows_of_embedding(published)))


def _positions(config: Values) -> tuple[dict[str, Any], float]:
    """Rotary positions of global layers, as transformers 5 writes those of other models, and the base of sliding ones;
    transformers 4 writes them as keys of their own.
    """
    given = config.get("rope_parameters")
    kinds: Values = given if isinstance(given, Mapping) else {}
    every, local = kinds.get(GLOBAL) or config.get("rope_scaling") or {}, kinds.get(SLIDING) or {}
    refuse(local, {"rope_type": ("default",), "partial_rotary_factor": (1,)})
    theta = number(config, "rope_theta", THETA)
    base = number(config, "rope_local_base_freq", LOCAL_THETA)
    return {"rope_theta": theta, **every}, number(local, "rope_theta", base)


def _kinds(config: Values) -> list[str]:
    """What kind each layer is of. By default every sixth is global."""
    num, every = whole(config, "num_hidden_layers"), whole(config, "sliding_window_pattern", PATTERN)
    kinds = config.get("layer_types") or [SLIDING if (layer + 1) % every else GLOBAL for layer in range(num)]
    return layer_kinds(kinds, num)


def _one_more(weight: Weights) -> Weights:
    return as_floats(weight) + 1


def _one_less(weight: Weights) -> Weights:
    return as_floats(weight) - 1


def _pieces(config: ModelConfig) -> list[Piece]:
    return [
        replace(piece, change=_one_more, undo=_one_less) if re.search(r"norm\.weight$", piece.target) else piece
        for piece in llama_pieces(config, names=NAMES)
    ]


FAMILY = Family(
    name="gemma3",
    title="Gemma 3, text alone (autoregressive)",
    model_types=("gemma3_text",),
    architectures=("Gemma3ForCausalLM",),
    read=_read,
    pieces=_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    examples=("google/gemma-3-270m", "google/gemma-3-1b-it"),
    source="arXiv 2503.19786",
)
FAMILIES = (FAMILY,)
