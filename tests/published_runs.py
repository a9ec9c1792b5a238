"""Runs of tiny random models that have a published tokenizer."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

import made_tokenizers as mt
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.published_tokenizer import PublishedTokenizer
from main_path import generate

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@cache
def model_of(kind: str, context: str = "causal") -> Model:
    """A random model with a published tokenizer, which has 64 ids fewer than the model."""
    made = mt.wordpiece() if kind == "wordpiece" else mt.made(kind)
    tokenizer = made.sized(max(made.vocab_size, made.num_tokens + 64))
    config = config_of(tokenizer, context=context)
    backbone = Backbone(config).initialize(0, zero_outputs=False, scale=6.0)
    with torch.no_grad():
        for name, weight in backbone.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                weight.mul_(10.0)
    return Model(backbone.eval().requires_grad_(False), tokenizer, "torch")


def config_of(tokenizer: PublishedTokenizer, **facts: Any) -> ModelConfig:
    """As a family reads it: the mask and ids without a token are never predicted, other special tokens may be."""
    return ModelConfig(
        vocab_size=tokenizer.vocab_size,
        width=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        mlp_width=64,
        max_positions=256,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        mask_id=tokenizer.mask_id,
        reserved_ids=(tokenizer.mask_id, *range(tokenizer.num_tokens, tokenizer.vocab_size)),
        **facts,
    )


def run(kind: str, *args: Any, context: str = "causal", call: Any = generate, **options: Any) -> Any:
    model = model_of(kind, context)
    return call(model.denoiser, model.tokenizer, *args, **options)


def tokens_of(result: Any) -> list[int]:
    """The tokens of the finished canvas."""
    *_, final = [result.trace.canvas, *result.trace.replay()]
    return [int(token) for token in final.tokens]
