"""Phi-3, Phi-3.5 and Phi-4-mini: a Llama whose queries, keys and values are one matrix, and whose gates and values of
the MLP are one, with windows, and positions scaled by a number for each frequency (longrope).
"""

from __future__ import annotations

from dataclasses import replace

from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Piece, Published
from daguerre.models.families.llama import LLAMA, ROTARY_BUFFER, llama_pieces, llama_shape
from daguerre.models.families.moe import all_rotated, rotated_share
from daguerre.models.families.reading import refuse, vocabulary, whole

NAMES = replace(LLAMA, qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")


def _read(published: Published) -> ModelConfig:
    config = published.config
    refuse(config, {"attention_bias": (False,), "mlp_bias": (False,)})
    shape = llama_shape(all_rotated(published), sliding=True) | {"rope_share": rotated_share(config, 1.0)}
    return ModelConfig(**shape, **vocabulary(published, whole(config, "vocab_size")))


def _pieces(config: ModelConfig) -> list[Piece]:
    return llama_pieces(config, names=NAMES)


FAMILY = Family(
    name="phi3",
    title="Phi-3, Phi-3.5-mini and Phi-4-mini (autoregressive)",
    model_types=("phi3",),
    architectures=("Phi3ForCausalLM",),
    read=_read,
    pieces=_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    examples=("microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-4-mini-instruct"),
    source="arXiv 2404.14219",
)
FAMILIES = (FAMILY,)
