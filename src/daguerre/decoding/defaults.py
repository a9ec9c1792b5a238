"""Options that hold unless a request excludes them: the defaults of a published family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from daguerre.decoding.request import Decode, check_changeable, check_end_of_text
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig

CHAT_SAMPLING = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
"""How an answer of an autoregressive model is drawn whose publisher does not say: the likeliest answer of a small model
repeats itself.
"""
Check = Callable[[Decode], None]
"""Raises InputError or UnsupportedError for options that a request cannot have."""
CHOICES = ("mode", "policy")
TRIED = (CHOICES, CHOICES[:1], CHOICES[1:], ())
"""The defaults that come first, from all of them to none."""


def _any(decode: Decode) -> None:
    """No further check."""


def with_sampling(options: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an answer, with how it is drawn where they say nothing of it; nothing is at temperature 0."""
    return {**({} if options.get("temperature") == 0 else sampling), **options}


def with_defaults(defaults: Mapping[str, Any], options: Mapping[str, Any], check: Check = _any) -> dict[str, Any]:
    """Options of a request, and with them the `defaults` that they do not exclude: those that the mode and the policy
    of the request use, and that pass `check`.

    The errors of `Decode` for options that no default makes possible.
    """
    missing: dict[str, Any] = {name: value for name, value in defaults.items() if name not in options}
    tried = [dict(options) | {name: missing[name] for name in names if name in missing} for names in TRIED]
    out = next((each for each in tried if _is_possible(each, check)), None)
    if out is None:
        Decode(**options)
        return dict(options)  # what is wrong is for `check` to say
    for name, value in missing.items():
        if name not in CHOICES and _is_possible(out | {name: value}, check):
            out = out | {name: value}
    return dict(out)


def _is_possible(options: Mapping[str, Any], check: Check) -> bool:
    try:
        check(Decode(**options))
    except (InputError, UnsupportedError):
        return False
    return True


def chosen(
    config: ModelConfig,
    options: Mapping[str, Any],
    defaults: Mapping[str, Any] | None,
    *,
    infilling: bool,
    denoise: bool = False,
    changeable: bool = False,
) -> Decode:
    """The options of a request without a `Decode`: those given, with the `defaults` that they and such a request do not
    exclude. denoise: see `modes.choose_mode`.
    """
    if not defaults:
        return Decode(**options)

    def check(now: Decode) -> None:
        resolved = now.resolved(config, infilling, denoise)
        if infilling:
            check_end_of_text(resolved)
        if changeable:
            check_changeable(resolved, config)

    return Decode(**with_defaults(defaults, options, check))
