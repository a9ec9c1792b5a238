"""LLaDA2.0 and LLaDA2.1, mini and flash: grouped sigmoid routing (DeepSeek-V3), a shared expert, and block context."""

from __future__ import annotations

import re
from dataclasses import replace

from daguerre.models.core.config import Experts, ModelConfig
from daguerre.models.families.base import Family, Piece, Published
from daguerre.models.families.llama import ROTARY_BUFFER, llama_shape, mlp_pieces
from daguerre.models.families.moe import all_rotated, ling_tokens, mixture_pieces, rotated_share, with_values
from daguerre.models.families.reading import Values, count, flag, number, refuse, unsupported, whole

BLOCK = 32
NAMED_22 = re.compile(r"llada-?2\.2", re.IGNORECASE)


def _pieces(config: ModelConfig) -> list[Piece]:
    out = [
        Piece("model.word_embeddings.weight", "embedding.weight"),
        Piece("model.norm.weight", "final_norm.weight"),
        Piece("lm_head.weight", "embedding.weight" if config.tied else "output.weight", copy=config.tied),
    ]
    for layer in range(config.num_layers):
        theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
        names = {"query_key_value.weight": "qkv.weight", "dense.weight": "out.weight"}
        names |= {"query_key_value.bias": "qkv.bias"} if config.qkv_bias else {}
        names |= {"dense.bias": "out.bias"} if config.out_bias else {}
        if config.qk_norm:
            names |= {"query_layernorm.weight": "q_norm.weight", "key_layernorm.weight": "k_norm.weight"}
        out += [Piece(f"{theirs}attention.{name}", f"{ours}attention.{own}") for name, own in names.items()]
        out.append(Piece(f"{theirs}input_layernorm.weight", f"{ours}attention_norm.weight"))
        out.append(Piece(f"{theirs}post_attention_layernorm.weight", f"{ours}mlp_norm.weight"))
        if config.experts_of(layer) is None:
            out += mlp_pieces(config, theirs, f"{ours}mlp.")
        out += mixture_pieces(config, layer, f"{theirs}mlp.", f"{theirs}mlp.shared_experts.")
    return out


def _read(published: Published) -> ModelConfig:
    config = published.config
    limited = any("capacity" in key and value for key, value in config.items())
    if limited or NAMED_22.search(published.name):
        raise unsupported("a choice of experts that is made for a block at once, as in LLaDA2.2,")
    refuse(config, {"image_token_offset": (), "norm_head": (False,), "norm_softmax": (False,)})
    refuse(config, {"score_function": ("sigmoid",), "norm_topk_prob": (True,)})
    experts = _experts(config)
    dense = whole(config, "intermediate_size", None if experts.first_layer else experts.width)
    plain = with_values(all_rotated(published), use_sliding_window=False, intermediate_size=dense)
    shape = llama_shape(plain) | {
        "norm_eps": number(config, "rms_norm_eps", 1e-5),
        "qkv_bias": flag(config, "use_qkv_bias"),
        "out_bias": flag(config, "use_bias", True),
        "qk_norm": flag(config, "use_qk_norm", True),
        "rope_share": rotated_share(config, 0.5),
    }
    block, tokens = whole(config, "block_size", BLOCK), ling_tokens(published)
    return ModelConfig(**shape, experts=experts, context="block", block_size=block, shift=False, **tokens)


def _experts(config: Values) -> Experts:
    width, per_token = whole(config, "moe_intermediate_size"), whole(config, "num_experts_per_tok", 2)
    return Experts(
        num=whole(config, "num_experts", 16),
        per_token=per_token,
        width=width,
        shared_width=width * count(config, "num_shared_experts"),
        first_layer=count(config, "first_k_dense_replace"),
        score="sigmoid",
        bias=True,
        num_groups=whole(config, "n_group", 8),
        kept_groups=whole(config, "topk_group", 4),
        normalized=per_token > 1,
        scale=number(config, "routed_scaling_factor", 2.5),
    )


FAMILY = Family(
    name="llada2",
    title="LLaDA2.0 mini (16B-A1.4B) and flash (100B-A6B)",
    model_types=("llada2_moe",),
    architectures=("LLaDA2MoeModelLM",),
    read=_read,
    pieces=_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    decode={"mode": "block", "policy": "threshold", "threshold": 0.95},
    examples=("inclusionAI/LLaDA2.0-mini", "inclusionAI/LLaDA2.0-flash"),
    source="arXiv 2512.15745; modeling_llada2_moe.py of LLaDA2.0-mini",
)
LLADA21 = replace(
    FAMILY,
    name="llada21",
    title="LLaDA2.1 mini and flash, which edit what they wrote",
    model_types=("llada2_moe", "llada21_moe"),
    names=(r"llada-?2\.1",),
    decode={"mode": "block", "policy": "joint_threshold", "threshold": 0.7, "edit_threshold": 0.5},
    examples=("inclusionAI/LLaDA2.1-mini", "inclusionAI/LLaDA2.1-flash"),
    source="arXiv 2602.08676; the quality setting of the model card of LLaDA2.1-mini",
)
FAMILIES = (FAMILY, LLADA21)
