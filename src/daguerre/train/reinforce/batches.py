"""The micro-batches of a run: answers that were drawn when their first one was asked for.

Step number s has the answers of rollout s // `updates`, drawn with the weights of its first step. They are a part of
checkpoints, so that a run that is resumed between these steps goes on with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.train.earlier import Earlier
from daguerre.train.reinforce.answers import PolicyBatch, batch_of, estimates
from daguerre.train.reinforce.estimates import DrawnAnswer
from daguerre.train.reinforce.prompts import RewardedPrompt
from daguerre.train.reinforce.rollouts import Roller
from daguerre.train.sft.batches import order_of
from daguerre.train.stage import Stage

LOOKED = 16
"""Prompts among which the longest is looked for, for the arithmetic of memory."""


@dataclass
class PolicyRollout:
    """Answers to the prompts of some steps, and their estimates under the weights that drew them, by micro-batch of the
    second of these steps on.
    """

    number: int
    answers: list[DrawnAnswer]
    old: dict[int, Tensor] = field(default_factory=dict)


class PolicyBatches:
    """Micro-batch number `index` of a run: `sequences` answers. With `start`, the trained weights are kept as they are
    now, for the distance that the loss bounds.
    """

    def __init__(
        self, roller: Roller, prompts: Sequence[RewardedPrompt], seed: int, attn_impl: str, start: bool
    ) -> None:
        self.roller, self.prompts, self.seed, self.attn_impl = roller, prompts, seed, attn_impl
        self.start = Earlier(roller.model) if start else None
        self.rollout: PolicyRollout | None = None

    def draw(self, index: int, stage: Stage) -> PolicyBatch:
        """A micro-batch. The first one of a rollout draws its answers."""
        updates, parts = self.roller.options.updates, stage.micro_batches
        number = index // (updates * parts)
        if self.rollout is None or self.rollout.number != number:
            self.rollout = self._roll(number, stage)
        batch = self._batch(self.rollout.answers, index, stage)
        start = None
        if self.start is not None:
            with self.start.in_place(self.roller.model):
                start = self._estimates(batch)
        return replace(batch, old=self.rollout.old.get(index), start=start)

    def largest(self, stage: Stage) -> PolicyBatch:
        """A micro-batch of answers of full length to the longest of the first prompts."""
        answers = [self.roller.longest(self._prompt(place)) for place in range(LOOKED)]
        longest = max(answers, key=lambda answer: len(answer.tokens))
        return batch_of([longest] * stage.sequences, self.roller.options, self.roller.model.config, seed=0)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        rollout = self.rollout
        made = rollout and {
            "number": rollout.number,
            "answers": [{f.name: getattr(each, f.name) for f in fields(each)} for each in rollout.answers],
            "old": rollout.old,
        }
        start = None if self.start is None else self.start.values
        return {"start": start, "rollout": made}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if self.start is not None:
            self.start.restore(state["start"])
        made = state["rollout"]
        answers = made and [DrawnAnswer(**each) for each in made["answers"]]
        self.rollout = made and PolicyRollout(made["number"], answers, made["old"])

    def _roll(self, number: int, stage: Stage) -> PolicyRollout:
        options = self.roller.options
        num = stage.sequences * stage.micro_batches // options.group
        chosen = [self._prompt(place) for place in range(number * num, (number + 1) * num)]
        answers = self.roller.groups(chosen, _number(self.seed, number))
        rollout = PolicyRollout(number, answers)
        first = number * options.updates * stage.micro_batches
        for index in range(first + stage.micro_batches, first + options.updates * stage.micro_batches):
            rollout.old[index] = self._estimates(self._batch(answers, index, stage))
        return rollout

    def _prompt(self, place: int) -> RewardedPrompt:
        epoch, index = divmod(place, len(self.prompts))
        return self.prompts[order_of(self.seed, epoch, len(self.prompts))[index]]

    def _batch(self, answers: Sequence[DrawnAnswer], index: int, stage: Stage) -> PolicyBatch:
        first = index % stage.micro_batches * stage.sequences
        part, model = answers[first : first + stage.sequences], self.roller.model
        return batch_of(part, self.roller.options, model.config, _number(self.seed, index, 1))

    @torch.no_grad()
    def _estimates(self, batch: PolicyBatch) -> Tensor:
        model = self.roller.model
        with self.roller.mixed():
            return estimates(model, batch.to(next(model.parameters()).device), self.attn_impl).cpu()


def _number(*seed: int) -> int:
    return int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
