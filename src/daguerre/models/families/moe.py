"""Models with a mixture of experts in place of the MLP: Qwen3-MoE, SDAR 30B-A3B and RND1; OLMoE and LLaDA-MoE.

Publishers store a tensor for each matrix of each expert; ours are stacked, so each of them fills a part of one of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from daguerre.errors import shown
from daguerre.models.core.config import Experts, ModelConfig
from daguerre.models.families.base import Family, Piece, Published
from daguerre.models.families.llama import LLAMA, ROTARY_BUFFER, llama_pieces, llama_shape, mlp_pieces
from daguerre.models.families.qwen import qwen3_shape, qwen_tokens
from daguerre.models.families.reading import (
    Values,
    counts,
    flag,
    mask_of,
    number,
    refuse,
    unsupported,
    vocabulary,
    whole,
)
from daguerre.models.families.sdar import block_size

QWEN_MASK, LING_MASK, LING_END = 151669, 156895, 156892
SHARED = replace(LLAMA, gate="gate_proj", up="up_proj", down="down_proj")


def mixture_pieces(config: ModelConfig, layer: int, theirs: str, shared: str) -> list[Piece]:
    """Pieces of a layer's router and experts; none for a layer without experts. `theirs` is before their names, and
    `shared` before those of the shared expert, if there is one.
    """
    experts, ours = config.experts_of(layer), f"layers.{layer}.mlp."
    if experts is None:
        return []
    out = [Piece(f"{theirs}gate.weight", f"{ours}router.weight")]
    rows = {"gate_proj": slice(0, experts.width), "up_proj": slice(experts.width, 2 * experts.width)}
    for index in range(experts.num):
        one = f"{theirs}experts.{index}."
        out += [Piece(f"{one}{name}.weight", f"{ours}gate_up.weight", (index, part)) for name, part in rows.items()]
        out.append(Piece(f"{one}down_proj.weight", f"{ours}down.weight", (index,)))
    if experts.bias:
        out.append(Piece(f"{theirs}gate.expert_bias", f"{ours}expert_bias"))
    if experts.shared_width:
        out += mlp_pieces(config, shared, f"{ours}shared.", SHARED, experts.shared_width)
    return out


def _pieces(config: ModelConfig) -> list[Piece]:
    """With Llama's names for all else."""
    out = llama_pieces(config)
    for layer in range(config.num_layers):
        theirs = f"model.layers.{layer}."
        out += mixture_pieces(config, layer, f"{theirs}mlp.", f"{theirs}shared_expert.")
    return out


def _first_layer(config: Values) -> int:
    """The first layer with experts, where the others before it are named one by one."""
    refuse(config, {"decoder_sparse_step": (1,)})
    dense = counts(config, "mlp_only_layers")
    if sorted(dense) != list(range(len(dense))):
        raise unsupported(f"mlp_only_layers={shown(dense)} in config.json")
    return len(dense)


def _qwen3_experts(config: Values, *, normalized: bool = False) -> Experts:
    """The experts of a Qwen3-MoE. transformers 5 has another name for their number."""
    num = config.get("num_experts") or config.get("num_local_experts")
    return Experts(
        num=whole(config, "num_experts", num),
        per_token=whole(config, "num_experts_per_tok", 8),
        width=whole(config, "moe_intermediate_size", 768),
        first_layer=_first_layer(config),
        normalized=flag(config, "norm_topk_prob", normalized),
    )


def _qwen3_shape(published: Published, **options: Any) -> dict[str, Any]:
    """The shape of a Qwen3-MoE, whose heads have the width of a row together where the config does not say theirs, and
    whose windows are of all layers.
    """
    config = published.config
    head = config.get("head_dim") or whole(config, "hidden_size") // whole(config, "num_attention_heads")
    return qwen3_shape(with_values(published, head_dim=head, max_window_layers=0), **options)


def _qwen3_moe(published: Published) -> ModelConfig:
    experts = _qwen3_experts(published.config)
    return ModelConfig(**_qwen3_shape(published, sliding=True), experts=experts, **qwen_tokens(published))


def _sdar_moe(published: Published) -> ModelConfig:
    tokens = qwen_tokens(published, mask_of(published, QWEN_MASK))
    experts = _qwen3_experts(published.config)
    shape, block = _qwen3_shape(published), block_size(published)
    return ModelConfig(**shape, experts=experts, context="block", block_size=block, shift=False, **tokens)


def _rnd1(published: Published) -> ModelConfig:
    tokens = qwen_tokens(published, mask_of(published, QWEN_MASK), eos_id=151645)
    experts = _qwen3_experts(published.config, normalized=True)
    # The published config has sliding_window=false, and the published code no windows.
    shape = qwen3_shape(with_values(published, use_sliding_window=False), theta=1e6)
    return ModelConfig(**shape, experts=experts, context="full", shift=True, **tokens)


def _olmoe(published: Published) -> ModelConfig:
    config = published.config
    refuse(config, {"clip_qkv": ()})
    shape, size = llama_shape(published), whole(config, "vocab_size")
    shape |= {"qk_norm": True, "qk_norm_scope": "all", "norm_eps": number(config, "rms_norm_eps", 1e-5)}
    experts = Experts(
        num=whole(config, "num_experts", 64),
        per_token=whole(config, "num_experts_per_tok", 8),
        width=shape["mlp_width"],
        normalized=flag(config, "norm_topk_prob"),
    )
    return ModelConfig(**shape, experts=experts, **vocabulary(published, size))


