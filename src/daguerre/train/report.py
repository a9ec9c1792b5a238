"""What a run reports: a live line, log.csv and held.csv, TensorBoard events, and a PNG of the curves."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from daguerre.errors import MissingExtra
from daguerre.files import atomic_write
from daguerre.train.acceptance import MEASURES
from daguerre.train.batch import Batch, LossReport
from daguerre.train.budget import RunProgress
from daguerre.train.curves import Columns, draw_curves, read_columns
from daguerre.train.monitor import HeldOut, mean_by_level
from daguerre.train.noising import NUM_LEVELS
from daguerre.train.recipe import Recipe
from daguerre.train.stage import Stage


class StepTotals:
    """Sums over the micro-batches of one step."""

    def __init__(self) -> None:
        self.loss, self.clean_sum, self.clean_count, self.num_tokens, self.num_rows = 0.0, 0.0, 0, 0, 0
        self.level_sum, self.level_count = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS, dtype=np.int64)
        self.parts: dict[str, float] = {}

    def add(self, report: LossReport, batch: Batch, stage: Stage) -> None:
        self.loss += float(report.loss.detach()) / stage.micro_batches
        self.num_tokens += batch.num_tokens
        self.num_rows += batch.tokens.numel()
        self.clean_sum += report.clean_sum
        self.clean_count += report.clean_count
        self.level_sum += report.level_sum
        self.level_count += report.level_count
        for name, value in report.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + value / stage.micro_batches

    def row(self, progress: RunProgress, norm: float, factor: float, seconds: float, stage: Stage) -> dict[str, Any]:
        """The step as a row of log.csv: losses in nats per token, masked cross-entropy by noise level."""
        row = {
            "step": progress.step,
            "tokens": progress.tokens,
            "minutes": progress.minutes,
            "length": stage.length,
            "loss": self.loss,
            "clean": self.clean_sum / self.clean_count if self.clean_count else math.nan,
            "grad_norm": norm,
            "lr_factor": factor,
            "tokens_per_second": self.num_tokens / max(seconds, 1e-9),
        }
        levels = enumerate(mean_by_level(self.level_sum, self.level_count))
        return row | {f"masked_{level}": mean for level, mean in levels} | self.parts


class CsvLog:
    """A CSV with one row a step and the columns of the first, that a resumed run continues: rows behind the resumed
    step, and a half-written last one, are dropped; all of them where a run begins again, which `resumed_step` None
    says.
    """

    def __init__(self, path: Path, resumed_step: int | None) -> None:
        self.path, self.last_step = path, -1
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        header, *rows = text.split("\n")[:-1] or [""]
        self.header = header
        if header:
            kept = [] if resumed_step is None else [row for row in rows if int(row.split(",")[0]) <= resumed_step]
            self.last_step = int(kept[-1].split(",")[0]) if kept else -1
            with atomic_write(path) as file:
                file.write("".join(f"{line}\n" for line in (header, *kept)).encode())

    def write(self, row: dict[str, Any]) -> None:
        """Append a row, whose first value is its step; a step that is there already is not written again."""
        if row["step"] <= self.last_step:
            return
        names = self.header.split(",") if self.header else list(row)
        with self.path.open("w" if not self.header else "a", encoding="utf-8", newline="") as file:
            # a run that an older version began has fewer
            writer = csv.DictWriter(file, names, restval="nan", extrasaction="ignore", lineterminator="\n")
            if not self.header:
                writer.writeheader()
                self.header = ",".join(names)
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
        self.last_step = row["step"]


class Reporter:
    """Writes every step to log.csv and every evaluation to held.csv; shows speed, losses and draft match live."""

    def __init__(self, out: Path, recipe: Recipe, resumed_step: int | None, *, quiet: bool = False) -> None:
        self.out, self.recipe, self.quiet = out, recipe, quiet
        self.log = CsvLog(out / "log.csv", resumed_step)
        self.held_log = CsvLog(out / "held.csv", resumed_step)
        self.console = Console(stderr=True, quiet=quiet)
        self.board = self._board(out / "tensorboard", resumed_step or 0)
        self.draws = True
        self.bar: Progress | None = None
        if self.console.is_terminal and not quiet:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=BAR_WIDTH),
                TaskProgressColumn(),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=self.console)
            self.task = self.bar.add_task("starting", total=1.0)
            self.bar.start()

    def phase(self, what: str) -> None:
        """Show what the run is doing, where there is a live line."""
        if self.bar is not None:
            self.bar.update(self.task, description=what)

    def step(self, row: dict[str, Any], share: float) -> None:
        """A step, as `StepTotals.row` has it, at this share of the run."""
        self._write(self.log, "train", row)
        loss = row["loss"] if math.isnan(row["clean"]) else row["clean"]  # that of a run without next tokens
        what = f"loss {loss:.2f}"
        if "reward" in row:
            distance = "" if math.isnan(row["kl"]) else f"  kl {row['kl']:.4f}"
            what = f"reward {row['reward']:.3f}{distance}"
        line = f"step {row['step']:,}  {row['tokens_per_second']:,.0f} tokens/s  {what}"
        if self.bar is not None:
            self.bar.update(self.task, completed=share, description=line)
        elif row["step"] % self.recipe.log_steps == 0:
            self.say(f"{share:5.1%}  {row['minutes']:6.1f} min  {row['tokens']:,} tokens  {line}")

    def held(self, step: int, held: HeldOut) -> None:
        row: dict[str, Any] = {"step": step, "clean_bpb": held.clean_bpb, "accepted": held.accepted}
        row |= {f"masked_{i}": v for i, v in enumerate(held.masked_by_level)}
        row |= {f"match_{i + 1}": v for i, v in enumerate(held.draft_match)}
        row |= {"ended": held.ended, "ended_early": held.ended_early}
        for measure, shares in zip(MEASURES, held.acceptance, strict=False):
            row |= {f"{measure}_{place}": share for place, share in enumerate(shares, 1)}
        row |= held.parts
        self._write(self.held_log, "held", row)
        if self.board is not None:
            self.board.flush()
        self.say(f"held out at step {step}: {_figures(held)}")
        self._curves()

    def _write(self, log: CsvLog, kind: str, row: dict[str, Any]) -> None:
        log.write(row)
        if self.board is not None:
            for name, value in row.items():
                if name != "step" and not math.isnan(value):
                    self.board.add_scalar(f"{kind}/{name}", value, row["step"])

    def compare(self) -> None:
        """Say how the held-out figure of the model that the run started from has changed; nothing from scratch."""
        held = read_columns(self.out / "held.csv")
        if held and held["step"][0] == 0 and len(held["step"]) > 1:
            self.say(_change(held))

    def say(self, text: str) -> None:
        """A line; on a terminal it is broken between words."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=not self.console.is_terminal)

    def close(self) -> None:
        """Give the terminal back and write what is buffered; also after an error."""
        if self.bar is not None:
            self.bar.stop()
        if self.board is not None:
            self.board.close()

    def _board(self, folder: Path, resumed_step: int) -> Any:
        try:
            return _tensorboard(folder, resumed_step)
        except MissingExtra as error:
            self.say(f"no TensorBoard events: {error}")
            return None

    def _curves(self) -> None:
        if not self.draws or self.log.last_step < 1:
            return
        try:
            draw_curves(self.out)
        except MissingExtra as error:
            self.draws = False
            self.say(f"no curves.png: {error}")


