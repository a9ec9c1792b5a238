"""What a recipe with [distill] makes of its [sft], and which recipes and models it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.train.sft.presets import AnswerLoss, Preset, Sft, answer_loss
from daguerre.train.stage import Stage

NOISE = tuple(f.name for f in fields(Preset) if f.name not in ("clean", "padding"))
"""Keys of [sft] that say how answers are noised."""


def check_distill(sft: Sft | None, stages: Sequence[Stage], from_scratch: bool) -> None:
    """InputError for a recipe whose other tables do not go with [distill]."""
    if sft is None:
        raise InputError("recipe: [distill] needs [sft], which says how prompts and answers are read")
    if from_scratch:
        raise InputError("recipe: [distill] learns from the model of --from: leave out [model] and [convert]")
    given = [name for name in (*NOISE, "clean") if getattr(sft, name) is not None]
    if given:
        raise InputError(f"recipe: [distill] masks answers and weighs losses itself: leave out sft.{given[0]}")
    if any(stage.corruption != "none" for stage in stages):
        raise InputError("recipe: [distill] plants no wrong tokens: leave out stages.N.corruption")


def answers_to_learn(sft: Sft, config: ModelConfig, family: str | None) -> AnswerLoss:
    """The loss of a run that distills: all of each answer is masked.

    InputError or UnsupportedError where the model cannot be trained so.
    """
    if config.time_input or config.process != "absorbing":
        raise UnsupportedError("[distill] is for models with masks which are told no time: this one has other noise")
    if config.context == "causal" and config.mask_id is None:
        raise UnsupportedError("[distill] is for models that fill masks: this one writes from left to right alone")
    whole = replace(sft, times="full", weight="one", normalizer="supervised", levels="text", complementary=False)
    loss = answer_loss(whole, config, family)
    if not loss.noisy:
        raise InputError(f"[distill] decodes masks, and the loss {loss.name!r} has none: take another sft.preset")
    return loss
