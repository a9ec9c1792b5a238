"""A stage of a run: how long its texts are, and how many a step has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daguerre.errors import InputError, unknown

MIN_WINDOW = 8
CORRUPTIONS = ("none", "random", "self", "hybrid", "edit")


def at_least(minimum: int, options: Any, *names: str) -> None:
    """InputError for an option of a recipe that is below a minimum."""
    for name in names:
        if not getattr(options, name) >= minimum:
            raise InputError(f"recipe: {name} must be at least {minimum}, not {getattr(options, name)}")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Windows of `length` tokens, `sequences` a micro-batch, `micro_batches` a step, until that share of the run.

    `block_size` is that of noised blocks of answers ([sft]), 0: the model's; `corruption` is what is planted among
    their visible tokens (`daguerre.train.sft.corruption`).
    """

    until: float
    length: int
    sequences: int
    micro_batches: int
    block_size: int = 0
    corruption: str = "none"

    def __post_init__(self) -> None:
        at_least(MIN_WINDOW, self, "length")
        at_least(1, self, "sequences", "micro_batches")
        at_least(0, self, "block_size")
        if self.corruption not in CORRUPTIONS:
            raise unknown("corruption", self.corruption, CORRUPTIONS)
