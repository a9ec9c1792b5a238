"""What a run in minutes does without, which steps it begins, and what it says its budget buys."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from daguerre.errors import TrainingError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.train.budget import CURVES, EVALUATION, FIGURES, FILES, GRADIENTS, MOST, RunBudget
from daguerre.train.recipe import Recipe
from daguerre.train.stage import Stage

SLOW = 5.0
"""Seconds of a micro-batch after which its speed is not measured again."""
TRIED_ROWS = 128
ROWS_A_TOKEN = 3
"""Rows of a batch for each token of its windows, about: noisy ones come to those of the text."""
STEP_SHARE = 0.8
"""The share of what is left of a budget that its first step may be expected to take."""
FORWARD_SHARE = 1 / 3
"""A forward's share of the time of gradients, by which an evaluation is expected to take so long."""


class Spending:
    """Decides by the budget and by what was measured, and says what it decides."""

    def __init__(self, recipe: Recipe, budget: RunBudget, say: Callable[[str], None]) -> None:
        self.recipe, self.budget, self.say = recipe, budget, say
        self._row, self._sequences = 0.0, recipe.stage(0.0).sequences

    def begins_step(self, share: float) -> bool:
        """Whether another step begins: while there is time, and the first one only if it is expected to end in time."""
        takes = 0.0 if self.budget.progress.step else self._takes(self.recipe.stage(share))
        return share < 1.0 and takes <= self.budget.left()

    def _takes(self, stage: Stage) -> float:
        """Seconds that a step is expected to take, before one was taken."""
        if (measured := self.budget.seconds.get(GRADIENTS)) is not None:
            return measured * stage.micro_batches * stage.sequences / self._sequences
        return self._row * ROWS_A_TOKEN * stage.micro_batches * stage.sequences * stage.length / FORWARD_SHARE

    def shrunk(self) -> Recipe:
        """The recipe with steps of fewer texts, where the budget is too short for its first step."""
        stage, left = self.recipe.stage(0.0), STEP_SHARE * self.budget.left()
        takes = self._takes(stage)
        if self.budget.progress.step or not takes or takes <= left or self.recipe.reinforce is not None:
            return self.recipe
        texts = max(1, int(stage.micro_batches * stage.sequences * max(left, 0.0) / takes))
        sequences = min(stage.sequences, texts)
        micro_batches = max(1, texts // sequences)
        self.say(
            f"a step of {stage.micro_batches * stage.sequences} texts would take about {takes:.0f} s of the "
            f"{max(0.0, self.budget.left()):.0f} s that are left: steps have {micro_batches * sequences} instead"
        )
        stages = tuple(replace(one, sequences=sequences, micro_batches=micro_batches) for one in self.recipe.stages)
        self.recipe = replace(self.recipe, stages=stages)
        return self.recipe

    def too_short(self) -> TrainingError:
        """The error of a budget in which no step was taken."""
        return TrainingError(
            f"the budget of {self.recipe.minutes:g} minutes is too short for a step: setting up took "
            f"{self.budget.progress.minutes:.2f} minutes, saving takes time too, and nothing was trained: give more "
            "--max-minutes"
        )

    def leave_out_figures(
        self, times: int, num_rows: Callable[[], dict[str, int]], seconds_a_row: Callable[[], float]
    ) -> None:
        """Do without the figures that would take too much of a budget in minutes: of each phase so many times its rows.
        Both functions are called only if there is time.
        """
        if not self.recipe.minutes or self.budget.progress.step or self.recipe.draft_rank:  # whose model needs them
            return
        left, takes = self.budget.left(), dict.fromkeys((EVALUATION, FILES), math.inf)
        if left > 0:
            self._row = seconds_a_row()
            takes = {phase: times * self._row * num for phase, num in num_rows().items()}
            left = self.budget.left()
        for phase in takes:
            if takes[phase] > MOST * left:
                self.leave_out(phase, f" ({takes[phase]:.0f} s)" if left > 0 else "")

    def leave_out(self, phase: str, why: str = "") -> None:
        """Do without a phase; without figures there are no curves."""
        self.budget.leave_out(phase)
        if phase == EVALUATION:
            self.budget.leave_out(CURVES)
        self.say(f"the budget has no time for {FIGURES[phase]}{why}")

    def expect_evaluation(self, num_rows: int, trained_rows: int) -> None:
        """Estimate the time of an evaluation from that of the last step's gradients, by the rows of both."""
        forward = 1.0 if self.recipe.draft_head else FORWARD_SHARE
        self.budget.expect(EVALUATION, forward * num_rows / trained_rows * self.budget.seconds[GRADIENTS])

    def say_what_it_buys(self, stage: Stage, num_tokens: int, corpus_tokens: int) -> None:
        """From the time of the gradients of a micro-batch of so many tokens, which was the last that was measured."""
        self.budget.tick()
        seconds = self.budget.seconds[GRADIENTS]
        left = 60 * (self.recipe.minutes - self.budget.progress.minutes) - self.budget.closing_seconds
        steps = max(1, int(left / max(seconds * stage.micro_batches, 1e-9)))
        bought = steps * stage.micro_batches * num_tokens
        self.say(
            f"{num_tokens / max(seconds, 1e-9):,.0f} tokens a second: {max(left, 0) / 60:.1f} minutes buy about "
            f"{steps:,} steps, {bought:,} tokens, {bought / corpus_tokens:.1f} passes"
        )


@torch.no_grad()
def seconds_a_row(model: Backbone, mixed: Callable[[], AbstractContextManager[Any]]) -> float:
    """The time of a row of a forward in the precision of `mixed`, measured on a few."""
    num, device = min(TRIED_ROWS, model.config.max_positions), next(model.parameters()).device
    layout = BatchLayout.causal(num, device=device)
    tokens = torch.zeros((1, num), dtype=torch.int64, device=device)
    took = []
    for _ in range(2):  # the first one warms up
        began = time.monotonic()
        with mixed():
            model.logits(run_batch(model, tokens, layout))
        took.append(time.monotonic() - began)
    return min(took) / num
