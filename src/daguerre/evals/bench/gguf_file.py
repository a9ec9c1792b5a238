"""A backbone as a GGUF file, for llama.cpp: the same weights, and greedy tokens that are equal but for rounding.

Architecture "qwen3" is the default model's: pre-RMSNorm, QK-norm on each head, rotary halves, SwiGLU, tied embeddings,
no bias.
"llama" leaves QK-norm out (and rotates neighbors, not halves), for random weights whose values do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from daguerre.errors import MissingExtra, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig

Arch = Literal["qwen3", "llama"]
DTYPES = ("F32", "BF16", "Q8_0")
EXPRESSIBLE: dict[str, Any] = {
    "context": "causal",
    "time_input": False,
    "qk_norm": True,
    "qkv_bias": False,
    "out_bias": False,
    "mlp_bias": False,
    "tied": True,
    "norm": "rms",
    "norm_placement": "pre",
    "activation": "silu",
    "gated_mlp": True,
    "positions": "rotary",
    "rope_share": 1.0,
    "rope_scaling": None,
    "qk_norm_scope": "head",
    "clip_qkv": None,
    "experts": None,
}
"""The values that a model's config must have."""


def write_gguf(backbone: Backbone, path: Path, dtype: str, arch: Arch = "qwen3", tokenizer: Path | None = None) -> None:
    """Write the weights with matrices in `dtype`, one of DTYPES, and norms in float32; and the byte-level BPE of a
    `tokenizer.json`. Without one there is no vocabulary: ids in, ids out.

    UnsupportedError for a backbone that is not of EXPRESSIBLE; MissingExtra without the `gguf` package.
    """
    try:
        import gguf
    except ImportError:
        raise MissingExtra("gguf", "bench") from None
    config = backbone.config
    others = [name for name, value in EXPRESSIBLE.items() if getattr(config, name) != value]
    if others:
        raise UnsupportedError(f"llama.cpp cannot run this model, because of its {', '.join(others)}: leave it out")
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("daguerre")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_width)
    writer.add_value_length(config.head_width)
    writer.add_rope_dimension_count(config.head_width)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if tokenizer is None:
        writer.add_tokenizer_model("none")
    else:
        _add_tokenizer(writer, json.loads(tokenizer.read_text(encoding="utf-8")), config)
    kinds = {name: gguf.GGMLQuantizationType[name] for name in DTYPES}
    for name, weight in tensors(backbone, qk_norm=arch == "qwen3"):
        kind = kinds[dtype if weight.ndim == 2 else "F32"]
        data: Any = weight if kind is kinds["F32"] else gguf.quants.quantize(weight, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, facts: dict[str, Any], config: ModelConfig) -> None:
    """Byte-level BPE, as llama.cpp's "gpt2"."""
    import gguf

    special = {token["content"] for token in facts["added_tokens"]}
    ids = {token["content"]: token["id"] for token in facts["added_tokens"]} | facts["model"]["vocab"]
    names = {number: name for name, number in ids.items()}
    tokens = [names.get(number, f"<unused {number}>") for number in range(config.vocab_size)]
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.CONTROL if name in special else kinds.NORMAL for name in tokens])
    merges = facts["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config.bos_id)
    writer.add_eos_token_id(config.eos_id)
    writer.add_add_bos_token(True)


def tensors(backbone: Backbone, *, qk_norm: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Names as llama.cpp has them, and float32 weights."""
    config = backbone.config
    head = config.head_width
    sizes = np.cumsum([config.num_heads * head, config.num_kv_heads * head])
    yield "token_embd.weight", _numpy(backbone.embedding.weight)
    yield "output_norm.weight", _numpy(backbone.final_norm.weight)
    layers: Any = backbone.layers
    for index, layer in enumerate(layers):
        attention, mlp = layer.attention, layer.mlp
        q, k, v = np.split(_numpy(attention.qkv.weight), sizes)
        gate, up = np.split(_numpy(mlp.gate_up.weight), 2)
        parts = {
            "attn_norm": _numpy(layer.attention_norm.weight),
            "attn_q": q,
            "attn_k": k,
            "attn_v": v,
            "attn_output": _numpy(attention.out.weight),
            "ffn_norm": _numpy(layer.mlp_norm.weight),
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": _numpy(mlp.down.weight),
        }
        if qk_norm:
            parts |= {
                "attn_q_norm": _numpy(attention.q_norm.weight),
                "attn_k_norm": _numpy(attention.k_norm.weight),
            }
        yield from ((f"blk.{index}.{name}.weight", weight) for name, weight in parts.items())


def _numpy(weight: Any) -> np.ndarray:
    return np.ascontiguousarray(weight.detach().float().cpu().numpy())
