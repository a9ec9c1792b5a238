"""Run a function over many items, in processes or here, with a progress bar."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from daguerre.errors import DataError
from daguerre.train.workers import completed, end_if_killed

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class WorkerPool:
    """`workers` processes (None: one a core; 1: in this process), with a progress bar on stderr or without."""

    workers: int | None = None
    progress: bool = True

    def map(self, function: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
        """`[function(item) for item in items]`; both must be picklable. DataError when a process is killed."""
        if not items:
            return []
        count = min(len(items), self.workers or _num_cores())
        results: dict[int, Result] = {}
        with _bar(self.progress) as bar:
            task = bar.add_task(label, total=len(items))
            for index, result in _here(function, items) if count == 1 else _in_processes(function, items, count):
                results[index] = result
                bar.advance(task)
        return [results[index] for index in range(len(items))]


def _num_cores() -> int:
    """Cores this process may use; macOS cannot say, so there it is the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _here(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
    for index, item in enumerate(items):
        yield index, function(item)


def _in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> Iterator[tuple[int, Result]]:
    # Spawned, not forked: a fork copies the locks of this process's threads (torch, tokenizers) and may hang on them.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures: dict[Future[Result], int] = {pool.submit(function, item): index for index, item in enumerate(items)}
        for future in completed(pool, futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process was killed (out of memory?): run again with fewer workers; finished work is kept. "
            "From a script, call this under `if __name__ == '__main__':`"
        ) from error
    finally:
        end_if_killed(pool)
        pool.shutdown(wait=True, cancel_futures=True)


def _bar(enabled: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not enabled)
