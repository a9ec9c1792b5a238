"""The loss of a run that distills: it decodes answers, whose tokens a batch has masked, and learns from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.train.batch import Batch, BatchLoss, LossReport, batch_loss
from daguerre.train.distill.answers import answers_of
from daguerre.train.distill.methods import METHODS, Lesson, Terms, kl
from daguerre.train.distill.options import Distill
from daguerre.train.distill.rollout import by_policy, roll_out
from daguerre.train.earlier import Teacher
from daguerre.train.noising import IGNORE, NUM_LEVELS
from daguerre.train.optim import Average
from daguerre.train.sft.method import FineTuning
from daguerre.train.sft.presets import AnswerLoss, Sft, answer_loss


@dataclass(frozen=True)
class Distillation:
    """Called as `BatchLoss` is. `average` is the student's, which becomes the teacher in later rounds; `share` says how
    far the run is.
    """

    options: Distill
    teacher: Teacher
    average: Average = field(repr=False)
    share: float = 0.0

    def at(self, share: float) -> Distillation:
        """The loss at this share of a run; where a round begins the teacher is renewed."""
        number = min(int(share * self.options.rounds), self.options.rounds - 1)
        if number > self.teacher.round:
            self.teacher.begin(number, self.average.values)
        return replace(self, share=share)

    def __call__(self, model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
        generator = torch.Generator(batch.tokens.device).manual_seed(batch.seed)
        lesson = Lesson(model, self.teacher, self.options, batch, self.share, generator, attn_impl)
        terms = METHODS[self.options.method](lesson)
        loss, clean = terms.loss, self._clean(model, batch, attn_impl)
        if clean is not None:
            loss = loss + self.options.clean * clean.loss
        sums, counts = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS, dtype=np.int64)
        sums[-1], counts[-1] = terms.mean * terms.num, terms.num
        nats, num = (0.0, 0) if clean is None else (clean.mean * clean.num, clean.num)
        return LossReport(loss, nats, num, sums, counts, parts=terms.parts)

    def _clean(self, model: Backbone, batch: Batch, attn_impl: str) -> Terms | None:
        """The mean KL to the teacher of next tokens, where clean rows predict an answer; None where none do."""
        rows = torch.nonzero(((batch.target != IGNORE) & (batch.layout.rows.span < 0)).flatten())[:, 0]
        if not (len(rows) and self.options.clean):
            return None
        num = batch.layout.num_clean
        text = replace(batch.layout, rows=batch.layout.rows[:num])
        sequence, row = rows // batch.tokens.shape[1], rows % batch.tokens.shape[1]

        def distributions() -> Tensor:
            hidden = run_batch(model, batch.tokens[:, :num], text, attn_impl=attn_impl)
            return model.logits(hidden[sequence, row]).log_softmax(-1)

        with self.teacher.in_place(model):
            taught = distributions()
        each = kl(taught, distributions())
        return Terms(each.mean(), float(each.mean().detach()), len(each), {})

    def held(self, model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
        """The figures of held-out answers: the loss of one forward, and of decoding by the recipe's policy how many
        answers or blocks are the data's, and the mean number of forwards of each.
        """
        answers = answers_of(batch, model.config.noisy_offset)
        greedy = replace(self.options, temperature=0.0)
        choose = by_policy(greedy, greedy.steps)
        generator = torch.Generator(batch.tokens.device).manual_seed(batch.seed)
        found = roll_out(model, batch, answers, choose, generator, attn_impl)
        right = answers.all_of_group(found.tokens == answers.target).float()
        parts = {"exact": float(right.mean()), "forwards": float(found.steps.float().mean())}
        return replace(batch_loss(model, batch, attn_impl), parts=parts)


class Distilling(FineTuning):
    """Fewer steps for answers, from the model that a run begins with."""

    loss: Distillation

    def answer_loss(self, config: ModelConfig, family: str | None) -> AnswerLoss:
        return answers_to_learn(self.options, config, family)

    def make_loss(self) -> Distillation:
        assert self.recipe.distill is not None
        return Distillation(self.recipe.distill, Teacher(self.model), self.average)

    def loss_at(self, share: float) -> Distillation:
        return self.loss.at(share)

    @property
    def held_loss(self) -> BatchLoss:
        return self.loss.held

    def state(self) -> dict[str, Any]:
        return {"teacher": self.loss.teacher.state()}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        self.loss.teacher.load(tensors["teacher"])


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
