"""The task of instructions, which is measured only where it is asked for: its prompts come from a file."""

from __future__ import annotations

import random
from typing import Any

from daguerre.errors import DataError
from daguerre.evals.following.answering import answer, checkable, read_prompts, summary
from daguerre.evals.tasks.setup import Measure, Setup
from daguerre.evals.workers import Progress


def instructions(setup: Setup) -> Measure:
    """How often a chat model's answers do what IFEval's prompts say."""
    path = setup.options.ifeval
    if path is None:
        raise DataError("task 'instructions' needs IFEval's prompts: name their file (input_data.jsonl) by --ifeval")
    model, told = setup.model, read_prompts(path)
    model.chat_prompt([{"role": "user", "content": told[0].prompt}])  # which refuses a model that does not chat
    prompts = checkable(told)
    chosen = random.Random(setup.seed).sample(prompts, min(setup.limits.prompts, len(prompts)))

    def measure(progress: Progress) -> Any:
        return summary(list(answer(model, chosen, progress)), len(told) - len(prompts))

    return measure
