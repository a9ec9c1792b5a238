"""DiffusionGemma 26B-A4B, text alone: the encoder of images and what projects it into the text are not read.

Encoder and decoder have the same weights, which are published as those of the decoder; only the numbers that the
results of layers are multiplied by are separate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from daguerre.errors import CheckpointError
from daguerre.models.core.config import Experts, ModelConfig, Windows
from daguerre.models.core.gemma_shape import GemmaShape
from daguerre.models.families.base import Family, Piece, Published
from daguerre.models.families.reading import (
    GLOBAL,
    SLIDING,
    activation,
    flag,
    layer_kinds,
    number,
    refuse,
    unsupported,
    vocabulary,
    whole,
)

DECODER, ENCODER = "model.decoder.", "model.encoder.language_model."
ROPE = {SLIDING: {"rope_theta": 10_000.0}, GLOBAL: {"rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25}}
"""Rotary positions of a config without them."""
MATRICES = {
    "self_attn.o_proj.weight": "attention.out.weight",
    "self_attn.q_norm.weight": "attention.q_norm.weight",
    "self_attn.k_norm.weight": "attention.k_norm.weight",
    "mlp.down_proj.weight": "mlp.down.weight",
    "router.proj.weight": "experts.mixture.router.weight",
    "router.scale": "experts.scale",
    "router.per_expert_scale": "experts.expert_scale",
    "experts.gate_up_proj": "experts.mixture.gate_up.weight",
    "experts.down_proj": "experts.mixture.down.weight",
    "input_layernorm.weight": "attention_norm.weight",
    "post_attention_layernorm.weight": "after_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "mlp_norm.weight",
    "post_feedforward_layernorm_1.weight": "after_mlp_norm.weight",
    "pre_feedforward_layernorm_2.weight": "experts.norm.weight",
    "post_feedforward_layernorm_2.weight": "after_experts_norm.weight",
    "post_feedforward_layernorm.weight": "after_norm.weight",
}
"""Published tensors of a layer that become one of ours as they are."""


def _read(published: Published) -> ModelConfig:
    text = published.config.get("text_config")
    if not isinstance(text, Mapping):
        raise CheckpointError("config.json has no text_config: copy the whole folder again")
    refuse(text, {"attention_bias": (False,), "use_bidirectional_attention": ("vision",)})
    refuse(published.config, {"tie_word_embeddings": (True,)})
    if not flag(text, "tie_word_embeddings", True):
        raise unsupported("tie_word_embeddings=False in config.json")
    size, shared = whole(text, "vocab_size"), {k: v for k, v in published.config.items() if k.endswith("token_id")}
    tokens = vocabulary(replace(published, config={**text, **shared}), size)
    tokens["activation"] = activation(text, "hidden_activation", "gelu_pytorch_tanh")
    rope, kinds = _rope(text, SLIDING, {"rope_type": ("default",), "partial_rotary_factor": (1,)}), _kinds(text)
    return ModelConfig(
        width=whole(text, "hidden_size"),
        num_layers=whole(text, "num_hidden_layers"),
        num_heads=whole(text, "num_attention_heads"),
        num_kv_heads=whole(text, "num_key_value_heads"),
        head_width=whole(text, "head_dim"),
        mlp_width=whole(text, "intermediate_size"),
        max_positions=whole(text, "max_position_embeddings"),
        norm_eps=number(text, "rms_norm_eps", 1e-6),
        rope_theta=number(rope, "rope_theta", 10_000.0),
        block_size=whole(published.config, "canvas_length", 256),
        process="uniform",
        shift=False,
        experts=Experts(
            num=whole(text, "num_experts"),
            per_token=whole(text, "top_k_experts"),
            width=whole(text, "moe_intermediate_size"),
            normalized=True,
        ),
        gemma=_gemma(text, kinds),
        windows=Windows(
            size=whole(text, "sliding_window", 512),
            layers=tuple(layer for layer, kind in enumerate(kinds) if kind == SLIDING),
        ),
        noise_ids=(0, size),
        **tokens,
    )


def _gemma(text: Mapping[str, Any], kinds: list[str]) -> GemmaShape:
    layers = tuple(layer for layer, kind in enumerate(kinds) if kind == GLOBAL)
    rope = _rope(text, GLOBAL, {"rope_type": ("proportional",), "factor": (1,)})
    width, heads = _global_heads(text, layers)
    return GemmaShape(
        global_head_width=width,
        global_kv_heads=heads,
        global_rope_theta=number(rope, "rope_theta", 1_000_000.0),
        global_rope_share=number(rope, "partial_rotary_factor", 1.0),
        softcap=number(text, "final_logit_softcapping", 30.0),
    )


def _kinds(text: Mapping[str, Any]) -> list[str]:
    """What kind each layer is of. By default every sixth layer is global; the last one always is."""
    num = whole(text, "num_hidden_layers")
    kinds = text.get("layer_types") or [GLOBAL if (layer + 1) % 6 == 0 else SLIDING for layer in range(num)]
    return [*layer_kinds(kinds, num)[:-1], GLOBAL]


def _global_heads(text: Mapping[str, Any], layers: tuple[int, ...]) -> tuple[int, int]:
    """Width and number of the heads for keys in global layers. As published they are two keys; transformers 5.23
    writes them for each layer.
    """
    each = text.get("per_layer_config")
    if not each:
        heads = whole(text, "num_global_key_value_heads", whole(text, "num_key_value_heads"))
        return whole(text, "global_head_dim", 512), heads
    keys, found = {"head_dim", "num_key_value_heads"}, {tuple(sorted(own.items())) for own in each.values()}
    if {int(layer) for layer in each} != {*layers} or len(found) != 1 or not {*dict(*found)} <= keys:
        raise unsupported("per_layer_config in config.json, other than of all global layers alike,")
    own = {"head_dim": text.get("head_dim"), "num_key_value_heads": text.get("num_key_value_heads"), **dict(*found)}
    return whole(own, "head_dim"), whole(own, "num_key_value_heads")


def _rope(text: Mapping[str, Any], kind: str, allowed: Mapping[str, tuple[Any, ...]]) -> Mapping[str, Any]:
    """Rotary positions of a kind of layers. UnsupportedError where they are not of the published kind."""
    found: Mapping[str, Any] = (text.get("rope_parameters") or ROPE).get(kind) or {}
    refuse(found, allowed)
    return found


def _pieces(config: ModelConfig) -> list[Piece]:
    out = [
        Piece(f"{DECODER}embed_tokens.weight", "embedding.weight"),
        Piece("lm_head.weight", "embedding.weight", copy=True),
        Piece(f"{DECODER}norm.weight", "final_norm.weight"),
        Piece(f"{DECODER}self_conditioning.pre_norm.weight", "self_conditioning.norm.weight"),
        Piece(f"{DECODER}self_conditioning.down_proj.weight", "self_conditioning.mlp.down.weight"),
        *_gate_up(config, f"{DECODER}self_conditioning.", "self_conditioning.mlp."),
    ]
    for layer in range(config.num_layers):
        theirs, ours = f"{DECODER}layers.{layer}.", f"layers.{layer}."
        out += [Piece(theirs + name, ours + target) for name, target in MATRICES.items()]
        out += _gate_up(config, f"{theirs}mlp.", f"{ours}mlp.")
        out += _qkv(config, layer, f"{theirs}self_attn.", f"{ours}attention.qkv.weight")
        scalars = (f"{ENCODER}layers.{layer}.layer_scalar", f"{theirs}layer_scalar")
        out += [Piece(name, f"{ours}scalars", (slice(role, role + 1),)) for role, name in enumerate(scalars)]
    return out + _copies(out)


def _gate_up(config: ModelConfig, theirs: str, ours: str) -> list[Piece]:
    inner = config.mlp_width
    rows = {"gate_proj": slice(0, inner), "up_proj": slice(inner, 2 * inner)}
    return [Piece(f"{theirs}{name}.weight", f"{ours}gate_up.weight", (part,)) for name, part in rows.items()]


def _qkv(config: ModelConfig, layer: int, theirs: str, target: str) -> list[Piece]:
    """Queries, keys and, in sliding layers, values: in global ones they are the keys."""
    num_kv, head = config.key_shapes[layer]
    heads = [("q_proj", config.num_heads), ("k_proj", num_kv), ("v_proj", num_kv)]
    out, start = list[Piece](), 0
    for name, num in heads[: 3 if config.is_sliding(layer) else 2]:
        out.append(Piece(f"{theirs}{name}.weight", target, (slice(start, start + num * head),)))
        start += num * head
    return out


def _copies(pieces: list[Piece]) -> list[Piece]:
    """The encoder's names of the weights that it shares, which some tools write, too."""
    shared = (piece for piece in pieces if piece.name.startswith(DECODER) and "self_conditioning" not in piece.name)
    return [
        replace(piece, name=ENCODER + piece.name.removeprefix(DECODER), copy=True)
        for piece in shared
        if not piece.name.endswith("layer_scalar")
    ]


FAMILY = Family(
    name="gemma",
    title="DiffusionGemma 26B-A4B (text alone)",
    model_types=("diffusion_gemma",),
    architectures=("DiffusionGemmaForBlockDiffusion",),
    read=_read,
    pieces=_pieces,
    ignored=(r"model\.encoder\.(vision_tower|embed_vision)\..*", r"(.*\.)?rotary_emb\..*"),
    decode={"mode": "renoise", "steps": 48, "gamma": 0.1, "t_max": 0.8, "t_min": 0.4, "max_entropy": 0.005},
    examples=("google/diffusiongemma-26B-A4B-it",),
    source="ai.google.dev/gemma/docs/diffusiongemma; transformers, models/diffusion_gemma",
)
FAMILIES = (FAMILY,)
