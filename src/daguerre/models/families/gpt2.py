"""GPT-2, and DiffuGPT: GPT-2 with full context, trained to predict masked tokens from the row before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Piece, Published, Weights
from daguerre.models.families.llama import rows_of_embedding
from daguerre.models.families.reading import activation, bos_of, flag, mask_of, number, refuse, vocabulary, whole

GPT2_TOKENS = 50257
MASK_OF_SMALL = 10541
"""DiffuGPT-S has an existing token as its mask; DiffuGPT-M has a new one after all others."""
BUFFERS = (r"(.*\.)?attn\.(masked_)?bias",)
"""The causal mask, which old checkpoints contain."""


def transposed(matrix: Weights) -> Weights:
    """A matrix that is stored with its inputs first, as GPT-2's `Conv1D` does."""
    return matrix.T


def gpt2_pieces(
    config: ModelConfig, prefix: str = "transformer.", embedding: str = "transformer.wte.weight"
) -> list[Piece]:
    """Pieces of a GPT-2; `prefix` is before the names of its layers."""
    out = [Piece(embedding, "embedding.weight"), Piece(f"{prefix}wpe.weight", "position_embedding.weight")]
    for layer in range(config.num_layers):
        theirs, ours = f"{prefix}h.{layer}.", f"layers.{layer}."
        out += _both(f"{theirs}ln_1", f"{ours}attention_norm") + _both(f"{theirs}ln_2", f"{ours}mlp_norm")
        for name, target in (
            ("attn.c_attn", "attention.qkv"),
            ("attn.c_proj", "attention.out"),
            ("mlp.c_fc", "mlp.up"),
            ("mlp.c_proj", "mlp.down"),
        ):
            out.append(Piece(f"{theirs}{name}.weight", f"{ours}{target}.weight", change=transposed))
            out.append(Piece(f"{theirs}{name}.bias", f"{ours}{target}.bias"))
    out += _both(f"{prefix}ln_f", "final_norm")
    target = "embedding.weight" if config.tied else "output.weight"
    return [*out, Piece("lm_head.weight", target, copy=config.tied)]


def _both(theirs: str, ours: str) -> list[Piece]:
    return [Piece(f"{theirs}.{kind}", f"{ours}.{kind}") for kind in ("weight", "bias")]


def _shape(published: Published) -> dict[str, Any]:
    config = published.config
    refuse(config, {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)})
    refuse(config, {"add_cross_attention": (False,)})
    width, heads = whole(config, "n_embd"), whole(config, "n_head")
    return {
        "width": width,
        "num_layers": whole(config, "n_layer"),
        "num_heads": heads,
        "num_kv_heads": heads,
        "mlp_width": whole(config, "n_inner", 4 * width),
        "max_positions": whole(config, "n_positions", whole(config, "n_ctx", 1024)),
        "norm": "layer",
        "norm_eps": number(config, "layer_norm_epsilon", 1e-5),
        "activation": activation(config, "activation_function", "gelu_new"),
        "gated_mlp": False,
        "positions": "learned",
        "qk_norm": False,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "tied": flag(config, "tie_word_embeddings", True),
    }


def _gpt2(published: Published) -> ModelConfig:
    size = whole(published.config, "vocab_size", GPT2_TOKENS)
    return ModelConfig(**_shape(published), **vocabulary(published, size, eos_id=size - 1))


def _diffugpt(published: Published) -> ModelConfig:
    # The vocabulary grew by the mask and was padded, and config.json may have the size from before.
    size = rows_of_embedding(published, "embed_tokens.weight")
    mask = mask_of(published, GPT2_TOKENS if size > GPT2_TOKENS else MASK_OF_SMALL)
    tokens = vocabulary(published, size, mask_id=mask, eos_id=GPT2_TOKENS - 1, bos_id=bos_of(published))
    return ModelConfig(**_shape(published), context="full", shift=True, **tokens)


def _diffugpt_pieces(config: ModelConfig) -> list[Piece]:
    return gpt2_pieces(config, "denoise_model.", "embed_tokens.weight")


FAMILY = Family(
    name="gpt2",
    title="GPT-2 and models with its names (autoregressive)",
    model_types=("gpt2",),
    architectures=("GPT2LMHeadModel",),
    read=_gpt2,
    pieces=gpt2_pieces,
    prefix="transformer.",
    ignored=BUFFERS,
    examples=("openai-community/gpt2", "openai-community/gpt2-medium", "distilbert/distilgpt2"),
    source="Radford et al., 2019, Language Models are Unsupervised Multitask Learners",
)
DIFFUGPT = replace(
    FAMILY,
    name="diffugpt",
    title="DiffuGPT S and M",
    read=_diffugpt,
    pieces=_diffugpt_pieces,
    names=("diffugpt",),
    prefix="",
    decode={"mode": "full", "policy": "first_hitting", "temperature": 0.95, "top_p": 0.9},
    examples=("diffusionfamily/diffugpt-s", "diffusionfamily/diffugpt-m"),
    source="arXiv 2410.17891; github.com/HKUNLP/DiffuLLaMA, inf_diffugpt.py and model.py",
)
FAMILIES = (FAMILY, DIFFUGPT)
