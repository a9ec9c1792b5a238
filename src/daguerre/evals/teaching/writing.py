"""What a model writes in blocks: tokens a forward against what its teacher makes of the text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.evals.parallelism import aup, upper_envelope
from daguerre.evals.statistics import wilson
from daguerre.evals.teaching.likelihoods import ToldAnswer, nats_of
from daguerre.evals.workers import Progress
from daguerre.model import Model
from daguerre.train.repetition import repeated

AT_ONCE = 16
NEW_TOKENS = 128
"""Tokens of an answer, at most."""
THRESHOLDS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
"""Of mode "block"; 1 is a token a forward."""


@dataclass(frozen=True)
class BlockAnswer:
    """What was written behind a prompt; tokens without the end of text."""

    prompt: list[int]
    new: list[int]
    forwards: int
    ended: bool


def write(
    model: Model, prompts: Sequence[Sequence[int]], options: Mapping[str, Any], most: int = NEW_TOKENS
) -> Iterator[BlockAnswer]:
    """Greedy answers to prompts of token ids, AT_ONCE at once, in the order in which they end."""
    engine, live, coming = Engine(model, max_running=AT_ONCE), dict[Job, list[int]](), [list(one) for one in prompts]
    while coming or live:
        while coming and len(live) < AT_ONCE:
            ids = coming.pop(0)
            room = max(1, min(most, model.config.max_positions - len(ids) - 1))
            live[engine.generate(ids, room, heal=False, temperature=0.0, **options)] = ids
        engine.step()
        for job in [job for job in live if job.done]:
            yield _written(live.pop(job), job, model.config.ends)


def _written(prompt: list[int], job: Job, ends: Sequence[int]) -> BlockAnswer:
    result = job.result()
    tokens = [token.id for token in result.tokens if token.id not in ends]
    return BlockAnswer(prompt, tokens, result.usage.forwards, result.finish_reason == "stop")


def settings_of(model: Model) -> dict[str, dict[str, Any]]:
    """How a model writes, by a name: from left to right where it can, and in blocks at each threshold."""
    size, out = model.config.block_size or 4, dict[str, dict[str, Any]]()
    if model.config.can_draft:
        out["left to right"] = {"mode": "ar"}
    for threshold in THRESHOLDS:
        how = {"mode": "block", "block_size": size, "policy": "threshold", "threshold": threshold}
        out[f"blocks of {size}, threshold {threshold:g}"] = how
    return out


def curve(model: Model, teacher: Model, told: Sequence[ToldAnswer], progress: Progress) -> dict[str, Any]:
    """Answers of the teacher and of the model in each setting, by `row_of`, and the area under the curve of blocks:
    tokens a forward against the share of tokens that are the teacher's first choice (`evals.parallelism.aup`).
    """
    prompts = [one.prompt for one in told]
    rows = [row_of("teacher", list(write(teacher, prompts, {"mode": "ar"})), teacher)]
    settings = settings_of(model)
    for done, (name, options) in enumerate(settings.items()):
        progress("answers", done, len(settings))
        rows.append(row_of(name, list(write(model, prompts, options)), teacher))
    points = [(row["tokens_per_forward"], 100 * row["first_choice"]) for row in rows if "blocks" in row["name"]]
    best = upper_envelope(points)
    return {"rows": rows, "aup": aup(best, 100.0), "points": best, "new_tokens": NEW_TOKENS}


def row_of(name: str, texts: Sequence[BlockAnswer], teacher: Model) -> dict[str, Any]:
    """Figures of answers: tokens a forward, the share of runs of four tokens that come twice, of answers that ended, of
    tokens that are the teacher's first choice behind what is before them, with its 95% interval, and bits per byte
    under the teacher.
    """
    some = [one for one in texts if one.new]
    nats, first, num, num_bytes = 0.0, 0, 0, 0
    for one in some:
        of_token, chosen = nats_of(teacher.backbone, one.prompt + one.new, len(one.prompt))
        nats, first, num = nats + float(of_token.sum()), first + int(chosen.sum()), num + len(one.new)
        num_bytes += len(teacher.tokenizer.decode_bytes(one.new))
    return {
        "name": name,
        "num": len(texts),
        "tokens": num / max(1, len(texts)),
        "tokens_per_forward": sum(len(one.new) + one.ended for one in texts)
        / max(1, sum(one.forwards for one in texts)),
        "repetition": sum(repeated(one.new) for one in texts) / max(1, len(texts)),
        "ended": sum(one.ended for one in texts) / max(1, len(texts)),
        "first_choice": first / max(1, num),
        "first_choice_interval": wilson(first, max(1, num)),
        "bits_per_byte": nats / math.log(2) / max(1, num_bytes),
    }
