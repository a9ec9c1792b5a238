"""Effort: one word for how many forwards a text may take, in the terms of each mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daguerre.decoding.modes import MODES, choose_mode
from daguerre.decoding.options import Decode, with_defaults
from daguerre.errors import unknown
from daguerre.models.core.config import ModelConfig

EFFORTS: dict[str, dict[str, Any]] = {
    "instant": {"policy": "threshold", "threshold": 0.3},
    "low": {"policy": "threshold", "threshold": 0.6},
    "medium": {},
    "high": {"policy": "confidence", "schedule": "even"},
}
"""Options of denoising for each word: from many tokens a forward to one. "medium" is what the model's publisher, or
else Daguerre, does by default."""


def effort_options(effort: str, config: ModelConfig, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a completion for an effort. They are those of "medium" where a mode has none to choose: the tokens
    of modes "ar" and "speculative" do not depend on it, and other modes have their own `steps`.
    """
    if effort not in EFFORTS:
        raise unknown("effort", effort, EFFORTS)
    decode = Decode(**with_defaults(defaults, {}))
    mode = decode.mode or choose_mode(decode, config, infilling=False)
    return dict(EFFORTS[effort]) if "policy" in MODES[mode].options else {}
