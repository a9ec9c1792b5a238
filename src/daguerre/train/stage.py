"""A stage of a run: how long its texts are, and how many a step has."""

from __future__ import annotations

from dataclasses import dataclass

from daguerre.train.keys import Section, key

MIN_WINDOW = 8
CORRUPTIONS = ("none", "random", "self", "hybrid", "edit")
"""What is planted among the visible tokens of answers (`daguerre.train.sft.corruption`)."""


@dataclass(frozen=True, kw_only=True)
class Stage(Section, place="stages.N."):
    """Windows of `length` tokens, `sequences` a micro-batch, `micro_batches` a step, until that share of the run."""

    until: float = key("share of the run at which the stage ends; the last: 1.0", 1.0)
    length: int = key("tokens of a window", low=MIN_WINDOW)
    sequences: int = key("windows of a micro-batch", low=1)
    micro_batches: int = key("micro-batches of a step", 1, low=1)
    block_size: int = key(
        "tokens of noised blocks of answers; 0: the model's", 0, low=0, methods=("sft", "distill", "rollouts")
    )
    answer: int = key("most tokens of answers that the student writes", 64, low=1, methods=("rollouts",))
    corruption: str = key("wrong tokens to correct in answers", "none", names=CORRUPTIONS, methods=("sft",))
