"""The table [prefer] of a recipe, and which log-probabilities a model's context has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.train.keys import Section, key
from daguerre.train.sft.presets import AnswerLoss, Sft, answer_loss


@dataclass(frozen=True, kw_only=True)
class Prefer(Section, place="prefer."):
    """What a recipe says of learning from preferences.

    With m the margin log p(chosen) - log p(rejected) of the model less that of the model as it was at the start, the
    loss of a pair is -(1 - smoothing) log sigmoid(beta m) - smoothing log sigmoid(-beta m) (DPO, Rafailov et al., arXiv
    2305.18290), and `sft` times the mean negative log-probability of the chosen answer's tokens is added to it.

    Where a model knows log p only by a bound (block and full context), it is estimated from `times` masks of each
    answer (VRPO, LLaDA 1.5, arXiv 2505.19223), which both models see.

    `keep` times the mean divergence KL(start || model) of the prompts' next tokens is added, in causal context: what
    the model says of text that nobody compares stays as it was.
    """

    beta: float = key("factor of margins; lower moves further from the start", 0.1, above=0)
    smoothing: float = key("share of pairs assumed to be the wrong way round", 0.0, low=0, below=0.5)
    sft: float = key("weight of the chosen answer's mean loss", 0.0, low=0)
    keep: float = key("weight of KL(start || model) on next tokens of prompts", 0.0, low=0)
    times: int = key("masks that estimate an inexact log-probability", 4, low=1)
    antithetic: bool = key("adds each mask's complement and the fully masked answer", True)
    ends: bool = key("answers that are texts get an end of text; false: they were cut off", True)
    held_out: float = key("share of the rows held out", 0.1, above=0, below=1)


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
