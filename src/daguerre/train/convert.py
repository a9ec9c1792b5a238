"""An autoregressive model that becomes one that fills masks, by recipes that were published.

    causal      causal context and the shift are kept, so that the model still writes from left to right as it did;
                masks behind a text see each other, and gaps end with a gap filler, as in the default model
    diffullama  full context, and the shift is kept; attention opens over `anneal` of the run (arXiv 2410.17891)
    sdar        block context without a shift, blocks of 4 at first (arXiv 2510.06303)
    fast_dllm   block context with a shift, blocks of 32; the last clean row predicts a block's first token
                (arXiv 2509.26328)

Weights are kept. A model without a mask, or without a gap filler, gets an id that no token has, whose embedding is the
mean of all others. The loss is that of the family that comes out (`daguerre.train.sft.presets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import InputError, UnsupportedError
from daguerre.files import write_json
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.families.reading import GAP_FILLER
from daguerre.models.json_files import read_json
from daguerre.models.published import PublishedSource
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.readers import CONFIG, FAMILY_KEY, reader_of
from daguerre.models.republish import BLOCK_KEYS
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.keys import Section, key

CONVERSIONS: dict[str, dict[str, Any]] = {
    "causal": {"context": "causal", "shift": True, "block_size": 4},
    "diffullama": {"context": "full", "shift": True},
    "sdar": {"context": "block", "shift": False, "block_size": 4},
    "fast_dllm": {"context": "block", "shift": True, "anchor": "clean", "block_size": 32},
}
"""What each recipe changes in a causal model."""
BECOMES = {
    ("llama", "causal"): ("llama", "LlamaForCausalLM", "llama"),
    ("qwen2", "causal"): ("qwen2", "Qwen2ForCausalLM", "qwen2"),
    ("qwen3", "causal"): ("qwen3", "Qwen3ForCausalLM", "qwen3"),
    ("llama", "diffullama"): ("diffullama", "LlamaForCausalLM", "llama"),
    ("qwen2", "diffullama"): ("dream", "DreamModel", "Dream"),
    ("qwen2", "fast_dllm"): ("fast_dllm", "Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen"),
    ("llama", "sdar"): ("a2d_block", "A2DLlamaLMHeadModel", "a2d-llama"),
    ("qwen2", "sdar"): ("a2d_block", "A2DQwen2LMHeadModel", "a2d-qwen2"),
    ("qwen3", "sdar"): ("sdar", "SDARForCausalLM", "sdar"),
}
"""The family that comes out of a published one, its architecture and model type."""


@dataclass(frozen=True, kw_only=True)
class Convert(Section, place="convert."):
    """What a recipe says of a conversion."""

    to: str = key("the published recipe of conversion", names=CONVERSIONS)
    block_size: int = key("tokens of a block; 0: those of that recipe", 0, low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size and "block_size" not in CONVERSIONS[self.to]:
            raise InputError(
                f"recipe: convert.block_size belongs to block context, and {self.to!r} is full: leave it out"
            )


def converted(model: Backbone, tokenizer: Tokenizer, options: Convert, source: Path | None) -> Backbone:
    """The model with the context of the recipe, and its weights. UnsupportedError where it is not autoregressive, or
    where the published layout of `source` (None: Daguerre's own) has no family for what comes out.
    """
    config = model.config
    if config.context != "causal" or not config.shift or config.masks_in_place or config.concepts is not None:
        raise UnsupportedError(
            "only an autoregressive model is converted: causal context, a shift, and no concept heads"
        )
    if source is not None:
        family_after(source, options)
    if config.windows is not None:
        raise UnsupportedError(
            f"{len(config.windows.layers)} of the model's layers see windows of {config.windows.size} positions, which "
            "belong to causal context: convert a model without sliding windows"
        )
    changes = CONVERSIONS[options.to] | ({"block_size": options.block_size} if options.block_size else {})
    facts: dict[str, Any] = {"block_size": None, "draft_head": 0, "draft_rank": 0, "draft_acceptance": (), **changes}
    fresh = _fresh_ids(config, tokenizer, fills=changes["context"] == "causal")
    reserved = tuple(sorted({*config.reserved_ids, *fresh.values()} - {*config.ends}))
    facts["vocab_size"] = max(config.vocab_size, *(index + 1 for index in fresh.values()), 0)
    facts |= fresh
    out = Backbone(replace(config, reserved_ids=reserved, **facts))
    weights = model.state_dict()
    out.load_state_dict({name: _grown(weights[name], held) for name, held in out.state_dict().items()})
    new = [index for index in fresh.values() if index not in (tokenizer.mask_id, tokenizer.null_id)]
    for matrix in (out.embedding.weight, *([] if out.output is None else [out.output.weight])):
        _set_to_mean(matrix, new)
    return out


@torch.no_grad()
def _set_to_mean(matrix: torch.Tensor, rows: list[int]) -> None:
    """Make rows of a matrix the mean of all others."""
    if rows:
        others = torch.ones(len(matrix), dtype=torch.bool)
        others[rows] = False
        matrix[rows] = matrix[others].mean(0)


def _grown(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A weight with as many rows as another one; those that it lacks are 0."""
    if weight.shape == like.shape:
        return weight
    return torch.cat([weight, weight.new_zeros(len(like) - len(weight), *weight.shape[1:])])


def _fresh_ids(config: ModelConfig, tokenizer: Tokenizer, fills: bool) -> dict[str, int]:
    """The ids, by fields of the config, of the mask, and with `fills` of the gap filler, where the model has none:
    those of the tokenizer, else the first ones that no token has, which may be further rows of the embedding.
    """
    first = tokenizer.num_tokens if isinstance(tokenizer, PublishedTokenizer) else tokenizer.vocab_size
    free, out = count(min(first, config.vocab_size)), dict[str, int]()
    for name in ("mask_id", "null_id") if fills else ("mask_id",):
        if getattr(config, name) is None:
            named = getattr(tokenizer, name)
            out[name] = next(free) if named is None else int(named)
    return out


def family_after(source: Path, options: Convert) -> tuple[str, str, str]:
    """The family that comes out of a published folder, its architecture and model type."""
    before = PublishedSource(reader_of(source)).family_name
    if (before, options.to) not in BECOMES:
        fitting = ", ".join(f"{family} to {to}" for family, to in BECOMES)
        raise UnsupportedError(f"no published layout is {before} converted to {options.to!r}; there are {fitting}")
    return BECOMES[before, options.to]


def convert_origin(origin: Path, source: Path, options: Convert, config: ModelConfig) -> None:
    """Have the kept files of a published model say what it becomes, which has this config."""
    family, architecture, kind = family_after(source, options)
    values: Mapping[str, Any] = read_json(origin / CONFIG)
    said: dict[str, Any] = {"architectures": [architecture], "model_type": kind, FAMILY_KEY: family}
    if config.null_id is not None:
        said[GAP_FILLER] = config.null_id
    said |= {"mask_token_id": config.mask_id, "bos_token_id": config.bos_id, "vocab_size": config.vocab_size}
    block = {BLOCK_KEYS.get(family, "block_size"): config.block_size} if config.block_size else {}
    write_json(origin / CONFIG, {**values, **said, **block}, indent=2)
