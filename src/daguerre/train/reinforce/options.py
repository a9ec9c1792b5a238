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

    estimate: str = key("how log-probabilities are estimated", "left_to_right", names=ESTIMATES)
    group: int = key("answers to a prompt; a step has sequences times micro_batches answers", 8, low=2)
    updates: int = key("steps on the same answers, each with new masks", 1, low=1)
    clip: float = key("clips the ratio of new to old probability to within this of 1", 0.2, above=0, below=1)
    kl: float = key("weight of the KL from the model at the start; 0: none", 0.01, low=0)
    scaled: bool = key("divides advantages by their group's standard deviation", True)
    pairs: int = key("pairs of complementary masks of an estimate; coupled and spg", 1, low=1)
    power: float = key("power of the upper bound, for answers below their group's mean; spg", 1.5, low=1)
    together: int = key("decoding steps in one view; traced", 1, low=1)
    length: int = key("most tokens of an answer, or of a gap of a template", 64, low=1)
    mode: str = key("mode of decoding; empty: ar, block or full, by the model's context", "")
    policy: str = key("policy of decoding; empty: that of the mode", "")
    steps: int = key("most forwards of an answer, if the policy has steps; 0: one a token", 0, low=0)
    block_size: int = key("block size of decoding, in mode block; 0: the mode's", 0, low=0)
    threshold: float = key("threshold of the policy; 0: its own", 0.0, low=0)
    temperature: float = key("temperature at which answers are drawn", 1.0, above=0, below=math.inf)
    reward: str = key("function (prompt, answer) that rewards: module:function or file.py:function", "")
    command: Sequence[str] = key("command that rewards instead, in a sandbox", ())
    seconds: float = key("seconds that a command may take", 5.0, above=0, below=math.inf)
    megabytes: int = key("memory that a command may take, in megabytes", 512, low=1)
    held_out: float = key("share of the prompts held out", 0.1, above=0, below=1)

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