def _figures(held: HeldOut) -> str:
    """What a model has of them: next-token loss and drafts, or the masked loss alone; and how it ends gaps."""
    ends = "" if math.isnan(held.ended) else f", gaps ended {held.ended:.3f}, too early {held.ended_early:.3f}"
    parts = "".join(f", {name} {value:.3f}" for name, value in held.parts.items())
    if not held.draft_match:
        levels = " ".join("-" if math.isnan(v) else f"{v:.2f}" for v in held.masked_by_level)
        known = "" if math.isnan(held.clean_bpb) else f"next-token {held.clean_bpb:.3f} bits/byte, "
        if "preference" in held.parts or "reward" in held.parts:
            return parts.removeprefix(", ")
        return f"{known}masked {levels} bits/token{ends}{parts}"
    drafts = f"{held.accepted:.2f} tokens a cycle"
    if held.acceptance:
        shares = (f"{m} {' '.join(f'{v:.3f}' for v in by)}" for m, by in zip(MEASURES, held.acceptance, strict=True))
        return f"accepted by place: {', '.join(shares)}; {drafts}"
    return f"next-token {held.clean_bpb:.3f} bits/byte, {drafts}{ends}{parts}"


def _change(held: Columns) -> str:
    """Before and after: next-token loss, or the mean masked loss where a model has no other; of a run on verified
    drafts the overlap of their first place.
    """
    if "overlap_1" in held:
        return (
            f"held-out text, overlap at place 1: {held['overlap_1'][0]:.3f} before, {held['overlap_1'][-1]:.3f} after"
        )
    if "preference" in held:
        pairs = (f"{100 * held['accuracy'][-1]:.1f}% in order", f"margin {held['margin'][-1]:.3f}")
        loss = f"{held['preference'][0]:.3f} before, {held['preference'][-1]:.3f} after"
        return f"held-out pairs, loss: {loss}; {', '.join(pairs)}; drift {held['drift'][-1]:.4f} nats/token"
    if "reward" in held:
        return f"held-out prompts, mean reward: {held['reward'][0]:.3f} before, {held['reward'][-1]:.3f} after"
    what, unit, values = "next-token", "bits/byte", held["clean_bpb"]
    if math.isnan(values[0]):
        masked = np.stack([held[f"masked_{level}"] for level in range(NUM_LEVELS)])
        what, unit, values = "masked", "bits/token", masked[~np.isnan(masked).any(axis=1)].mean(axis=0)
    percent = 100 * (1 - values[-1] / values[0])
    change = f"{abs(percent):.1f}% {'lower' if percent >= 0 else 'higher'}"
    return f"held-out text, {what}: {values[0]:.3f} {unit} before, {values[-1]:.3f} after ({change})"


BAR_WIDTH = 16
"""With this, the live line fits 80 columns."""


def _tensorboard(folder: Path, resumed_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", "train") from error
    return SummaryWriter(str(folder), purge_step=resumed_step + 1)
