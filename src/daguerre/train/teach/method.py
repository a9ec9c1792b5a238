"""The method that learns from a teacher on the student's own answers (on-policy distillation)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.train.batch import Batch, BatchLoss, LossReport
from daguerre.train.memory import BatchRows
from daguerre.train.sft.method import FineTuning
from daguerre.train.sft.presets import AnswerLoss
from daguerre.train.shards import Shard
from daguerre.train.stage import Stage
from daguerre.train.teach.batches import RolledBatch, RolledBatches
from daguerre.train.teach.loss import TaughtLoss
from daguerre.train.teach.options import Rollouts


class RollingOut(FineTuning):
    """Prompts, which the student answers block by block; it learns what its teacher would have said there."""

    forecasts = False
    batches: RolledBatches  # type: ignore[assignment]

    @property
    def rollouts(self) -> Rollouts:
        assert self.recipe.rollouts is not None
        return self.recipe.rollouts

    def answer_loss(self, config: ModelConfig, family: str | None) -> AnswerLoss:
        if config.anchor == "clean" or config.masks_in_place:
            raise UnsupportedError("[rollouts] learn all tokens of a block from its masks: convert to causal or sdar")
        if self.recipe.teacher is not None and not self.recipe.teacher.model:
            raise InputError("[rollouts] need teacher.model: name the model that --from was converted from")
        loss = super().answer_loss(config, family)
        if not loss.noisy:
            raise UnsupportedError("[rollouts] are for models that fill masks: convert this one first")
        if any(stage.answer >= config.max_positions for stage in self.recipe.stages):
            raise InputError(f"stages.N.answer leaves no room for prompts: lower it below {config.max_positions}")
        clean = self.rollouts.clean
        objective = replace(loss.objective, clean=clean)
        return replace(loss, normalizer="masked", padding="unsupervised", clean=clean, objective=objective)

    def maker(self, shard: Shard, seed: int) -> RolledBatches:  # type: ignore[override]
        return self.rolled(shard, seed, self.rollouts)

    def make_loss(self) -> BatchLoss:
        assert self.recipe.teacher is not None and self.teacher is not None
        return TaughtLoss(replace(self.recipe.teacher, data=0.0), self.teacher)

    def report(self, batch: Batch, share: float, index: int, stage: Stage) -> LossReport:
        report = super().report(batch, share, index, stage)
        assert isinstance(batch, RolledBatch)
        return replace(report, parts={**report.parts, **batch.figures})

    def largest(self) -> BatchRows | None:
        """Of the data's answers; those that are written may be longer."""
        return max(BatchRows.of(self.batches.answers.draw(0, stage)) for stage in self.recipe.stages)

    def state(self) -> dict[str, Any]:
        return {"rollouts": self.batches.state()}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        self.batches.load(tensors["rollouts"])
