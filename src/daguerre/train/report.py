"""What a run says while it goes: a live line or table, log.csv and held.csv, TensorBoard events, and a PNG of the curves."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from daguerre.train.monitor import Held
from daguerre.train.recipe import Recipe


@dataclass(frozen=True)
class StepReport:
    """One optimizer step. Losses in nats per token; `by_level` is masked cross-entropy in eight bins of noise level."""

    step: int
    tokens: int
    minutes: float
    share: float
    length: int
    loss: float
    clean: float
    by_level: tuple[float, ...]
    level_count: tuple[int, ...]
    grad_norm: float
    lr_factor: float
    tokens_per_second: float


class CsvLog:
    """A CSV that a resumed run continues: rows of steps at or beyond the resumed one are dropped."""

    def __init__(self, path: Path, resumed_step: int) -> None:
        self.path = path
        self.header = ""
        if path.exists():
            lines = path.read_text().splitlines()
            kept = [line for line in lines[1:] if line and int(line.split(",")[0]) <= resumed_step]
            if lines:
                self.header = lines[0]
                path.write_text("\n".join([lines[0], *kept]) + "\n")

    def write(self, row: dict[str, Any]) -> None:
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if not self.header:
                writer.writeheader()
                self.header = ",".join(row)
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


class Reporter:
    """Writes every step to log.csv and every evaluation to held.csv; shows throughput, losses and draft match live."""

    def __init__(self, out: Path, recipe: Recipe, resumed_step: int, *, quiet: bool = False) -> None:
        self.out, self.recipe, self.quiet = out, recipe, quiet
        self.log = CsvLog(out / "log.csv", resumed_step)
        self.held_log = CsvLog(out / "held.csv", resumed_step)
        self.board = _tensorboard(out / "tensorboard", resumed_step)
        self.console = Console(stderr=True, quiet=quiet)
        self.bar: Progress | None = None
        if self.console.is_terminal and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console)
            self.task = self.bar.add_task("starting", total=1.0)
            self.bar.start()

    def step(self, report: StepReport) -> None:
        levels = {f"masked_{i}": v for i, v in enumerate(report.by_level)}
        row = {
            k: getattr(report, k)
            for k in (
                "step",
                "tokens",
                "minutes",
                "length",
                "loss",
                "clean",
                "grad_norm",
                "lr_factor",
                "tokens_per_second",
            )
        }
        self.log.write({**row, **levels})
        if self.board is not None:
            for name, value in {**row, **levels}.items():
                if name != "step":
                    self.board.add_scalar(f"train/{name}", value, report.step)
        line = (
            f"step {report.step}  {report.tokens / 1e6:.2f}M tokens  {report.tokens_per_second:,.0f}/s  "
            f"next-token {report.clean:.3f}  masked {_levels(report)}"
        )
        if self.bar is not None:
            self.bar.update(self.task, completed=report.share, description=line)
        elif report.step % self.recipe.log_steps == 0:
            self.console.print(f"{report.share:5.1%}  {report.minutes:6.1f} min  {line}", highlight=False, soft_wrap=True)

    def held(self, step: int, held: Held) -> None:
        row: dict[str, Any] = {"step": step, "clean_bpb": held.clean_bpb, "accepted": held.accepted}
        row |= {f"masked_{i}": v for i, v in enumerate(held.masked_by_level)}
        row |= {f"match_{i + 1}": v for i, v in enumerate(held.draft_match)}
        self.held_log.write(row)
        if self.board is not None:
            for name, value in row.items():
                if name != "step":
                    self.board.add_scalar(f"held/{name}", value, step)
            self.board.flush()
        match = " ".join(f"{v:.2f}" for v in held.draft_match[:8])
        self.say(
            f"held out at step {step}: next-token {held.clean_bpb:.3f} bits/byte, draft match by position {match}, "
            f"{held.accepted:.2f} tokens a cycle"
        )
        self._curves()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def finish(self, finished: bool, held: Held) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.board is not None:
            self.board.close()
        self.say("the budget is spent" if finished else "stopped early; --resume goes on")

    def _curves(self) -> None:
        try:
            from daguerre.train.curves import draw_curves
        except ImportError:
            return
        draw_curves(self.out)


def _levels(report: StepReport) -> str:
    return " ".join(f"{v:.2f}" if n else "-" for v, n in zip(report.by_level, report.level_count, strict=True))


def _tensorboard(folder: Path, resumed_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=resumed_step + 1)
