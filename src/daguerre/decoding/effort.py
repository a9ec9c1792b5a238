"""Effort: one word for how many forwards a text may take, in the terms of each mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from daguerre.decoding.defaults import chosen
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.request import Decode
from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.models.core.config import ModelConfig

EFFORTS: dict[str, dict[str, Any]] = {
    "instant": {"policy": "threshold", "threshold": 0.3, "steps": 8},
    "low": {"policy": "threshold", "threshold": 0.6, "steps": 24},
    "medium": {},
    "high": {"policy": "confidence", "schedule": "even"},
}
"""Options for each word: from many tokens a forward to one. "medium" is what the model's publisher, or else Daguerre,
does by default. `steps` is for modes without a policy."""
NAMES = frozenset(field.name for field in fields(DecodeOptions))


def effort_options(
    effort: str, config: ModelConfig, defaults: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The options of a completion for an effort, beside those `given`: as many as these do not exclude.

    UnsupportedError where the mode leaves an effort other than "medium" nothing to set: modes "ar" and "speculative"
    have the tokens of the model. InputError where the given options do.
    """
    if effort not in EFFORTS:
        raise unknown("effort", effort, EFFORTS)
    asked = {name: value for name, value in (given or {}).items() if name in NAMES}
    plain = chosen(config, asked, defaults, infilling=False).resolved(config, infilling=False)
    used = plain.mode_entry.options
    wanted = {name: value for name, value in EFFORTS[effort].items() if name in used}
    if "policy" in wanted:
        wanted.pop("steps", None)
    if EFFORTS[effort] and not wanted:
        raise UnsupportedError(f'effort "{effort}" has nothing to set in mode "{plain.mode}": use effort "medium"')
    out = dict[str, Any]()
    for name, value in wanted.items():
        if name not in asked and _has_effect(asked | {"mode": plain.mode} | out, name, value):
            out[name] = value
    changed = chosen(config, asked | out, defaults, infilling=False).resolved(config, infilling=False)
    if len(out) < len(wanted) and changed == plain:
        names = " and ".join(name for name in asked if name in used)
        raise InputError(f'effort "{effort}" has nothing to set beside {names}: leave out one of the two')
    return out


def _has_effect(options: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether an option may stand beside others, one of them the mode, in a policy that reads it."""
    try:
        decode = Decode(**{**options, name: value})
    except (InputError, UnsupportedError):
        return False
    by_policy = "policy" in decode.mode_entry.options and name != "policy"
    return not by_policy or name in decode.policy_options
