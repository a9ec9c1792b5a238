"""What the scripts of experiments share: runs that go on where they were stopped, answers in one batch, and reports."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from daguerre.decoding.drive import Together
from daguerre.decoding.plan import Plan
from daguerre.decoding.sample import Sample
from daguerre.evals.results import write_report
from daguerre.model import Model
from daguerre.train.checkpoint import CHECKPOINTS, list_checkpoints
from daguerre.train.run import run_training

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def trained(
    recipe: Path | str,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    start: Path | str | None = None,
    data: Path | Sequence[Path] | None = None,
    minutes: float | None = None,
) -> Path:
    """The model of a run on the CPU, trained or resumed, whose minutes are those of the processor."""
    resume = bool(list_checkpoints(out / CHECKPOINTS))
    return run_training(
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


def answered(model: Model, plans: Iterable[Plan], num: int = 1) -> list[Any]:
    """The results of `num` samples of each request, which a model answers together."""
    samples = [Sample(model.denoiser, plan, sample, None) for plan in plans for sample in range(num)]
    Together(model.denoiser.backend, samples).run()
    return [sample.result() for sample in samples]


def percent(share: float, low: float, high: float) -> str:
    """A share with its interval."""
    return f"{100 * share:.1f}% ({100 * low:.1f} to {100 * high:.1f})"


def write(results: Path, values: Any, text: str, draw: Callable[[Any, Path], None]) -> None:
    """A report: JSON, Markdown, and the picture that `draw` makes."""
    write_report(results, values, text)
    draw(values, results.with_suffix(".png"))


def arguments(about: str | None, out: str) -> argparse.ArgumentParser:
    """The options that all experiments have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the runs (%(default)s)")
    parser.add_argument("--report", action="store_true", help="write the report of the runs")
    return parser
