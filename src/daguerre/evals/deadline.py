"""Quality against deadline: held-out spans written under a limit on forwards, by more commits each or by cutting off.

A clock that ticks once a forward stands for the wall clock, so that the figures can be had again; `seconds_per_forward`
says what a tick was on this machine. The length is known; open tokens count as wrong. No prefill is timed.

    hurried  the timeout of a request (`daguerre.sampling.deadline`): all is filled in time
    cut      the same request without one, and what it has committed by then
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import Tensor

from daguerre.canvas import Canvas
from daguerre.evals.shared import SharedSession
from daguerre.evals.spans import MissingSpan
from daguerre.evals.statistics import clustered_wilson
from daguerre.evals.workers import Tell, map_examples
from daguerre.model import Model
from daguerre.models.denoiser import Behind, CacheMode, Denoiser, Session, Verification
from daguerre.models.rows import Tree
from daguerre.plan import Plan
from daguerre.planning import make_plan
from daguerre.sample import Sample
from daguerre.sampling.decode import Decode

LENGTH = 16
FORWARDS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Timely:
    """One way of writing under one deadline; shares are of all tokens, the interval is of 95% over documents."""

    task: str
    way: str
    forwards: int
    num: int
    filled: float
    token_accuracy: float
    token_interval: tuple[float, float]


@dataclass(frozen=True)
class Deadlines:
    """`unhurried` is how many forwards each task takes when it has the time, the mean."""

    length: int
    rows: tuple[Timely, ...]
    unhurried: dict[str, float]
    seconds_per_forward: dict[str, float]


@dataclass(frozen=True)
class Trial:
    """One span in one task. filled, right: int64 (2, F), tokens under each deadline, `hurried` first and then `cut`."""

    filled: np.ndarray
    right: np.ndarray
    forwards: int
    seconds: float


class Ticking:
    """A denoiser, and the session it gives, that counts forwards."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.config, self._denoiser, self.ticks = denoiser.config, denoiser, 0

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> Session:
        self._own = self._denoiser.session(canvas, cache)
        self.counts = self._own.counts
        return self

    def logits(self, canvas: Canvas, asked: np.ndarray) -> np.ndarray:
        self.ticks += 1
        return self._own.logits(canvas, asked)

    def in_turn(self, canvas: Canvas) -> Behind:
        self.ticks += 1
        return self._own.in_turn(canvas)

    def noisy_logits(self, tokens_BL: Tensor, t: float, asked: np.ndarray) -> np.ndarray:
        self.ticks += 1
        return self._own.noisy_logits(tokens_BL, t, asked)

    def verify(self, canvas: Canvas, draft: np.ndarray, ahead: int) -> Verification:
        self.ticks += 1
        return self._own.verify(canvas, draft, ahead)

    def branches(self, given: np.ndarray, tree: Tree, asked: np.ndarray) -> np.ndarray:
        self.ticks += 1
        return self._own.branches(given, tree, asked)


def quality_by_deadline(
    model: Model,
    spans: Sequence[MissingSpan],
    tasks: Mapping[str, tuple[Decode, bool]],
    *,
    forwards: Sequence[int] = FORWARDS,
    workers: int = 1,
    tell: Tell | None = None,
) -> Deadlines:
    """Write every span under every number of `forwards`. tasks: by name, how, and whether the suffix is shown."""
    found = map_examples(partial(trials, model, list(tasks.values()), tuple(forwards)), spans, workers, tell)
    groups = np.array([span.document.sha256 for span in spans])
    length = len(spans[0].span)
    total = np.full(len(spans), float(length))
    rows, unhurried, seconds = [], {}, {}
    for place, task in enumerate(tasks):
        own = [each[place] for each in found]
        unhurried[task] = float(np.mean([trial.forwards for trial in own]))
        seconds[task] = sum(trial.seconds for trial in own) / sum(trial.forwards for trial in own)
        for way, name in enumerate(("hurried", "cut")):
            for index, most in enumerate(forwards):
                right = np.array([trial.right[way, index] for trial in own], dtype=np.float64)
                filled = sum(int(trial.filled[way, index]) for trial in own)
                accuracy = float(right.sum() / total.sum())
                interval = clustered_wilson(right, total, groups)
                rows.append(Timely(task, name, most, len(own), filled / total.sum(), accuracy, interval))
    return Deadlines(length, tuple(rows), unhurried, seconds)


def trials(
    model: Model, tasks: Sequence[tuple[Decode, bool]], forwards: Sequence[int], span: MissingSpan
) -> list[Trial]:
    """One span in every task."""
    length = len(span.span)
    out = []
    for decode, shown in tasks:
        exactly, suffix = replace(decode, min_tokens=length), span.suffix if shown else None
        plan = make_plan(model.config, model.tokenizer, exactly, span.prefix, suffix, length, False)
        shared, (start, _) = SharedSession(model.denoiser, plan.canvas), plan.canvas.gaps[0]
        shared.session(plan.canvas).logits(plan.canvas.at(plan.spans(plan.canvas)[0]), np.array([start]))
        plain, whole = _run(shared, plan, None)
        cut = [_committed_by(plan, plain, most) for most in forwards]
        hurried = [_run(shared, plan, most)[0].canvas for most in forwards]
        counted = [[_count(canvas, span) for canvas in some] for some in (hurried, cut)]
        filled, right = np.moveaxis(np.array(counted), -1, 0)
        out.append(Trial(filled, right, plain.result().usage.forwards, whole))
    return out


def _run(denoiser: Denoiser, plan: Plan, forwards: int | None) -> tuple[Sample, float]:
    """A sample that may take so many forwards, and its seconds."""
    ticking = Ticking(denoiser)
    sample = Sample(ticking, plan, 0, forwards, None if forwards is None else lambda: float(ticking.ticks))
    for _ in sample.steps():
        pass
    return sample, sample.result().usage.seconds


def _committed_by(plan: Plan, sample: Sample, forwards: int) -> Canvas:
    """The canvas after so many forwards of a run."""
    done = [event.canvas for event in sample.events if event.step < forwards]
    return done[-1] if done else plan.canvas


def _count(canvas: Canvas, span: MissingSpan) -> tuple[int, int]:
    """Tokens that are filled, and those that are right."""
    start, end = canvas.gaps[0]
    filled = ~canvas.open[start:end]
    return int(filled.sum()), int((filled & (canvas.tokens[start:end] == np.array(span.span))).sum())
