"""Where the tensors of a GGUF file belong in a backbone: llama.cpp's names of its parts, and its order of rows."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Piece, Weights
from daguerre.models.families.llama import Names, llama_pieces, mlp_pieces
from daguerre.models.gguf.values import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS

NAMES = Names(
    embedding="token_embd",
    layer="blk.{}.",
    q="attn_q",
    k="attn_k",
    v="attn_v",
    out="attn_output",
    q_norm="attn_q_norm",
    k_norm="attn_k_norm",
    attention_norm="attn_norm",
    mlp_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    final_norm="output_norm",
    output="output",
    after_attention_norm="post_attention_norm",
    after_mlp_norm="post_ffw_norm",
)
FUSED = {"phi3": replace(NAMES, qkv="attn_qkv", gate_up="ffn_up"), "llada2": replace(NAMES, qkv="attn_qkv")}
"""Names of architectures in which several matrices are one."""
SHARED = replace(NAMES, gate="ffn_gate_shexp", up="ffn_up_shexp", down="ffn_down_shexp")
"""Names of the expert that every token goes through."""
UNTIED = ("llada-moe", "llada2")
"""Architectures that llama.cpp reads only with a matrix of its own for the vocabulary's projection."""
PAIRED = ("llama", "llada")
"""Architectures in which llama.cpp rotates neighbors, so that the rows of queries and keys are in another order."""


def gguf_pieces(config: ModelConfig, arch: str) -> list[Piece]:
    """The pieces of a model under llama.cpp's names."""
    pieces = llama_pieces(config, "", FUSED.get(arch, NAMES))
    for layer in range(config.num_layers):
        pieces += mixture_pieces(config, layer)
    if arch not in PAIRED:
        return pieces
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    found = [re.fullmatch(r"blk\.\d+\.(attn_[qk])\.(?:weight|bias)", piece.name) for piece in pieces]
    return [
        piece if match is None else replace(piece, change=partial(as_halves, num_heads=heads[match[1]]), rows=True)
        for piece, match in zip(pieces, found, strict=True)
    ]


def mixture_pieces(config: ModelConfig, layer: int) -> list[Piece]:
    """Pieces of a layer's router and experts, which are stacked there, too; none for a layer without experts."""
    experts, theirs, ours = config.experts_of(layer), f"blk.{layer}.", f"layers.{layer}.mlp."
    if experts is None:
        return []
    every, width = slice(None), experts.width
    out = [
        Piece(f"{theirs}ffn_gate_inp.weight", f"{ours}router.weight"),
        Piece(f"{theirs}ffn_gate_exps.weight", f"{ours}gate_up.weight", (every, slice(0, width))),
        Piece(f"{theirs}ffn_up_exps.weight", f"{ours}gate_up.weight", (every, slice(width, 2 * width))),
        Piece(f"{theirs}ffn_down_exps.weight", f"{ours}down.weight"),
    ]
    if experts.bias:
        out.append(Piece(f"{theirs}exp_probs_b.bias", f"{ours}expert_bias"))
    if experts.shared_width:
        out += mlp_pieces(config, theirs, f"{ours}shared.", SHARED, experts.shared_width)
    return out


def in_gguf(family: Family, arch: str) -> Family:
    """The family with its tensors under llama.cpp's names."""
    ignored = tuple(map(re.escape, (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS)))
    return replace(family, pieces=partial(gguf_pieces, arch=arch), prefix="", ignored=ignored)


def as_halves(rows: Weights, num_heads: int) -> Weights:
    """Rows of queries or keys, (heads x numbers of a head, ...), from llama.cpp's order to ours: the two numbers that
    are rotated together are neighbors there, and half a head apart here.
    """
    return rows.reshape(num_heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def as_pairs(rows: Weights, num_heads: int) -> Weights:
    """The inverse of `as_halves`."""
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
