"""What the proofs of recipes share: runs that go on where they stood, answers that are written together, and shares."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from daguerre.decoding.drive import Together
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import Result
from daguerre.decoding.sample import Sample
from daguerre.evals.statistics import wilson
from daguerre.evals.tables import between
from daguerre.model import Model
from daguerre.train.checkpoint import CHECKPOINTS, list_checkpoints
from daguerre.train.run import run_training


@dataclass(frozen=True)
class ExactShare:
    """How many of `num` answers are exact, with the 95% interval by Wilson."""

    num: int
    exact: float
    low: float
    high: float

    @classmethod
    def of(cls, found: Sequence[bool]) -> ExactShare:
        """The share of what is true."""
        return cls(len(found), sum(found) / len(found), *wilson(sum(found), len(found)))

    @property
    def text(self) -> str:
        """In percent, with its interval."""
        return between(self.exact, self.low, self.high)

    @property
    def errors(self) -> tuple[float, float]:
        """How far the interval reaches below and above: at a share of 0 its lower bound is 0 but for rounding."""
        return max(0.0, self.exact - self.low), max(0.0, self.high - self.exact)


def answered(model: Model, plans: Iterable[Plan], sample: int = 0) -> list[Result]:
    """The results of requests, which are computed together."""
    samples = [Sample(model.denoiser, plan, sample, None) for plan in plans]
    Together(model.denoiser.backend, samples).run()
    return [each.result() for each in samples]


def train_on(
    recipe: Path,
    folder: Path,
    data: Path,
    overrides: Sequence[str] = (),
    start: Path | str | None = None,
    minutes: float | None = None,
) -> Path:
    """The model of a run in a folder, which begins, or goes on from its last checkpoint; minutes of processor time."""
    resume = bool(list_checkpoints(folder / CHECKPOINTS))
    return run_training(
        str(recipe),
        overrides=overrides,
        resume=resume,
        start_from=None if resume or start is None else str(start),
        data=data,
        max_minutes=minutes,
        out=folder,
        device="cpu",
        clock=time.process_time,
        began=time.process_time(),
    )
