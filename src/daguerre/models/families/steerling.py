"""Steerling 8B, base and instruct: blocks of 64 that see those before them, norms behind attention and MLP, clipped
queries, keys and values, and concept heads over the last hidden state (`models.core.concept_heads`).

config.json has two dialects: in one the keys of the concept heads are a section "concept"; in the other they are among
all others. Keys that are missing have the defaults of the publisher's code, and a key that is null switches off.

Decoding: here spans are the blocks of 64 positions in which the model sees, counted from the first position on, so that
finished blocks are cached exactly. The publisher's loop counts its blocks from the end of the prompt, so that each of
them lies in two blocks of attention, and computes everything in each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from daguerre.errors import CheckpointError
from daguerre.models.core.config import ConceptShape, ModelConfig, Placement
from daguerre.models.families.base import Family, Piece, Published, Weights
from daguerre.models.families.reading import (
    Values,
    flag,
    mask_of,
    number,
    refuse,
    token_id,
    unsupported,
    vocabulary,
    whole,
)

PREFIX = "transformer."
KV_HEADS, BLOCK, CLIP = 4, 64, 10.0
END, MASK = 100257, 100280
UNUSED = range(100258, 100277)
"""Tokens of cl100k_base that Steerling was not trained with, and ids that no token has."""
CORE: dict[str, tuple[Any, ...]] = {
    "use_rms_norm": (True,),
    "use_rope": (True,),
    "mlp_type": ("swiglu",),
    "use_bias": (False,),
}
HEADS: dict[str, tuple[Any, ...]] = {
    "use_attention_known": (False,),
    "use_attention_unknown": (False,),
    "use_unknown": (True,),
    "factorize_unknown": (True,),
    "apply_topk_to_unknown": (True,),
    "topk_on_logits": (False,),
    "use_epsilon_correction": (True,),
}
"""What the options of the publisher's code must be for the computation to be ours."""


def _read(published: Published) -> ModelConfig:
    values = published.config
    refuse(values, CORE)
    width, heads = whole(values, "n_embd"), whole(values, "n_head")
    return ModelConfig(
        width=width,
        num_layers=whole(values, "n_layers"),
        num_heads=heads,
        num_kv_heads=whole(values, "n_kv_heads", heads if _is_off(values, "n_kv_heads") else KV_HEADS),
        mlp_width=whole(values, "intermediate_size", whole(values, "mlp_ratio", 4) * width),
        max_positions=whole(values, "block_size", 4096),
        context="block",
        block_size=whole(values, "diff_block_size", BLOCK),
        shift=False,
        qk_norm=flag(values, "use_qk_norm", True),
        clip_qkv=None if _is_off(values, "clip_qkv") else number(values, "clip_qkv", CLIP),
        norm_eps=number(values, "norm_eps", 1e-5),
        norm_placement=_placement(values),
        rope_theta=number(values, "rope_base", 500_000.0),
        tied=flag(values, "weight_sharing", True),
        concepts=_concepts(values, width),
        **_tokens(published, whole(values, "vocab_size")),
    )


def _is_off(values: Values, key: str) -> bool:
    return key in values and values[key] is None


def _placement(values: Values) -> Placement:
    order = values.get("norm_order", "post")
    if order not in ("pre", "post"):
        raise unsupported(f"norm_order={order!r} in config.json")
    return "pre" if order == "pre" else "post"


