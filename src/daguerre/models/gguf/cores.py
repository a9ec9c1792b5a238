"""What architectures of llama.cpp have beyond those of a Llama's kind, in the words of a publisher's `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from daguerre.errors import UnsupportedError, shown
from daguerre.models.gguf.file import GgufFile
from daguerre.models.gguf.values import LONG_FACTORS, SCALE, SHORT_FACTORS, GgufMetadata

Shape = Mapping[str, Any]
WINDOW = "attention.sliding_window"
"""The key of a window."""
PATTERN, LOCAL_THETA = 6, 10_000.0
"""Of a Gemma 3 that does not say every which layer is global, and the base of rotary positions in the others."""
SCALED_BY_WIDTH = 62
"""Layers of Gemma 3 27B, whose scores are scaled by what a head has of the width of a row, and not by its own width."""
WEIGHTS_SCALE = "expert_weights_scale"
SIGMOID = 2
"""llama.cpp's number of sigmoid, by which a router's scores are made."""
OTHER_EXPERTS = (
    *("expert_shared_count", "expert_group_count", "leading_dense_block_count", "expert_gating_func"),
    WEIGHTS_SCALE,
)
"""Keys of what the mixtures that are read do not have; a 0 is as if they were not there, and so is a scale of 1."""


def _gemma3(values: GgufMetadata, shape: Shape) -> dict[str, Any]:
    wide = shape["num_hidden_layers"] == SCALED_BY_WIDTH
    per_query = shape["hidden_size"] // shape["num_attention_heads"] if wide else shape["head_dim"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": per_query,
        "sliding_window": values.whole(WINDOW),
        "sliding_window_pattern": values.whole(f"{WINDOW}_pattern", PATTERN),
        "rope_local_base_freq": values.number("rope.freq_base_swa", LOCAL_THETA),
    }


def _phi3(values: GgufMetadata, shape: Shape) -> dict[str, Any]:
    rotated = values.whole("rope.dimension_count", shape["head_dim"])
    window = values.get(WINDOW)
    made: dict[str, Any] = {"partial_rotary_factor": rotated / shape["head_dim"], "sliding_window": window or None}
    if LONG_FACTORS not in values.header.entries:
        return made
    file, names = GgufFile(values.header), (("short_factor", SHORT_FACTORS), ("long_factor", LONG_FACTORS))
    lists = {key: file.floats(name).tolist() for key, name in names}
    original = values.whole(f"{SCALE}original_context_length", shape["max_position_embeddings"])
    scale = values.number(f"{SCALE}attn_factor", 1.0)
    given = {"original_max_position_embeddings": original, "attention_factor": scale}
    return made | {"rope_scaling": {"rope_type": "longrope", **lists, **given}}


def _experts(values: GgufMetadata, shape: Shape) -> dict[str, Any]:
    """The experts of a Qwen3-MoE. UnsupportedError for a mixture of another kind."""
    for key in OTHER_EXPERTS:
        value = values.get(key)
        if value and not (key == WEIGHTS_SCALE and value == 1):
            raise UnsupportedError(f"{values.header.path}: {values.arch}.{key}={shown(value)} is not supported")
    used = values.whole("expert_used_count")
    return {
        "num_experts": values.whole("expert_count"),
        "num_experts_per_tok": used,
        "moe_intermediate_size": values.whole("expert_feed_forward_length", max(1, shape["intermediate_size"] // used)),
        "norm_topk_prob": True,
    }


def _llada_moe(values: GgufMetadata, shape: Shape) -> dict[str, Any]:
    if shape["head_dim"] * shape["num_attention_heads"] != shape["hidden_size"]:
        raise UnsupportedError(f"{values.header.path}: a LLaDA-MoE with heads of another width is not supported")
    made = _experts(values, shape)
    return {
        **{name: made[name] for name in ("num_experts", "num_experts_per_tok")},
        "expert_intermediate_size": made["moe_intermediate_size"],
        "dense_intermediate_size": shape["intermediate_size"],
        "qk_layernorm": True,
    }


def _llada2(values: GgufMetadata, shape: Shape) -> dict[str, Any]:
    """Of the names that llama.cpp's pull request 17454 has for a LLaDA2, which are those of its architecture
    bailingmoe2.
    """
    for key, wanted in (("expert_gating_func", SIGMOID), ("expert_weights_norm", True), ("nextn_predict_layers", 0)):
        if (values.get(key) or 0) != wanted:
            raise UnsupportedError(f"{values.header.path}: {values.arch}.{key} is not {wanted}: not supported")
    width = values.whole("expert_feed_forward_length")
    shared = width * _count(values, "expert_shared_count")
    shared = values.whole("expert_shared_feed_forward_length", shared) if shared else 0
    if shared % width:
        raise UnsupportedError(f"{values.header.path}: shared experts of another width are not supported")
    return {
        "num_experts": values.whole("expert_count"),
        "num_experts_per_tok": values.whole("expert_used_count"),
        "moe_intermediate_size": width,
        "num_shared_experts": shared // width,
        "first_k_dense_replace": _count(values, "leading_dense_block_count"),
        "n_group": values.whole("expert_group_count", 1),
        "topk_group": values.whole("expert_group_used_count", 1),
        "routed_scaling_factor": values.number(WEIGHTS_SCALE, 1.0),
        "partial_rotary_factor": values.whole("rope.dimension_count", shape["head_dim"]) / shape["head_dim"],
        "use_bias": False,
    }


def _count(values: GgufMetadata, key: str) -> int:
    """A number that may be 0 or missing."""
    return values.whole(key) if values.get(key) else 0


MORE: dict[str, Callable[[GgufMetadata, Shape], dict[str, Any]]] = {
    "gemma3": _gemma3,
    "phi3": _phi3,
    "qwen3moe": _experts,
    "rnd1": _experts,
    "llada-moe": _llada_moe,
    "llada2": _llada2,
}
"""What an architecture has beyond a Llama's shape. UnsupportedError for what its family does not have."""
MIXED = tuple(arch for arch, made in MORE.items() if made in (_experts, _llada_moe, _llada2))
"""Architectures with experts."""
PARTLY = ("phi3", "llada2")
"""Architectures that rotate a part of each head."""
WINDOWED = ("gemma3", "phi3")
"""Architectures with windows."""
