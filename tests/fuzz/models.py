"""Tiny models for targets that need one: random, so what they write means nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

from concept_models import CATALOG, SHAPE
from conftest import tiny_config
from daguerre.model import Model
from daguerre.models.core.build import make_backbone
from daguerre.models.tokenizer import Tokenizer


@cache
def model(concepts: bool = False, **facts: Any) -> Model:
    """A model whose products PyTorch computes, so that nothing is compiled."""
    tokenizer = Tokenizer.default("2k")
    shape = {"concepts": SHAPE} if concepts else {}
    backbone = make_backbone(tiny_config(tokenizer, draft_head=24, **shape, **facts)).initialize(
        0, zero_outputs=False, scale=6.0
    )
    return Model(backbone.eval().requires_grad_(False), tokenizer, "torch", concepts=CATALOG if concepts else None)
