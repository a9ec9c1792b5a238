"""IFEval's prompts, answered by a chat model, many at once, and how often its answers do what they were told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.errors import DataError, MissingExtra
from daguerre.evals.following.checks import CHECKS, follows, language_of, loosely
from daguerre.evals.statistics import wilson
from daguerre.evals.workers import Progress
from daguerre.model import Model
from daguerre.train.repetition import repeated

AT_ONCE = 16
NEW_TOKENS = 512
"""Tokens of an answer. IFEval's authors allow more; a model that has not ended by then has mostly begun to repeat
itself.
"""


@dataclass(frozen=True)
class FollowPrompt:
    """A prompt, and its instructions: names of CHECKS, each with its arguments."""

    key: int
    prompt: str
    instructions: tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True)
class FollowAnswer:
    """An answer, and which of its prompt's instructions it follows, read strictly and loosely.

    forwards  of the model; tokens: of the answer; ended: by the model itself
    """

    key: int
    text: str
    tokens: int
    forwards: int
    ended: bool
    instructions: list[str]
    strict: list[bool] = field(default_factory=list)
    loose: list[bool] = field(default_factory=list)


def read_prompts(path: Path) -> list[FollowPrompt]:
    """The prompts of IFEval's file: a line of JSON for each, with its key, prompt, instruction_id_list and kwargs.
    DataError for another file.
    """
    out = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
            pairs = zip(row["instruction_id_list"], row["kwargs"], strict=True)
            found = FollowPrompt(int(row["key"]), str(row["prompt"]), tuple((name, dict(more)) for name, more in pairs))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"line {number} of {path} is no prompt of IFEval: {error!r}") from None
        if unknown := [name for name, _ in found.instructions if name not in CHECKS]:
            raise DataError(f"line {number} of {path}: there is no instruction {unknown[0]!r}")
        out.append(found)
    if not out:
        raise DataError(f"{path} has no prompts")
    return out


def checkable(prompts: Sequence[FollowPrompt]) -> list[FollowPrompt]:
    """The prompts that can be checked here: without the package langdetect, none that asks for a language."""
    try:
        language_of("This is English.")
    except MissingExtra:
        return [one for one in prompts if all(name != "language:response_language" for name, _ in one.instructions)]
    return list(prompts)


def answer(
    model: Model, prompts: Sequence[FollowPrompt], progress: Progress, decode: Mapping[str, Any] | None = None
) -> Iterator[FollowAnswer]:
    """Answers, AT_ONCE at once, in the order in which they end: greedy, unless `decode`, options of decoding, says
    otherwise.
    """
    how = {"temperature": 0.0, **(decode or {})}
    engine, live, coming = Engine(model, max_running=AT_ONCE), dict[Job, FollowPrompt](), list(prompts[::-1])
    while coming or live:
        while coming and len(live) < AT_ONCE:
            one = coming.pop()
            ids = model.chat_prompt([{"role": "user", "content": one.prompt}])
            room = max(1, model.config.max_positions - len(model.config.first) - len(ids))
            live[engine.generate(ids, min(NEW_TOKENS, room), heal=False, **how)] = one
        engine.step()
        for job in [job for job in live if job.done]:
            progress("instructions", len(prompts) - len(coming) - len(live), len(prompts))
            yield _checked(live.pop(job), job)


def _checked(asked: FollowPrompt, job: Job) -> FollowAnswer:
    """A finished answer, checked."""
    result = job.result()
    names, ended = [name for name, _ in asked.instructions], result.finish_reason == "stop"
    strict = [follows(name, result.text, more) for name, more in asked.instructions]
    loose = [any(follows(name, text, more) for text in loosely(result.text)) for name, more in asked.instructions]
    usage = result.usage
    return FollowAnswer(
        asked.key, result.text, usage.completion_tokens, usage.forwards, ended, names, strict=strict, loose=loose
    )


def summary(answers: Sequence[FollowAnswer], left_out: int) -> dict[str, Any]:
    """Shares of prompts all of whose instructions are followed, and of instructions, with 95% intervals; by instruction
    (loosely); repetition, ends and tokens a forward.
    """
    by_name = {name: [0, 0] for name in sorted({name for one in answers for name in one.instructions})}
    for one in answers:
        for name, holds in zip(one.instructions, one.loose, strict=True):
            by_name[name][0] += holds
            by_name[name][1] += 1
    shares = {
        f"{reading}_{unit}s": share_of(cases)
        for reading in ("strict", "loose")
        for unit, cases in {
            "prompt": [all(getattr(one, reading)) for one in answers],
            "instruction": [holds for one in answers for holds in getattr(one, reading)],
        }.items()
    }
    return {
        "num": len(answers),
        "left_out": left_out,
        **shares,
        "by_instruction": {name: {"num": num, "loose": held / num} for name, (held, num) in by_name.items()},
        "repetition": sum(repeated(one.text.split()) for one in answers) / len(answers),
        "ended": sum(one.ended for one in answers) / len(answers),
        "tokens": sum(one.tokens for one in answers) / len(answers),
        "tokens_per_forward": sum(one.tokens for one in answers) / max(1, sum(one.forwards for one in answers)),
        "new_tokens": NEW_TOKENS,
        "answers": [asdict(one) for one in sorted(answers, key=lambda one: one.key)],
    }


def share_of(cases: Sequence[bool]) -> dict[str, Any]:
    """A share and its 95% interval (Wilson)."""
    held = sum(cases)
    return {"share": held / len(cases), "interval": wilson(held, len(cases))}
