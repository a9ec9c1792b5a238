"""What computes runs, sessions and scorers by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.plan import Steps
from daguerre.decoding.sample import Sample
from daguerre.models.denoiser import Denoiser
from daguerre.models.forward import Answer, Backend, DraftStep, Forward, Logits
from daguerre.models.session import Session, compute
from daguerre.trace import Event


def logits_of(
    denoiser: Denoiser, canvas: Canvas, positions: np.ndarray, session: Session | None = None, cache: Any = "auto"
) -> np.ndarray:
    """Float32 logits (A, V) of a canvas, of a session of their own unless one is given."""
    session = session or denoiser.session(canvas, cache)
    logits = compute(session.ask(canvas, positions, Logits()), denoiser.backend).logits
    assert logits is not None
    return logits


def run_steps(steps: Steps, backend: Backend | None = None) -> tuple[list[Event], Canvas]:
    """The events of a run and its last canvas; its forwards are computed by the backend."""
    events, answers = list[Event](), None
    while True:
        try:
            item = steps.send(answers)
        except StopIteration as end:
            return events, end.value
        answers = None
        if isinstance(item, Event):
            events.append(item)
        else:
            assert backend is not None, "this run computes nothing"
            answers = backend.forward(item)


class Recording:
    """A backend around another that keeps every batch it is given."""

    def __init__(self, backend: Backend) -> None:
        self.config, self._backend = backend.config, backend
        self.batches: list[list[Forward | DraftStep]] = []

    def cache(self, capacity: int, *, int8: bool = False) -> Any:
        return self._backend.cache(capacity, int8=int8)

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        self.batches.append(list(batch))
        return self._backend.forward(batch)

    @property
    def forwards(self) -> list[Forward]:
        return [one for batch in self.batches for one in batch if isinstance(one, Forward)]


class Recorded:
    """A denoiser whose backend is recorded; anything else that would compute is not there."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.config, self._denoiser = denoiser.config, denoiser
        self.backend = Recording(denoiser.backend)

    def session(self, canvas: Canvas, cache: Any = "auto") -> Session:
        return self._denoiser.session(canvas, cache)


def finished(sample: Sample) -> Sample:
    """A sample driven to its end, its deadline left alone."""
    answers = None
    while (item := sample.advance(answers)) is not None:
        answers = None if isinstance(item, Event) else sample.backend.forward(item)
    return sample


class OnLogits:
    """A denoiser whose sessions are asked for logits alone, as those of guidance and scorers are."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.config, self._denoiser = denoiser.config, denoiser

    @property
    def backend(self) -> Backend:
        return self._denoiser.backend

    def session(self, canvas: Canvas, cache: Any = "auto") -> Session:
        session = self._denoiser.session(canvas, cache)
        session.draws = False
        return session


class Ticking(Recorded):
    """A denoiser with a clock: each batch that has a forward takes a second, or what `slow` says of its number."""

    def __init__(self, denoiser: Denoiser, slow: Callable[[int], float] = lambda number: 1.0) -> None:
        super().__init__(denoiser)
        self.now, self.number, self._slow = 100.0, 0, slow
        inner, self.backend.forward = self.backend.forward, self._forward  # type: ignore[method-assign]
        self._inner = inner

    def clock(self) -> float:
        return self.now

    @property
    def forwards(self) -> list[Forward]:
        return self.backend.forwards

    def _forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        if any(isinstance(one, Forward) for one in batch):
            self.now += self._slow(self.number)
            self.number += 1
        return self._inner(batch)
