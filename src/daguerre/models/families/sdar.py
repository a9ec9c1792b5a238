"""SDAR 1.7B to 8B and TraDo: Qwen3 with block context and no shift."""

from __future__ import annotations

import logging
import re

from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Published
from daguerre.models.families.llama import ROTARY_BUFFER, llama_pieces
from daguerre.models.families.qwen import qwen3_shape, qwen_tokens
from daguerre.models.families.reading import mask_of, whole

MASK, BLOCK = 151669, 4
LOG = logging.getLogger("daguerre")


def _read(published: Published) -> ModelConfig:
    tokens = qwen_tokens(published, mask_of(published, MASK))
    shape, block = qwen3_shape(published), block_size(published)
    return ModelConfig(**shape, context="block", block_size=block, shift=False, **tokens)


def block_size(published: Published) -> int:
    """The size of a block: names that end with -b8 to -b64 say it; else config.json does, or it is 4."""
    named = re.search(r"-b(\d+)$", published.name)
    if not named and published.config.get("block_size") is None and "/" not in published.name:
        LOG.warning(
            "neither the folder %r nor config.json says the size of a block: it is taken to be %d; if the model was "
            "published as -bN, set block_size to N in config.json",
            published.name,
            BLOCK,
        )
    return whole({"block_size": int(named[1])} if named else published.config, "block_size", BLOCK)


FAMILY = Family(
    name="sdar",
    title="SDAR 1.7B, 4B and 8B Chat, with blocks of 4 to 64; TraDo 4B and 8B",
    model_types=("sdar",),
    architectures=("SDARForCausalLM",),
    read=_read,
    pieces=llama_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    decode={"mode": "block", "policy": "threshold", "threshold": 0.9},
    examples=("JetLM/SDAR-1.7B-Chat", "JetLM/SDAR-8B-Chat-b32", "Gen-Verse/TraDo-4B-Instruct"),
    source="arXiv 2510.06303; github.com/JetAstra/SDAR, README.md",
)
FAMILIES = (FAMILY,)