def _concepts(values: Values, width: int) -> ConceptShape | None:
    """The concept heads; None for a model without them."""
    nested = values.get("concept")
    if not isinstance(nested, Mapping | None):
        raise CheckpointError(f"config.json: concept must be a section, not {nested!r:.40}; copy the file again")
    given = values if nested is None else nested
    if not flag(values, "interpretable") or "n_concepts" not in given:
        return None
    refuse(given, HEADS | {"concept_dim": (width,)})
    for key in ("topk_known", "unknown_topk"):
        if _is_off(given, key):
            raise unsupported(f"{key}=null in config.json")
    known, discovered = whole(given, "n_concepts"), whole(given, "n_unknown_concepts")
    multiple = whole(given, "pad_multiple", 16)
    kept = whole(given, "topk_known_features", whole(given, "topk_known", 32))
    return ConceptShape(
        known=known,
        discovered=discovered,
        rank=whole(given, "factorize_rank", 256),
        kept_known=min(kept, known),
        kept_discovered=min(whole(given, "unknown_topk", 128), discovered),
        bias=False,
        spare_known=-known % multiple,
        spare_discovered=-discovered % multiple,
    )


def _tokens(published: Published, size: int) -> dict[str, Any]:
    """Tokens. An answer of the instruct model ends in <|eot_id|>; a canvas has no <|bos|>, as in the publisher's
    generation.
    """
    values = published.config
    ends = [token_id(values, "eos_token_id"), token_id(values, "eot_id")]
    named = [index for index in ends if index is not None]
    if named:
        published = replace(published, config={**values, "eos_token_id": named})
    pad = token_id(values, "pad_token_id")
    never = [index for index in (*UNUSED, pad) if index is not None and index < size]
    return vocabulary(published, size, mask_id=mask_of(published, MASK), eos_id=END, never=never)


LAYER = {
    "ln_1": "attention_norm",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out",
    "ln_2": "mlp_norm",
    "mlp.c_proj": "mlp.down",
}
QK_NORM = {"attn.q_norm": "attention.q_norm", "attn.k_norm": "attention.k_norm"}
CONCEPTS = {
    "known_head.concept_embedding": "known_embedding",
    "known_head.concept_predictor": "known_predictor",
    "unknown_head.embedding_coef": "discovered_coefficients",
    "unknown_head.embedding_basis": "discovered_basis",
    "unknown_head.predictor_down": "discovered_down",
    "unknown_head.predictor_up": "discovered_up",
}


def gates_first(up_and_gates: Weights) -> Weights:
    """The rows of values and gates in our order."""
    return up_and_gates.reshape(2, -1, *up_and_gates.shape[1:])[[1, 0]].reshape(up_and_gates.shape)


def _pieces(config: ModelConfig) -> list[Piece]:
    names = {"tok_emb": "embedding", "ln_f": "final_norm"}
    if not config.tied:
        names["lm_head"] = "output"
    for layer in range(config.num_layers):
        parts = LAYER | (QK_NORM if config.qk_norm else {})
        names |= {f"blocks.{layer}.{theirs}": f"layers.{layer}.{ours}" for theirs, ours in parts.items()}
    out = [Piece(f"{PREFIX}{theirs}.weight", f"{ours}.weight") for theirs, ours in names.items()]
    for layer in range(config.num_layers):
        target = f"layers.{layer}.mlp.gate_up.weight"
        out.append(Piece(f"{PREFIX}blocks.{layer}.mlp.c_fc.weight", target, change=gates_first))
    if config.tied:
        out.append(Piece(f"{PREFIX}lm_head.weight", "embedding.weight", copy=True))
    heads = {} if config.concepts is None else CONCEPTS
    return out + [Piece(f"{theirs}.weight", f"concepts.{ours}.weight") for theirs, ours in heads.items()]


FAMILY = Family(
    name="steerling",
    title="Steerling 8B, base and instruct",
    model_types=("steerling", "causal_diffusion"),
    architectures=("SteerlingForCausalLM",),
    read=_read,
    pieces=_pieces,
    prefix=PREFIX,
    tokenizer="Xenova/gpt-4",
    decode={"mode": "block", "policy": "confidence"},
    examples=("guidelabs/steerling-8b", "guidelabs/steerling-8b-instruct"),
    source="arXiv 2608.07594; github.com/guidelabs/steerling, scripts/convert_weights.py and scripts/hugging_face",
)
FAMILIES = (FAMILY,)