def _llada_moe(published: Published) -> ModelConfig:
    config, layers = published.config, whole(published.config, "num_hidden_layers")
    # The published code takes a softmax that is neither normalized nor scaled, whatever the config says of scores.
    refuse(config, {"clip_qkv": (), "moe_router_enable_expert_bias": (False,)})
    mixed = counts(config, "moe_layer_freq") or [1] * layers
    if len(mixed) != layers or mixed != sorted(mixed) or not mixed[-1]:
        raise unsupported(f"moe_layer_freq={shown(mixed)} in config.json")
    per_head = whole(config, "hidden_size") // whole(config, "num_attention_heads")
    width = whole(config, "dense_intermediate_size", whole(config, "expert_intermediate_size"))
    shape = llama_shape(with_values(all_rotated(published), head_dim=per_head, intermediate_size=width))
    shared = config.get("shared_expert_intermediate_size")
    experts = Experts(
        num=whole(config, "num_experts"),
        per_token=whole(config, "num_experts_per_tok"),
        width=whole(config, "expert_intermediate_size"),
        shared_width=0 if shared is None else whole(config, "shared_expert_intermediate_size"),
        first_layer=mixed.index(1),
    )
    shape |= {"qk_norm": flag(config, "qk_layernorm"), "norm_eps": number(config, "rms_norm_eps", 1e-5)}
    shape |= {"rope_share": rotated_share(config, 1.0)}
    return ModelConfig(**shape, experts=experts, context="full", shift=False, **ling_tokens(published))


def with_values(published: Published, **values: Any) -> Published:
    """The files, with these values in the config."""
    return replace(published, config={**published.config, **values})


def all_rotated(published: Published) -> Published:
    """The files, without the share of a head that is rotated, which `rotated_share` reads."""
    config = {key: value for key, value in published.config.items() if key != "partial_rotary_factor"}
    if isinstance(config.get("rope_parameters"), Mapping):
        config["rope_parameters"] = {**config["rope_parameters"], "partial_rotary_factor": 1.0}
    return replace(published, config=config)


def rotated_share(config: Values, default: float) -> float:
    """The share of a head that is rotated; -1 is LLaDA-MoE's word for none."""
    nested = config.get("rope_parameters")
    given = number(config, "partial_rotary_factor", default)
    given = number(nested, "partial_rotary_factor", given) if isinstance(nested, Mapping) else given
    return given if given > 0 else default


def ling_tokens(published: Published) -> dict[str, Any]:
    size = whole(published.config, "vocab_size")
    return vocabulary(published, size, mask_id=mask_of(published, LING_MASK), eos_id=LING_END)


FAMILY = Family(
    name="qwen3_moe",
    title="Qwen3-MoE (autoregressive)",
    model_types=("qwen3_moe",),
    architectures=("Qwen3MoeForCausalLM",),
    read=_qwen3_moe,
    pieces=_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    examples=("Qwen/Qwen3-30B-A3B",),
    source="arXiv 2505.09388",
)
OLMOE = replace(
    FAMILY,
    name="olmoe",
    title="OLMoE 1B-7B (autoregressive)",
    model_types=("olmoe",),
    architectures=("OlmoeForCausalLM",),
    read=_olmoe,
    examples=("allenai/OLMoE-1B-7B-0924",),
    source="arXiv 2409.02060",
)
SDAR_MOE = replace(
    FAMILY,
    name="sdar_moe",
    title="SDAR 30B-A3B Chat and Sci, with blocks of 4 to 64",
    model_types=("sdar_moe",),
    architectures=("SDARMoeForCausalLM",),
    read=_sdar_moe,
    decode={"mode": "block", "policy": "threshold", "threshold": 0.9},
    examples=("JetLM/SDAR-30B-A3B-Chat", "JetLM/SDAR-30B-A3B-Sci", "JetLM/SDAR-30B-A3B-Chat-b8"),
    source="arXiv 2510.06303; github.com/JetAstra/SDAR, README.md",
)
RND1 = replace(
    FAMILY,
    name="rnd1",
    title="RND1 Base 30B-A3B",
    model_types=("rnd1",),
    architectures=("RND1", "RND1LM"),
    read=_rnd1,
    decode={"mode": "full", "policy": "entropy", "temperature": 0.1},
    examples=("radicalnumerics/RND1-Base-0910",),
    source="github.com/RadicalNumerics/RND1, rnd/sampling.py: row i predicts token i + 1",
)
LLADA_MOE = replace(
    FAMILY,
    name="llada_moe",
    title="LLaDA-MoE 7B-A1B Base and Instruct",
    model_types=("lladamoe", "llada"),
    architectures=("LLaDAMoEModel", "LLaDAMoEModelLM"),
    marks=("expert_intermediate_size",),
    read=_llada_moe,
    decode={"mode": "block", "block_size": 32, "policy": "confidence"},
    examples=("inclusionAI/LLaDA-MoE-7B-A1B-Base", "inclusionAI/LLaDA-MoE-7B-A1B-Instruct"),
    source="arXiv 2509.24389; the model card of LLaDA-MoE-7B-A1B-Instruct",
)
FAMILIES = (FAMILY, OLMOE, SDAR_MOE, RND1, LLADA_MOE)
