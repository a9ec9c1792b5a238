"""What a run with a teacher is measured on: the loss of held-out answers, and answers that it writes in blocks."""

from __future__ import annotations

from dataclasses import replace

import torch

from daguerre.models.core.backbone import Backbone
from daguerre.train.batch import BatchLoss
from daguerre.train.evaluation import AnswerEvaluation
from daguerre.train.monitor import HeldOut
from daguerre.train.stage import Stage
from daguerre.train.teach.batches import RolledBatches
from daguerre.train.teach.rollouts import figures_of

PROMPTS, ANSWER = 16, 64
"""Held-out prompts that are answered, and the most tokens of an answer."""


class TaughtEvaluation(AnswerEvaluation):
    """`AnswerEvaluation`, and as parts the tokens a forward and the repetition of answers at temperature 0."""

    def __init__(self, rolled: RolledBatches, stage: Stage, device: torch.device) -> None:
        super().__init__(rolled.answers, rolled.student.tokenizer, stage, device)
        self.student, self.block_size = rolled.student, rolled.block_size(stage)
        self.most = min(ANSWER, rolled.answers.config.max_positions // 2)
        self.prompts = rolled.prompts(0, min(PROMPTS, rolled.answers.shard.num_documents), self.most)
        self.num_rows += sum(len(prompt) + self.most * (self.block_size + 1) for prompt in self.prompts)

    def measure(self, model: Backbone, attn_impl: str, loss: BatchLoss) -> HeldOut:
        """The figures of a model as it is."""
        held = super().measure(model, attn_impl, loss)
        texts = self.student.write(self.prompts, self.most, self.block_size, 0, temperature=0.0)
        return replace(held, parts={**held.parts, **figures_of(texts)})
