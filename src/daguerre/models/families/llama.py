"""Llama and what has its names: Mistral, DiffuLLaMA, Stable-DiffCoder.

`llama_config` and `llama_pieces` are what other families with these names, or with other names for the same parts, use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Piece, Published
from daguerre.models.families.reading import (
    activation,
    bos_of,
    flag,
    mask_of,
    number,
    refuse,
    refuse_windows,
    rotary,
    vocabulary,
    whole,
    windows_of,
    with_masks,
)

ROTARY_BUFFER = r"(.*\.)?rotary_emb\.inv_freq"
"""A buffer that old checkpoints contain: the frequencies follow from the config."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Published names of the parts of a Llama, without `.weight` or `.bias`. `layer` is before those that follow it.

    qkv, gate_up   of matrices that are one, as ours are; "": there are several
    after_attention_norm, after_mlp_norm   of a model with norms behind branches, too
    """

    embedding: str = "embed_tokens"
    layer: str = "layers.{}."
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    final_norm: str = "norm"
    output: str = "lm_head"
    qkv: str = ""
    gate_up: str = ""
    after_attention_norm: str = ""
    after_mlp_norm: str = ""


LLAMA = Names()


def llama_pieces(config: ModelConfig, prefix: str = "model.", names: Names = LLAMA) -> list[Piece]:
    """Pieces of a model with these names; `prefix` is before all of them but the projection's. A layer with a mixture
    of experts gets no pieces for its MLP.
    """
    out = [Piece(f"{prefix}{names.embedding}.weight", "embedding.weight")]
    for layer in range(config.num_layers):
        theirs, ours = prefix + names.layer.format(layer), f"layers.{layer}."
        out += attention_pieces(config, theirs, ours, names)
        if config.experts_of(layer) is None:
            out += mlp_pieces(config, theirs, f"{ours}mlp.", names)
    out.append(Piece(f"{prefix}{names.final_norm}.weight", "final_norm.weight"))
    if config.tied:
        return [*out, Piece(f"{names.output}.weight", "embedding.weight", copy=True)]
    return [*out, Piece(f"{names.output}.weight", "output.weight")]


def attention_pieces(config: ModelConfig, theirs: str, ours: str, names: Names = LLAMA) -> list[Piece]:
    """Pieces of a layer's attention and all of its norms; `theirs` and `ours` are before the names."""
    head, out = config.head_width, []
    kinds = ("weight", "bias") if config.qkv_bias else ("weight",)
    several = ((names.q, config.num_heads), (names.k, config.num_kv_heads), (names.v, config.num_kv_heads))
    one = ((names.qkv, config.num_heads + 2 * config.num_kv_heads),)
    for kind in kinds:
        start = 0
        for name, num in one if names.qkv else several:
            rows = slice(start, start + num * head)
            out.append(Piece(f"{theirs}{name}.{kind}", f"{ours}attention.qkv.{kind}", (rows,)))
            start = rows.stop
    out.append(Piece(f"{theirs}{names.out}.weight", f"{ours}attention.out.weight"))
    if config.out_bias:
        out.append(Piece(f"{theirs}{names.out}.bias", f"{ours}attention.out.bias"))
    if config.qk_norm:
        out.append(Piece(f"{theirs}{names.q_norm}.weight", f"{ours}attention.q_norm.weight"))
        out.append(Piece(f"{theirs}{names.k_norm}.weight", f"{ours}attention.k_norm.weight"))
    out.append(Piece(f"{theirs}{names.attention_norm}.weight", f"{ours}attention_norm.weight"))
    if config.norm_placement == "both":
        for theirs_after, ours_after in ((names.after_attention_norm, "attention"), (names.after_mlp_norm, "mlp")):
            out.append(Piece(f"{theirs}{theirs_after}.weight", f"{ours}after_{ours_after}_norm.weight"))
    return [*out, Piece(f"{theirs}{names.mlp_norm}.weight", f"{ours}mlp_norm.weight")]


def mlp_pieces(
    config: ModelConfig, theirs: str, ours: str, names: Names = LLAMA, width: int | None = None
) -> list[Piece]:
    """Pieces of a gated MLP of inner width `width`, by default the config's."""
    inner, out = width or config.mlp_width, []
    for kind in ("weight", "bias") if config.mlp_bias else ("weight",):
        several = ((names.gate, (slice(0, inner),)), (names.up, (slice(inner, 2 * inner),)))
        for name, rows in ((names.gate_up, ()),) if names.gate_up else several:
            out.append(Piece(f"{theirs}{name}.{kind}", f"{ours}gate_up.{kind}", rows))
        out.append(Piece(f"{theirs}{names.down}.{kind}", f"{ours}down.{kind}"))
    return out


