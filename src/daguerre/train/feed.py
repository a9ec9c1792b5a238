"""Micro-batches in order, made in this process or ahead of time in others; the contents are the same either way."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Protocol

import torch

from daguerre.errors import TrainingError
from daguerre.train.batch import Batch
from daguerre.train.stage import Stage
from daguerre.train.workers import result_of

AHEAD = 4


class Maker(Protocol):
    """Makes the micro-batches of a run, each a pure function of its seed, the number and the stage; can be pickled."""

    def draw(self, index: int, stage: Stage) -> Batch:
        """Micro-batch number `index` of a run, in this stage."""


_maker: Maker | None = None


def _start(maker: Maker) -> None:
    global _maker  # noqa: PLW0603  # a worker process has no other place to keep it
    _maker = maker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the run finishes its step
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)


def _make(index: int, stage: Stage) -> bytes:
    """A micro-batch by value: tensors in shared memory would each keep a file open."""
    assert _maker is not None
    return pickle.dumps(_maker.draw(index, stage))


def _all(first: int, stage: Stage) -> range:
    return range(first, first + stage.micro_batches)


class Feed:
    """With `loaders` > 0, that many processes keep AHEAD micro-batches each in the making. `numbers` says which
    micro-batches of a step are taken, of those from a number on; by default all.
    """

    def __init__(self, maker: Maker, loaders: int, numbers: Callable[[int, Stage], range] = _all) -> None:
        self.maker, self.loaders, self.numbers = maker, loaders, numbers
        self.pool: ProcessPoolExecutor | None = None
        self.pending: dict[tuple[int, Stage], Future[bytes]] = {}

    def take(self, index: int, stage: Stage) -> Iterator[Batch]:
        """Micro-batches of one step, of those from number `index` on."""
        taken = self.numbers(index, stage)
        for number in taken:
            if self.pool is None:
                yield self.maker.draw(number, stage)
                continue
            for ahead in range(number, number + AHEAD * self.loaders * taken.step, taken.step):
                key = (ahead, stage)
                if key not in self.pending:
                    self.pending[key] = self.pool.submit(_make, *key)
            key = (number, stage)
            batch = self._result(key)
            self.pending = {k: f for k, f in self.pending.items() if k[0] > number and k[1] == stage}
            yield batch

    def _result(self, key: tuple[int, Stage]) -> Batch:
        assert self.pool is not None
        try:
            batch: Batch = pickle.loads(result_of(self.pool, self.pending.pop(key)))
            return batch
        except BrokenProcessPool as error:
            raise TrainingError(
                "a process that makes batches was killed (out of memory?): set loaders lower, then --resume. "
                "From a script, call this under `if __name__ == '__main__':`"
            ) from error

    def __enter__(self) -> Feed:
        if self.loaders > 0:
            # Spawned, not forked: a fork copies the locks of this process's threads and may hang on them.
            spawn = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(self.loaders, spawn, initializer=_start, initargs=(self.maker,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
