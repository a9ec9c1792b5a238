"""LLaDA 8B Base, Instruct and 1.5, and iLLaDA: a Llama with OLMo's names, full context and no shift."""

from __future__ import annotations

from typing import Any

from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Piece, Published
from daguerre.models.families.llama import Names, llama_pieces
from daguerre.models.families.reading import flag, mask_of, number, refuse, unsupported, vocabulary, whole

NAMES = Names(
    embedding="wte",
    layer="blocks.{}.",
    q="q_proj",
    k="k_proj",
    v="v_proj",
    out="attn_out",
    attention_norm="attn_norm",
    mlp_norm="ff_norm",
    gate="ff_proj",
    up="up_proj",
    down="ff_out",
    final_norm="ln_f",
    output="model.transformer.ff_out",
)
LLAMA_LIKE: dict[str, tuple[Any, ...]] = {
    "block_type": ("llama",),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "bias_for_layer_norm": (False,),
    "attention_layer_norm": (False,),
    "input_emb_norm": (False,),
    "scale_logits": (False,),
    "alibi": (False,),
    "rope": (True,),
    "block_group_size": (1,),
}
"""What the options of OLMo's code, which LLaDA is written in, must be for the computation to be Llama's."""
END_OF_TURN = 126348
"""<|eot_id|>: not among the added tokens of the base model."""


def _read(published: Published) -> ModelConfig:
    config = published.config
    refuse(config, LLAMA_LIKE)
    width, heads = whole(config, "d_model"), whole(config, "n_heads")
    bias = flag(config, "include_bias")
    if bias and config.get("bias_for_layer_norm") is None:
        raise unsupported("include_bias=True with biases of norms in config.json")
    vocab_size = whole(config, "vocab_size")
    return ModelConfig(
        width=width,
        num_layers=whole(config, "n_layers"),
        num_heads=heads,
        num_kv_heads=1 if config.get("multi_query_attention") else whole(config, "n_kv_heads", heads),
        mlp_width=whole(config, "mlp_hidden_size", whole(config, "mlp_ratio", 4) * width),
        max_positions=whole(config, "max_sequence_length", 1024),
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        rope_theta=number(config, "rope_theta", 10_000.0),
        qk_norm=False,
        qkv_bias=bias or flag(config, "include_qkv_bias"),
        out_bias=bias,
        mlp_bias=bias,
        tied=flag(config, "weight_tying", True),
        context="full",
        shift=False,
        **_tokens(published, vocab_size, whole(config, "embedding_size", vocab_size)),
    )


def _tokens(published: Published, vocab_size: int, rows: int) -> dict[str, Any]:
    """Tokens; the embedding may have more rows than the vocabulary has tokens, which are never predicted."""
    out = vocabulary(published, rows, mask_id=mask_of(published), never=range(vocab_size, rows))
    if out["eos_id"] == 126081 and vocab_size > END_OF_TURN and END_OF_TURN not in out["end_ids"]:
        out["end_ids"] = (*out["end_ids"], END_OF_TURN)
    return out


def _pieces(config: ModelConfig) -> list[Piece]:
    return llama_pieces(config, "model.transformer.", NAMES)


FAMILY = Family(
    name="llada",
    title="LLaDA 8B Base, Instruct and 1.5; iLLaDA",
    model_types=("llada",),
    architectures=("LLaDAModelLM",),
    read=_read,
    pieces=_pieces,
    decode={"mode": "block", "block_size": 32, "policy": "confidence", "end_of_text": "plain"},
    examples=("GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5"),
    source="arXiv 2502.09992; github.com/ML-GSAI/LLaDA, generate.py",
)
FAMILIES = (FAMILY,)
