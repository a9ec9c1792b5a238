"""What experiments share: runs that go on where they were stopped, answers in one batch, shares and their curves."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.result import Result
from daguerre.decoding.sample import Sample, Together
from daguerre.errors import TrainingError
from daguerre.evals.statistics import wilson
from daguerre.evals.tables import between
from daguerre.model import Model
from daguerre.models.loading import read_extra
from daguerre.train.checkpoint import CHECKPOINTS, list_checkpoints
from daguerre.train.run import run_training

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


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


def draw_shares(panel: Any, points: Iterable[tuple[float, ExactShare]], **style: Any) -> None:
    """A curve of shares with their 95% intervals; nothing where there is no point."""
    points = sorted(points, key=lambda point: point[0])
    if points:
        xs, ys = [x for x, _ in points], [one.exact for _, one in points]
        errors = list(zip(*(one.errors for _, one in points), strict=True))
        panel.errorbar(xs, ys, yerr=errors, marker="o", markersize=4, capsize=2, **style)


def answered(model: Model, requests: Iterable[Request], num: int = 1) -> list[Result]:
    """The results of `num` samples of each request, which a model answers together."""
    plans = [plan_of(model.denoiser, model.tokenizer, request) for request in requests]
    samples = [Sample(model.denoiser, plan, sample, None) for plan in plans for sample in range(num)]
    Together(model.denoiser.backend, samples).run()
    return [sample.result() for sample in samples]


def trained(
    recipe: Path | str,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    start: Path | str | None = None,
    data: Path | Sequence[Path] | None = None,
    minutes: float | None = None,
) -> Path:
    """The model of a run on the CPU, trained or resumed, whose minutes are those of the processor. TrainingError for a
    run that was stopped before so many minutes, and before the last step of its recipe.
    """
    resume = bool(list_checkpoints(out / CHECKPOINTS))
    made = run_training(
        str(recipe),
        overrides=overrides,
        resume=resume,
        start_from=None if resume or start is None else str(start),
        data=None if resume else data,
        max_minutes=minutes,
        out=out,
        device="cpu",
        clock=time.process_time,
    )
    if minutes is None:
        return made
    done, steps = read_extra(made)["trained"], json.loads((out / "recipe.json").read_text(encoding="utf-8"))["steps"]
    if done["minutes"] < 0.9 * minutes and done["step"] != steps:
        raise TrainingError(
            f"{out} was stopped after {done['minutes']:.1f} of its {minutes:g} minutes: run it again to go on"
        )
    return made


def arguments(about: str | None, out: str) -> argparse.ArgumentParser:
    """The options that experiments have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the runs (%(default)s)")
    parser.add_argument("--report", action="store_true", help="write the report of the runs")
    return parser
