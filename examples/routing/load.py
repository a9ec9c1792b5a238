"""Deadlines under load: gaps that arrive at random times, asked with a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
from tasks import PATHS, Task

Row = dict[str, Any]
MOST_AT_ONCE = 64


def arriving(url: str, tasks: Sequence[Task], rate: float, seed: int, headers: Mapping[str, str]) -> list[Row]:
    """A row for each task: the milliseconds until its answer was there, and whether it is right. rate: requests a
    second, at times between which the waits are exponential.
    """
    rng, begun, at = random.Random(seed), time.perf_counter(), 0.0
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        waiting = []
        for task in tasks:
            at += rng.expovariate(rate)
            time.sleep(max(0.0, begun + at - time.perf_counter()))
            waiting.append(pool.submit(timed, url, task, headers))
        rows = [one.result() for one in waiting]
    return [row | {"right": task.grade(row.pop("answer"))} for row, task in zip(rows, tasks, strict=True)]


def timed(url: str, task: Task, headers: Mapping[str, str]) -> Row:
    """A task's answer and the milliseconds until it was there."""
    begun = time.perf_counter()
    answer = httpx2.post(f"{url}/v1{PATHS[task.operation]}", json=task.body, headers=dict(headers), timeout=600)
    return {
        "ms": 1000 * (time.perf_counter() - begun),
        "ok": answer.status_code < 400,
        "backend": answer.headers.get("x-route-backend"),
        "answer": answer.content,
    }
