"""Waiting for processes of a pool that may be killed at any moment, as by the system when memory runs out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TypeVar

Result = TypeVar("Result")
CHECKED = 5.0
"""Seconds of waiting for a result after which it is checked that all processes live."""


def completed(pool: ProcessPoolExecutor, futures: Iterable[Future[Result]]) -> Iterator[Future[Result]]:
    """Futures of the pool as they are done, as `as_completed`, but never waits for a process that was killed."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, CHECKED, FIRST_COMPLETED)
        yield from done
        if not done:
            end_if_killed(pool)


def result_of(pool: ProcessPoolExecutor, future: Future[Result]) -> Result:
    """`future.result()`, but never waits for a process that was killed."""
    (done,) = completed(pool, [future])
    return done.result()


def end_if_killed(pool: ProcessPoolExecutor) -> None:
    """Let a pool see that it is broken when one of its processes was killed.

    A process that was killed while it sent a result leaves a part of it in the pipe and keeps the lock of the pipe. The
    pool reads on for ever, since itself and the other processes, which wait for the lock, hold the pipe's other end:
    they are ended, and ours is closed.
    """
    processes = list((pool._processes or {}).values())
    if all(process.is_alive() for process in processes):
        return
    for process in processes:
        process.kill()
    pool._result_queue._writer.close()  # type: ignore[attr-defined]
