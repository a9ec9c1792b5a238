"""What each option may be, whatever the others are."""

from __future__ import annotations

import math

from daguerre.decoding.settings import Settings
from daguerre.errors import InputError

WHOLE = dict.fromkeys(("block_size", "start_tokens", "num_beams", "steps", "top_k", "n"), 1) | dict.fromkeys(
    ("min_tokens", "seed", "revise", "no_repeat_ngram_size"), 0
)
"""Options that are whole numbers, and the least that each may be."""
MAY_BE_NONE = ("block_size", "start_tokens", "steps", "top_k")
NUMBERS = (
    *("threshold", "edit_threshold", "factor", "gamma", "rank_temperature", "revise_threshold", "remask"),
    *("entropy_threshold", "position_penalty"),
    *("temperature", "t_max", "t_min", "max_entropy", "top_p", "guidance", "repetition_penalty"),
)
SWITCHES = ("sliding", "no_repeat_context_lines", "greedy_tail", "lenient", "strict", "parallel_calls")


def check_numbers(settings: Settings) -> None:
    """InputError for an option that is not a number of its kind, or out of its range."""
    _check_whole(settings)
    for name in NUMBERS:
        value = getattr(settings, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InputError(f"{name} must be a number, not {value!r}")
    t_max, t_min, gamma, max_entropy = settings.t_max, settings.t_min, settings.gamma, settings.max_entropy
    if not 0 < t_min <= t_max < math.inf:
        raise InputError(f"t_max={t_max} and t_min={t_min} must be above 0, and t_max the higher")
    if not (gamma >= 0 and max_entropy >= 0):
        raise InputError(f"gamma must be nats from 0 up, and max_entropy, not {gamma} and {max_entropy}")
    if not 0 < settings.repetition_penalty < math.inf:
        raise InputError(f"repetition_penalty must be above 0, and 1 is none, not {settings.repetition_penalty}")
    for name in ("revise_threshold", "remask"):
        if not 0 <= getattr(settings, name) <= 1:
            raise InputError(f"{name} must be a probability, from 0 to 1, not {getattr(settings, name)}")


def _check_whole(settings: Settings) -> None:
    for name, low in WHOLE.items():
        value = getattr(settings, name)
        if value is None and name in MAY_BE_NONE:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise InputError(f"{name} must be a whole number from {low} up, not {value!r}")
    if settings.seed >= 2**64:
        raise InputError(f"seed must be below 2^64, not {settings.seed}")


def check_switches(settings: Settings) -> None:
    """InputError for an option that is neither True nor False, and for one of text that is none."""
    for name in SWITCHES:
        if not isinstance(getattr(settings, name), bool):
            raise InputError(f"{name} must be True or False, not {getattr(settings, name)!r:.40}")
    if settings.stop_loops not in (None, True, False):
        raise InputError(f"stop_loops must be True, False or None, not {settings.stop_loops!r:.40}")
    if not isinstance(settings.tool_choice, str):
        raise InputError(
            f"tool_choice must be auto, none, required or the name of a tool, not {settings.tool_choice!r:.40}"
        )
    if not isinstance(settings.negative, str | None):
        raise InputError(f"negative must be a text, not {settings.negative!r:.40}")
