"""The drivers, which compute what runs yield: `drive` for one sample, `Together` for many.

A sample never calls a model. It yields forwards and continues once it is sent their answers, so samples that are driven
together share batches, and none of them depends on another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from daguerre.decoding.sample import Sample
from daguerre.models.forward import Answer, Backend, DraftStep, Forward
from daguerre.models.session import Asking, T
from daguerre.trace import Event


def drive(sample: Sample) -> Iterator[Event]:
    """The events of a sample, as they come. The time of each step is charged to the deadline; the time between events,
    in which the caller works, is not.
    """
    backend, deadline = sample.backend, sample.deadline
    answers: list[Answer] | None = None
    while True:
        started = deadline.clock()
        item = sample.advance(answers)
        answers = None
        if isinstance(item, list):
            answers = backend.forward(item)
        deadline.busy += deadline.clock() - started
        if item is None:
            return
        if isinstance(item, Event):
            yield item


def compute(asking: Asking[T], backend: Backend) -> T:
    """What an `Asking` returns, its forwards computed one batch after the other."""
    answers: list[Answer] | None = None
    while True:
        try:
            batch = next(asking) if answers is None else asking.send(answers)
        except StopIteration as end:
            result: T = end.value
            return result
        answers = backend.forward(batch)


class Together:
    """Samples of one backend that are driven together: a step computes the forwards of all of them in one batch.

    A sample may be added at any time, and leaves as soon as it is done.
    """

    def __init__(self, backend: Backend, samples: Iterable[Sample] = ()) -> None:
        self.backend = backend
        self._waiting: dict[Sample, list[Forward | DraftStep]] = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Start a sample; it is part of the next step."""
        self._advance(sample, None)

    def __len__(self) -> int:
        """How many samples are not done."""
        return len(self._waiting)

    def step(self) -> None:
        """One batch: the next forwards of every sample. Each waits for all of the step, and is charged for it."""
        batches = dict(self._waiting)
        starts = {sample: sample.deadline.clock() for sample in batches}
        answers = iter(self.backend.forward([forward for batch in batches.values() for forward in batch]))
        for sample, batch in batches.items():
            self._advance(sample, [next(answers) for _ in batch])
        for sample, started in starts.items():
            sample.deadline.busy += sample.deadline.clock() - started

    def run(self) -> None:
        """Steps until every sample is done."""
        while self._waiting:
            self.step()

    def _advance(self, sample: Sample, answers: list[Answer] | None) -> None:
        """Run a sample up to its next forwards."""
        item = sample.advance(answers)
        while isinstance(item, Event):
            item = sample.advance()
        if item is None:
            self._waiting.pop(sample, None)
        else:
            self._waiting[sample] = item
