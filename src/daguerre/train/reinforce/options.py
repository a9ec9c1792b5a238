"""The table [reinforce] of a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.models.core.config import ModelConfig
from daguerre.train.stage import at_least

ESTIMATES = ("left_to_right", "coupled", "spg", "traced")


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """What a recipe says of reinforcement learning.

    A step has `sequences` times `micro_batches` answers (of its stage), `group` to each prompt, and `updates` steps
    have the same answers, with masks of their own. `estimate` is how an answer's log-probability is estimated
    (`train.reinforce.estimates`), with `pairs` of complementary masks ("coupled", "spg"), the `power` of the upper
    bound ("spg"), and `together` steps of a trace in a view ("traced"). An answer has at most `length` tokens, and is
    decoded with `mode`, `policy`, `steps`, `block_size`, `threshold` and `temperature` (`Decode`); empty words and
    zeros are left to the model's context. `reward` names a Python function, `command` a program that is run in a
    sandbox with `seconds` and `megabytes`. With `scaled` advantages are divided by their group's standard deviation.
    """

    estimate: str = "left_to_right"
    group: int = 8
    updates: int = 1
    clip: float = 0.2
    kl: float = 0.01
    scaled: bool = True
    pairs: int = 1
    power: float = 1.5
    together: int = 1
    length: int = 64
    mode: str = ""
    policy: str = ""
    steps: int = 0
    block_size: int = 0
    threshold: float = 0.0
    temperature: float = 1.0
    reward: str = ""
    command: Sequence[str] = ()
    seconds: float = 5.0
    megabytes: int = 512
    held_out: float = 0.1

    def __post_init__(self) -> None:
        if self.estimate not in ESTIMATES:
            raise unknown("reinforce.estimate", self.estimate, ESTIMATES)
        at_least(1, self, "updates", "pairs", "together", "length", "power", "megabytes")
        at_least(2, self, "group")
        at_least(0, self, "kl", "steps", "block_size", "threshold")
        if not (0 < self.temperature < math.inf and 0 < self.seconds < math.inf):
            raise InputError("recipe: reinforce.temperature and seconds are above 0: answers of a group must differ")
        for name in ("clip", "held_out"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"recipe: reinforce.{name} is a share between 0 and 1, not {getattr(self, name)}")
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
