"""The table [prefer] of a recipe, and which log-probabilities a model's context has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.train.sft.presets import AnswerLoss, Sft, answer_loss
from daguerre.train.stage import at_least


@dataclass(frozen=True, kw_only=True)
class Prefer:
    """What a recipe says of learning from preferences.

    With m the margin log p(chosen) - log p(rejected) of the model less that of the model as it was at the start, the
    loss of a pair is -(1 - smoothing) log sigmoid(beta m) - smoothing log sigmoid(-beta m) (DPO, Rafailov et al., arXiv
    2305.18290), and `sft` times the mean negative log-probability of the chosen answer's tokens is added to it.

    Where a model knows log p only by a bound (block and full context), it is estimated from `times` masks of each
    answer (VRPO, LLaDA 1.5, arXiv 2505.19223), which both models see; with `antithetic` each mask's complement and
    everything masked besides. `ends`: an end of text follows an answer that is a plain text. `held_out`: share of the
    rows that is held out.

    `keep` times the mean divergence KL(start || model) of the prompts' next tokens is added, in causal context: what
    the model says of text that nobody compares stays as it was.
    """

    beta: float = 0.1
    smoothing: float = 0.0
    sft: float = 0.0
    keep: float = 0.0
    times: int = 4
    antithetic: bool = True
    ends: bool = True
    held_out: float = 0.1

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise InputError(f"recipe: prefer.beta must be above 0, not {self.beta}")
        if not 0 <= self.smoothing < 0.5:
            raise InputError(f"recipe: prefer.smoothing is a share from 0 to below one half, not {self.smoothing}")
        if not 0 < self.held_out < 1:
            raise InputError(f"recipe: prefer.held_out is a share between 0 and 1, not {self.held_out}")
        at_least(0, self, "sft", "keep")
        at_least(1, self, "times")


def pair_loss(config: ModelConfig) -> AnswerLoss:
    """How answers are laid out to get their log-probabilities: in causal context all tokens as next ones, which is
    exact; in block and full context under masks, which gives a bound. UnsupportedError for other models.
    """
    if config.process != "absorbing" or config.time_input:
        raise UnsupportedError(
            f"prefer needs a model with masks that is told no noise level, and this one has the {config.process} "
            "process with levels: no estimate of its log-probabilities is made here"
        )
    if config.context == "causal":
        if not config.shift:
            raise UnsupportedError(
                "prefer needs next tokens in causal context, and this model's rows predict their own"
            )
        options = Sft(preset="ar")
    elif config.mask_id is None:
        raise UnsupportedError("prefer needs masks in block and full context, and this model has no mask token")
    else:
        options = Sft(preset="sdar", padding="unsupervised", weight="one", clean=1.0)
    return replace(answer_loss(replace(options, packing=False), config, None), name="prefer")
