"""Sides compared: a process for each, all ready before the first request, one request in turn, round by round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from daguerre.errors import DataError
from daguerre.evals.bench.job import BenchJob, Timing
from daguerre.evals.bench.worker import Worker
from daguerre.evals.workers import Progress

RATE, DECODE_RATE = "tokens_per_second", "decode_tokens_per_second"
WARM_UP = 2
"""Rounds before those that count: weights are packed in the first."""


def run_rounds(job: BenchJob, sides: Sequence[str], rounds: int, progress: Progress) -> dict[str, Any]:
    """{"sides": {name: figures}, "failed": {name: reason}} of every side on the job's shape, model and threads.

    A side that fails is left out with its reason, and the others go on.
    """
    workers: dict[str, Worker] = {}
    failed: dict[str, str] = {}
    versions: dict[str, str] = {}
    timings: dict[str, list[Timing]] = {name: [] for name in sides}
    try:
        for name in sides:
            workers[name] = Worker({"task": "side", "job": replace(job, side=name).json()}, job.threads)
        for index, name in enumerate(sides):
            progress(f"starting {name}", index, len(sides))
            try:
                versions |= workers[name].receive()["ready"]["versions"]
            except DataError as error:
                failed[name] = str(error)
        for number in range(rounds + WARM_UP):
            for name in sides:
                if name in failed:
                    continue
                progress(f"{name}, {job.threads} threads", number, rounds + WARM_UP)
                try:
                    workers[name].send({"go": number})
                    timings[name].append(_timing(workers[name].receive()["timing"]))
                except DataError as error:
                    failed[name] = str(error)
    finally:
        for worker in workers.values():
            worker.close()
    figures = {name: summary(timings[name][WARM_UP:]) for name in sides if name not in failed}
    for name, figure in figures.items():
        figure["tokens_as_ar"] = agreement(timings[name], timings["ar"]) if "ar" in figures else None
    return {"sides": figures, "failed": failed, "versions": versions}


def _timing(values: dict[str, Any]) -> Timing:
    return Timing(**(values | {"tokens": tuple(values["tokens"])}))


def summary(timings: Sequence[Timing]) -> dict[str, Any]:
    """Medians over rounds, and the rates of every round.

    tokens_per_second         end to end, prefill included
    decode_tokens_per_second  after the first tokens
    """
    last = timings[-1]
    rates, decode_rates = ([getattr(one, name) for one in timings] for name in (RATE, DECODE_RATE))
    return {
        RATE: statistics.median(rates),
        DECODE_RATE: statistics.median(decode_rates),
        "first_seconds": statistics.median(sample.first_seconds for sample in timings),
        "rounds": {RATE: rates, DECODE_RATE: decode_rates},
        "new_tokens": len(last.tokens),
        "forwards": None if last.forwards is None else statistics.median(sample.forwards or 0 for sample in timings),
        "rows": None if last.rows is None else statistics.median(sample.rows or 0 for sample in timings),
    }


def agreement(timings: Sequence[Timing], others: Sequence[Timing]) -> float:
    """Share of tokens up to the first that differs, on the same prompts in both."""
    shares = []
    for one, other in zip(timings, others, strict=True):
        pairs = list(zip(one.tokens, other.tokens, strict=False))
        differs = [place for place, (a, b) in enumerate(pairs) if a != b]
        shares.append((differs[0] if differs else len(pairs)) / len(pairs))
    return statistics.mean(shares)