def llama_shape(
    published: Published, *, tied: bool = False, theta: float = 10_000.0, sliding: bool = False
) -> dict[str, Any]:
    """The fields of a `ModelConfig` that a `config.json` with Llama's keys gives: shape, norms, rotary positions.

    sliding  whether the family has windows; else UnsupportedError where they are on
    tied   whether the projection is tied where the config does not say so
    theta  the base of rotary positions where the config has none
    """
    config = published.config
    if not sliding:
        refuse_windows(config)
    width, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    bias = flag(config, "attention_bias")
    return {
        "width": width,
        "num_layers": whole(config, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": whole(config, "num_key_value_heads", heads),
        "head_width": whole(config, "head_dim", width // heads),
        "mlp_width": whole(config, "intermediate_size"),
        "max_positions": whole(config, "max_position_embeddings", 2048),
        "norm_eps": number(config, "rms_norm_eps", 1e-6),
        "activation": activation(config),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": flag(config, "mlp_bias"),
        "qk_norm": False,
        "tied": flag(config, "tie_word_embeddings", tied),
        **rotary(config, theta),
        **({"windows": windows_of(config)} if sliding else {}),
    }


def rows_of_embedding(published: Published, name: str = "model.embed_tokens.weight") -> int:
    """V: `vocab_size`, or the rows of the published embedding where it has grown beyond that."""
    shape = published.shapes.get(name) or published.shapes.get(name.removeprefix("model."))
    return max(shape[0], whole(published.config, "vocab_size", 1)) if shape else whole(published.config, "vocab_size")


def _llama(published: Published) -> ModelConfig:
    size = whole(published.config, "vocab_size")
    return with_masks(ModelConfig(**llama_shape(published), **vocabulary(published, size)), published)


def _diffullama(published: Published) -> ModelConfig:
    # The mask is an existing token of Llama 2, whose tokenizer names no other (the publisher's training code).
    size, mask = rows_of_embedding(published), mask_of(published, 811)
    tokens = vocabulary(published, size, mask_id=mask, bos_id=bos_of(published))
    return ModelConfig(**llama_shape(published), context="full", shift=True, **tokens)


def _stable_diffcoder(published: Published) -> ModelConfig:
    size, mask = whole(published.config, "vocab_size"), mask_of(published, published.tokens.get("<[MASK_TOKEN]>"), 5)
    shape = llama_shape(published, theta=500_000.0)
    block = whole(published.config, "block_size", 4)
    tokens = vocabulary(published, size, mask_id=mask)
    return ModelConfig(**shape, context="block", block_size=block, shift=False, **tokens)


def _mistral(published: Published) -> ModelConfig:
    refuse(published.config, {"attention_bias": (False,), "mlp_bias": (False,)})
    size = whole(published.config, "vocab_size")
    return ModelConfig(**llama_shape(published, sliding=True), **vocabulary(published, size))


FAMILY = Family(
    name="llama",
    title="Llama 1 to 3 and models with its names (autoregressive)",
    model_types=("llama",),
    architectures=("LlamaForCausalLM",),
    read=_llama,
    pieces=llama_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    examples=("meta-llama/Llama-3.2-1B", "HuggingFaceTB/SmolLM2-135M"),
    source="arXiv 2407.21783",
)
MISTRAL = replace(
    FAMILY,
    name="mistral",
    title="Mistral 7B (autoregressive)",
    model_types=("mistral",),
    architectures=("MistralForCausalLM",),
    read=_mistral,
    examples=("mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-v0.1"),
    source="arXiv 2310.06825",
)
DIFFULLAMA = replace(
    FAMILY,
    name="diffullama",
    title="DiffuLLaMA 7B",
    read=_diffullama,
    names=("diffullama",),
    decode={"mode": "full", "policy": "first_hitting", "temperature": 0.9, "top_p": 0.9},
    examples=("diffusionfamily/diffullama",),
    source="arXiv 2410.17891; github.com/HKUNLP/DiffuLLaMA, inf_diffullama.py",
)
STABLE_DIFFCODER = replace(
    FAMILY,
    name="stable_diffcoder",
    title="Stable-DiffCoder 8B Base and Instruct",
    architectures=("StableDiffcoderForCausalLM",),
    read=_stable_diffcoder,
    decode={"mode": "block", "block_size": 4, "policy": "confidence"},
    examples=("ByteDance-Seed/Stable-DiffCoder-8B-Base", "ByteDance-Seed/Stable-DiffCoder-8B-Instruct"),
    source="github.com/ByteDance-Seed/Stable-DiffCoder",
)
FAMILIES = (FAMILY, MISTRAL, DIFFULLAMA, STABLE_DIFFCODER)
