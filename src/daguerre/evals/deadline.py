"""Quality against deadline: held-out spans written in a limited number of forwards.

A clock that ticks once per forward stands for the wall clock, so the figures can be reproduced; `seconds_per_forward`
says how long a tick was on this machine. The length is known; open tokens count as wrong. No prefill is timed.

    hurried  with the timeout of a request (`daguerre.decoding.denoise`), which commits more in each forward
    cut      the same request without a timeout, and what it has committed by then
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, drive
from daguerre.evals.shared import SharedSession
from daguerre.evals.spans import MissingSpan
from daguerre.evals.statistics import clustered_wilson
from daguerre.evals.workers import ItemProgress, map_examples
from daguerre.model import Model
from daguerre.models.forward import Answer, Backend, DraftStep, Forward, KeyCache

LENGTH = 16
FORWARDS = (1, 2, 3, 4, 6, 8, 12, 16)
METHODS = {"hurried": "with a timeout", "cut": "cut off"}
"""The methods, and their names in words."""


@dataclass(frozen=True)
class Timely:
    """One method (`way`) under one deadline, in forwards. Shares are of all tokens; the interval is of 95% and takes
    the spans of a document together.
    """

    task: str
    way: str
    forwards: int
    num: int
    filled: float
    token_accuracy: float
    token_interval: tuple[float, float]


@dataclass(frozen=True)
class Deadlines:
    """`unhurried`: mean forwards of each task without a deadline."""

    length: int
    rows: tuple[Timely, ...]
    unhurried: dict[str, float]
    seconds_per_forward: dict[str, float]


@dataclass(frozen=True)
class DeadlineTrial:
    """One span in one task. filled, right: int64 (2, F), tokens by method, in the order of METHODS, and deadline.

    forwards, seconds  without a deadline
    """

    filled: np.ndarray
    right: np.ndarray
    forwards: int
    seconds: float


class Ticking:
    """A backend that counts forwards. Batches of nothing but steps of a draft head do not count."""

    def __init__(self, backend: Backend) -> None:
        self.config, self._backend, self.ticks = backend.config, backend, 0

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        """The answers of the backend."""
        self.ticks += any(isinstance(each, Forward) for each in batch)
        return self._backend.forward(batch)

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """A cache of the backend."""
        return self._backend.cache(capacity, int8=int8)


def quality_by_deadline(
    model: Model,
    spans: Sequence[MissingSpan],
    tasks: Mapping[str, tuple[Decode, bool]],
    *,
    forwards: Sequence[int] = FORWARDS,
    workers: int = 1,
    progress: ItemProgress | None = None,
) -> Deadlines:
    """Write every span under every number of `forwards`. tasks: by name, options and whether the suffix is shown."""
    found = map_examples(partial(trials, model, list(tasks.values()), tuple(forwards)), spans, workers, progress)
    groups = np.array([span.document.sha256 for span in spans])
    length = len(spans[0].span)
    total = np.full(len(spans), float(length))
    rows, unhurried, seconds = [], {}, {}
    for place, task in enumerate(tasks):
        some = [each[place] for each in found]
        unhurried[task] = float(np.mean([trial.forwards for trial in some]))
        seconds[task] = sum(trial.seconds for trial in some) / sum(trial.forwards for trial in some)
        for method, name in enumerate(METHODS):
            for index, limit in enumerate(forwards):
                right = np.array([trial.right[method, index] for trial in some], dtype=np.float64)
                filled = sum(int(trial.filled[method, index]) for trial in some)
                accuracy = float(right.sum() / total.sum())
                interval = clustered_wilson(right, total, groups)
                rows.append(Timely(task, name, limit, len(some), filled / total.sum(), accuracy, interval))
    return Deadlines(length, tuple(rows), unhurried, seconds)


def trials(
    model: Model, tasks: Sequence[tuple[Decode, bool]], forwards: Sequence[int], span: MissingSpan
) -> list[DeadlineTrial]:
    """One span in every task."""
    length, backend = len(span.span), Ticking(model.denoiser.backend)
    out = []
    for decode, shown in tasks:
        exactly, suffix = replace(decode, min_tokens=length), span.suffix if shown else None
        request = Request.of("stream", span.prefix, length, exactly, suffix=suffix, heal=False)
        plan = plan_of(model.denoiser, model.tokenizer, request)
        shared = SharedSession(model.denoiser, plan.canvas, backend)
        shared.prefill(plan, plan.spans(plan.canvas)[0])
        plain = _run(shared, backend, plan, None)
        usage = plain.result().usage
        cut = [_committed_by(plan, plain, limit) for limit in forwards]
        hurried = [_run(shared, backend, plan, limit).canvas for limit in forwards]
        counted = [[_count(canvas, span) for canvas in some] for some in (hurried, cut)]
        filled, right = np.moveaxis(np.array(counted), -1, 0)
        out.append(DeadlineTrial(filled, right, usage.forwards, usage.seconds))
    return out


def _run(shared: SharedSession, backend: Ticking, plan: Plan, forwards: int | None) -> Sample:
    """A sample that may take at most that many forwards, at its end."""
    sample = Sample(shared, plan, 0, forwards, None if forwards is None else lambda: float(backend.ticks))
    for _ in drive(sample):
        pass
    return sample


def _committed_by(plan: Plan, sample: Sample, forwards: int) -> Canvas:
    """The canvas after that many forwards of a run."""
    done = [event.canvas for event in sample.events if event.step < forwards]
    return done[-1] if done else plan.canvas


def _count(canvas: Canvas, span: MissingSpan) -> tuple[int, int]:
    """How many tokens are filled, and how many of them are right."""
    start, end = canvas.gaps[0]
    filled = ~canvas.open[start:end]
    return int(filled.sum()), int((filled & (canvas.tokens[start:end] == np.array(span.span))).sum())
