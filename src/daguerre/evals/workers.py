"""Run a function over examples, in this process or in several, with the same results in the same order."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from daguerre.errors import DataError
from daguerre.models.contention import set_num_threads
from daguerre.train.workers import completed, end_if_killed

Item = TypeVar("Item")
Done = TypeVar("Done")
ItemProgress = Callable[[int, int], None]
"""Called as progress(items done, items to do)."""
Progress = Callable[[str, int, int], None]
"""Called as progress(part, items of it done, items to do)."""
CHUNKS = 8
"""Chunks for each process: few, since the model is sent with each; several, so that progress shows."""


def no_progress(part: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


def map_examples(
    function: Callable[[Item], Done], items: Sequence[Item], workers: int = 1, progress: ItemProgress | None = None
) -> list[Done]:
    """`[function(item) for item in items]`, in `workers` processes of one thread each; 1: in this process.

    With more than one, function, items and results must be picklable. DataError when a process is killed.
    """
    show = progress or (lambda done, total: None)
    show(0, len(items))
    results: dict[int, Done] = {}
    count = min(workers, len(items))
    for indices, found in _here(function, items) if count <= 1 else _in_processes(function, items, count):
        results |= zip(indices, found, strict=True)
        show(len(results), len(items))
    return [results[index] for index in range(len(items))]


def _here(function: Callable[[Item], Done], items: Sequence[Item]) -> Iterator[tuple[range, list[Done]]]:
    for index, item in enumerate(items):
        yield range(index, index + 1), [function(item)]


def _in_processes(
    function: Callable[[Item], Done], items: Sequence[Item], workers: int
) -> Iterator[tuple[range, list[Done]]]:
    # Spawned, not forked: a fork copies the locks of this process's threads (torch, tokenizers) and may hang on them.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), set_num_threads, (1,))
    content, step = pickle.dumps(function), min(len(items), workers * CHUNKS)
    chunks = [range(first, len(items), step) for first in range(step)]
    futures: dict[Future[list[Done]], range] = {}
    try:
        futures |= {pool.submit(_run, content, [items[index] for index in chunk]): chunk for chunk in chunks}
        for future in completed(pool, futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process was killed (out of memory?): run again with fewer workers. From a script, call this "
            "under `if __name__ == '__main__':`"
        ) from error
    finally:
        end_if_killed(pool)
        pool.shutdown(wait=True, cancel_futures=True)


def _run(content: bytes, items: list[Item]) -> list[Done]:
    function: Callable[[Item], Done] = pickle.loads(content)
    return [function(item) for item in items]
