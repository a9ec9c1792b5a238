"""Dream 7B, Dream-Coder, DiffuCoder and DreamOn: Qwen2.5 with full context and a shift."""

from __future__ import annotations

from dataclasses import replace

from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Published
from daguerre.models.families.llama import ROTARY_BUFFER, llama_pieces, rows_of_embedding
from daguerre.models.families.qwen import qwen2_shape
from daguerre.models.families.reading import mask_of, token, unsupported, vocabulary

MASK = 151666
DECODE = {
    "mode": "full",
    "policy": "entropy",
    "schedule": "time",
    "rank_by": "drawn",
    "temperature": 0.2,
    "end_of_text": "plain",
}
EXPAND = "<|expand|>"
"""DreamOn's token that becomes two masks. Its <eos> in a gap deletes a position, and its texts begin with <bos>."""


def _read(published: Published) -> ModelConfig:
    config = published.config
    if config.get("block_size") is not None:
        raise unsupported(f"block_size={config['block_size']!r} in a Dream's config.json")
    size, mask, expand = rows_of_embedding(published), mask_of(published, MASK), published.tokens.get(EXPAND)
    if expand is None:
        tokens = vocabulary(published, size, mask_id=mask, eos_id=151643)
    else:
        begins = token(published, "bos_token")
        tokens = vocabulary(published, size, mask_id=mask, eos_id=151643, bos_id=begins, never=[expand])
        tokens |= {"expand_id": expand, "null_id": tokens["eos_id"]}
    return ModelConfig(**qwen2_shape(published), context="full", shift=True, **tokens)


FAMILY = Family(
    name="dream",
    title="Dream 7B, Dream-Coder 7B and DiffuCoder 7B",
    model_types=("Dream",),
    architectures=("DreamModel",),
    read=_read,
    pieces=llama_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    decode=DECODE | {"top_p": 0.95},
    examples=(
        "Dream-org/Dream-v0-Base-7B",
        "Dream-org/Dream-v0-Instruct-7B",
        "Dream-org/Dream-Coder-v0-Instruct-7B",
        "apple/DiffuCoder-7B-Instruct",
    ),
    source="arXiv 2508.15487; github.com/DreamLM/Dream, README.md",
)
DREAMON = replace(
    FAMILY,
    name="dreamon",
    title="DreamOn 7B, whose gaps grow and shrink while they are filled",
    names=("dreamon",),
    decode={name: value for name, value in DECODE.items() if name not in ("mode", "schedule")} | {"top_p": 0.9},
    examples=("Dream-org/DreamOn-v0-7B",),
    source="arXiv 2602.01326; github.com/DreamLM/DreamOn, readme.md",
)
FAMILIES = (FAMILY, DREAMON)
