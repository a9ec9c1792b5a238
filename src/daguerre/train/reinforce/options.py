"""The table [reinforce] of a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.train.keys import Section, key

ESTIMATES = ("left_to_right", "coupled", "spg", "traced")


@dataclass(frozen=True, kw_only=True)
class Reinforce(Section, place="reinforce."):
    """What a recipe says of reinforcement learning.

    A step has `sequences` times `micro_batches` answers (of its stage). How an answer's log-probability is estimated:
    `train.reinforce.estimates`. Answers are decoded as `Decode` has it; empty words and zeros are left to the model's
    context, but that left_to_right fills full context a token at a time.
    """

    estimate: str = key("of an answer's log-probability", "left_to_right", names=ESTIMATES)
    group: int = key("answers to a prompt; a step has sequences times micro_batches answers in all", 8, low=2)
    updates: int = key("steps on the same answers, with masks of their own", 1, low=1)
    clip: float = key("how far a ratio of new to old probabilities may be from 1, and count", 0.2, above=0, below=1)
    kl: float = key("weight of the distance from the model that the run began with; 0: none", 0.01, low=0)
    scaled: bool = key("advantages are divided by the standard deviation of their group", True)
    pairs: int = key("pairs of complementary masks in which an answer is estimated; coupled and spg", 1, low=1)
    power: float = key("of the upper bound that answers below their group's mean have; spg", 1.5, low=1)
    together: int = key("steps of decoding in one view; traced", 1, low=1)
    length: int = key("the most tokens of an answer, or of a gap of a template", 64, low=1)
    mode: str = key("of decoding; empty: ar, block or full, as the model's context is", "")
    policy: str = key("of decoding: which tokens are committed first; empty: that of the mode", "")
    steps: int = key("the most forwards of an answer, with policies that have steps; 0: one for each token", 0, low=0)
    block_size: int = key("of decoding, in mode block; 0: the mode's", 0, low=0)
    threshold: float = key("of decoding, with policies that have one; 0: theirs", 0.0, low=0)
    temperature: float = key("at which answers are drawn, which must differ", 1.0, above=0, below=math.inf)
    reward: str = key("the function (prompt, answer) that rewards: module:function or file.py:function", "")
    command: Sequence[str] = key("a command that rewards instead, in a sandbox", ())
    seconds: float = key("that a command may take", 5.0, above=0, below=math.inf)
    megabytes: int = key("of memory that a command may take", 512, low=1)
    held_out: float = key("share of the prompts that is held out", 0.1, above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward and self.command:
            raise InputError("recipe: reinforce.reward and reinforce.command both reward answers: leave out one")

    def check_model(self, config: ModelConfig) -> None:
        """UnsupportedError for a model whose answers have no such estimate; InputError where nothing rewards them."""
        if not (self.reward or self.command):
            raise InputError(
                "say what answers are rewarded with: --set reinforce.reward=FILE.py:FUNCTION, or a command "
                "(docs/reinforce.md)"
            )
        if config.context == "causal" and config.shift:
            if self.estimate != "left_to_right":
                raise UnsupportedError(
                    f"the estimate {self.estimate!r} needs full or block context; in causal context an answer's "
                    'probability is exact: set reinforce.estimate = "left_to_right"'
                )
        elif config.context not in ("full", "block") or not _by_masks(config):
            raise UnsupportedError(
                f"no estimate of answers fits this model ({config.context} context): take one with causal context and "
                "a shift, or one with full or block context and masks that is told no time"
            )


def _by_masks(config: ModelConfig) -> bool:
    """Whether masked rows alone say how likely a token is."""
    before = config.context == "block" and config.shift and config.anchor != "clean"
    return config.mask_id is not None and config.process == "absorbing" and not config.time_input and not before
