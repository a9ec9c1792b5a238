"""The loss of a micro-batch of answers, and the figures of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.train.batch import Batch, BatchLoss, LossReport
from daguerre.train.memory import BatchRows
from daguerre.train.method import Method
from daguerre.train.monitor import HeldOut
from daguerre.train.noising import NUM_LEVELS
from daguerre.train.reinforce.answers import PolicyBatch, estimates
from daguerre.train.reinforce.batches import PolicyBatches
from daguerre.train.reinforce.options import Reinforce
from daguerre.train.reinforce.policy import policy_loss
from daguerre.train.reinforce.prompts import PromptReader, PromptSplit, RewardedPrompt, prompts_line, prompts_of
from daguerre.train.reinforce.rollouts import Roller
from daguerre.train.shards import Shard

HELD = 64
"""Held-out prompts that a run is measured on."""


@dataclass(frozen=True)
class PolicyLoss:
    """GRPO's loss, a mean over the tokens of the answers."""

    options: Reinforce

    def __call__(self, model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
        assert isinstance(batch, PolicyBatch)
        new = estimates(model, batch, attn_impl)
        old, start = (new.detach() if each is None else each for each in (batch.old, batch.start))
        made = policy_loss(new, old, start, batch.advantage, clip=self.options.clip, kl=self.options.kl)
        parts = {
            "reward": batch.reward,
            "kl": float("nan") if batch.start is None else float(made.kl),
            "clipped": float(made.clipped),
        }
        parts |= {"answer_length": batch.length, "agree": batch.agree}
        return LossReport(made.loss, parts=parts)


class RewardEvaluation:
    """What a run is measured on: the mean reward of held-out prompts, answered at temperature 0 as a rollout is.

    num_rows: how many rows its forwards have in all, by which its time is estimated: as if each token took a forward.
    """

    def __init__(self, roller: Roller, prompts: list[RewardedPrompt], length: int) -> None:
        self.roller, self.prompts = roller, prompts[:HELD]
        self.num_rows = len(self.prompts) * length * roller.options.length

    def measure(self, model: Backbone, attn_impl: str, loss: BatchLoss) -> HeldOut:
        """The figures of a model as it is."""
        made = self.roller.best(self.prompts)
        parts = {
            "reward": float(np.mean([reward for _, reward in made])),
            "answer_length": float(np.mean([len(answer.asked) for answer, _ in made])),
        }
        nan = float("nan")
        return HeldOut(nan, (nan,) * NUM_LEVELS, parts=parts)


class Reinforcing(Method):
    """Prompts, whose answers the model draws and a function or a program rewards."""

    rows = "prompts"
    forecasts = False
    batches: PolicyBatches

    @property
    def options(self) -> Reinforce:
        assert self.recipe.reinforce is not None
        return self.recipe.reinforce

    def reading(self) -> dict[str, Any]:
        options = self.options
        return {"held_out": options.held_out, "reads": PromptReader(options.length), "split": PromptSplit}

    def check(self, config: ModelConfig) -> None:
        self.options.check_model(config)

    def make_loss(self) -> PolicyLoss:
        return PolicyLoss(self.options)

    def check_data(self, shard: Shard) -> None:
        """Nothing here: `prompts_of` checks."""

    def maker(self, shard: Shard, seed: int) -> PolicyBatches:
        roller = Roller(self.model, self.tokenizer, self.options, self.mixed)
        return PolicyBatches(roller, prompts_of(shard), seed, self.recipe.attn_impl, start=self.options.kl > 0)

    def line(self) -> str:
        return prompts_line(self.train, self.val)

    def largest(self) -> BatchRows:
        return max(BatchRows.of(self.batches.largest(stage)) for stage in self.recipe.stages)

    def make_figures(self) -> RewardEvaluation:
        return RewardEvaluation(self.batches.roller, prompts_of(self.val), self.recipe.stages[0].length)

    def state(self) -> dict[str, Any]:
        return {"drawn": self.batches.state()}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        self.batches.load(tensors["drawn"])
