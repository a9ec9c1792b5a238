"""The task of instructions, which is measured only where it is asked for: its prompts come from a file."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from typing import Any

from daguerre.decoding.request import Decode
from daguerre.errors import DataError, InputError
from daguerre.evals.following.answering import answer, checkable, read_prompts, summary
from daguerre.evals.tasks.setup import Measure, Setup
from daguerre.evals.workers import Progress


def decoding_of(given: Sequence[str]) -> dict[str, Any]:
    """Options of decoding from "name=value", values as in TOML or bare words. InputError for what is none."""
    out = dict[str, Any]()
    for item in given:
        name, sign, text = item.partition("=")
        if not sign:
            raise InputError(f"--decode takes name=value, such as mode=block, not {item!r}")
        try:
            out[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            out[name] = text
    Decode(**out)
    return out


def instructions(setup: Setup) -> Measure:
    """How often a chat model's answers do what IFEval's prompts say."""
    path = setup.options.ifeval
    if path is None:
        raise DataError("task 'instructions' needs IFEval's prompts: name their file (input_data.jsonl) by --ifeval")
    model, told = setup.model, read_prompts(path)
    model.chat_prompt([{"role": "user", "content": told[0].prompt}])  # which refuses a model that does not chat
    prompts = checkable(told)
    how = decoding_of(setup.options.decode or ())
    chosen = random.Random(setup.seed).sample(prompts, min(setup.limits.prompts, len(prompts)))

    def measure(progress: Progress) -> Any:
        return summary(list(answer(model, chosen, progress, how)), len(told) - len(prompts)) | {"decode": how}

    return measure
