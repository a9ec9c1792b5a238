"""A picture of a run, from its log.csv and held.csv: losses, draft match, speed and learning rate; of a run on pairs
its loss, rewards, and how many pairs are in order; of a run on drawn answers their rewards; of one with a
teacher its KL, and how answers are written in blocks.
"""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import DataError
from daguerre.train.noising import NUM_LEVELS
from daguerre.view.charts import new_figure, write_figure

Columns = dict[str, np.ndarray]
POINTS = 200
DRAFT_POSITIONS = (1, 2, 3, 4, 6, 8, 12, 16)
LEVELS = (("#f0a202", "o"), ("#d95d39", "s"), ("#8f0b1f", "D"), ("#e36bae", "^"), ("#8e44ad", "v"), ("#2743b8", "P"),
          ("#2a9fd6", "X"), ("#0b6e4f", "*"))  # fmt: skip
"""Color and marker of each noise level, and of each drawn position of a draft."""
TRAIN, HELD, GRAY = "#9aa7b8", "#1f4e79", "#5c6670"
SIZE = (13.0, 8.0)


def draw_curves(run: Path) -> Path:
    """Draw `run`/curves.png, replacing the one that is there, and return its path.

    DataError when the run has no log yet; MissingExtra without matplotlib.
    """
    figure = new_figure(*SIZE)
    log, held = read_columns(run / "log.csv"), read_columns(run / "held.csv")
    if not log:
        raise DataError(f"{run} has no log.csv with a step in it: give the folder of a training run")
    panels = figure.subplots(2, 2)
    drawn = (_next_token, _masked, _drafts, _speed)
    if "preference" in log:
        drawn = (_pairs, _implicit_rewards, _in_order, _speed)
    elif "reward" in log:
        drawn = (_rewards, _distance, _answers, _speed)
    elif "kl_next" in log:
        drawn = (_teacher, _masked, _parallel, _speed)
    for panel, draw in zip(panels.flat, drawn, strict=True):
        panel.grid(alpha=0.25)
        panel.set_xlabel("step")
        panel.set_xlim(0, max(2.0, 1.02 * float(log["step"][-1])))
        panel.spines[["top", "right"]].set_visible(False)
        draw(panel, log, held)
    minutes, tokens = log["minutes"][-1], log["tokens"][-1]
    figure.suptitle(f"{run.resolve().name}: {tokens / 1e6:,.2f} million tokens in {minutes:,.1f} minutes", fontsize=13)
    write_figure(figure, run / "curves.png")
    return run / "curves.png"


def read_columns(path: Path) -> Columns:
    """Columns of a CSV of numbers, NaN where there is none; empty when the file or its rows are missing."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([_number(row[name]) for row in rows]) for name in rows[0]} if rows else {}


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def smooth(step: np.ndarray, value: np.ndarray, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """(steps, means) of at most `points` runs of neighboring steps; NaN counts for nothing."""
    groups = np.array_split(np.arange(len(step)), min(points, len(step)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        pairs = [(step[g].mean(), np.nanmean(value[g])) for g in groups]
    xs, ys = np.array(pairs).T
    return xs, ys


def _next_token(panel: Any, log: Columns, held: Columns) -> None:
    panel.set_title("Next-token loss")
    if not np.isfinite(log["clean"]).any():  # a draft head alone
        panel.text(0.5, 0.5, "no next token is learned in this run", ha="center", color=GRAY, transform=panel.transAxes)
        return
    panel.set_ylabel("training, nats per token", color=GRAY)
    panel.plot(*smooth(log["step"], log["clean"]), color=TRAIN, label="training, nats per token")
    panel.set_ylim(*_range(log["clean"]))
    if held and np.isfinite(held["clean_bpb"][-1]):
        right = _second_axis(panel, "held out, bits per byte", HELD)
        right.plot(held["step"], held["clean_bpb"], "o-", color=HELD, markersize=3)
        right.set_ylim(*_range(held["clean_bpb"]))
        right.annotate(
            f"{held['clean_bpb'][-1]:.3f}",
            (held["step"][-1], held["clean_bpb"][-1]),
            xytext=(0, 9),
            textcoords="offset points",
            ha="right",
            color=HELD,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )


def _masked(panel: Any, log: Columns, held: Columns) -> None:
    """Held-out loss by level; training loss, in the same unit, as long as nothing was held out."""
    panel.set_title("Masked loss by share of masked tokens" + ("" if held else " (training)"))
    panel.set_ylabel("bits per token")
    for level in range(NUM_LEVELS):
        name, (color, marker) = f"masked_{level}", LEVELS[level]
        label = f"{level}/{NUM_LEVELS} to {level + 1}/{NUM_LEVELS}"
        if held:
            panel.plot(held["step"], held[name], f"{marker}-", markersize=4, color=color, label=label)
        else:
            steps, nats = smooth(log["step"], log[name], 50)
            panel.plot(steps, nats / np.log(2), color=color, label=label)
    _legend(panel, "masked")


def _drafts(panel: Any, log: Columns, held: Columns) -> None:
    accepted = f": {held['accepted'][-1]:.2f} tokens a cycle" if "match_1" in held else ""
    panel.set_title(f"Drafts that match the model's greedy text{accepted}")
    panel.set_ylabel("share of prompts")
    panel.set_ylim(0, 1)
    if not held or "match_1" not in held:
        reason = "not a model that drafts" if held else "nothing held out yet"
        panel.text(0.5, 0.5, reason, transform=panel.transAxes, ha="center", color=GRAY)
        return
    drawn = [i for i in DRAFT_POSITIONS if f"match_{i}" in held]
    for position, (color, marker) in zip(drawn, LEVELS, strict=False):
        values = held[f"match_{position}"]
        panel.plot(held["step"], values, f"{marker}-", markersize=4, color=color, label=f"{position}")
    _legend(panel, "position")


def _pairs(panel: Any, log: Columns, held: Columns) -> None:
    panel.set_title("Loss of pairs, log 2 at the start")
    panel.plot(*smooth(log["step"], log["preference"]), color=TRAIN, label="training")
    if "preference" in held:
        panel.plot(held["step"], held["preference"], "o-", color=HELD, markersize=3, label="held out")
    panel.axhline(np.log(2), color=GRAY, linewidth=0.8, linestyle=":")
    panel.legend(frameon=False)


def _implicit_rewards(panel: Any, log: Columns, held: Columns) -> None:
    """Implicit rewards, and where they are estimated the spread of the margin by random masks."""
    panel.set_title("Rewards: beta times the change of log-probability")
    for name, (color, _) in zip(("chosen", "rejected", "margin"), LEVELS[5:], strict=False):
        panel.plot(*smooth(log["step"], log[name]), color=color, label=name)
    if np.nan_to_num(log["variance"]).any():
        spread = np.sqrt(log["variance"])
        panel.plot(*smooth(log["step"], spread), color=LEVELS[0][0], linestyle=":", label="sd of the margin by masks")
    if "margin" in held:
        panel.plot(held["step"], held["margin"], "o-", color=HELD, markersize=3, label="margin, held out")
    panel.legend(frameon=False)


def _in_order(panel: Any, log: Columns, held: Columns) -> None:
    panel.set_title("Pairs in order, and drift from the start")
    panel.set_ylabel("share of pairs", color=GRAY)
    panel.plot(*smooth(log["step"], log["accuracy"], 50), color=TRAIN)
    panel.set_ylim(0, 1.02)
    if "accuracy" in held:
        panel.plot(held["step"], held["accuracy"], "o-", color=GRAY, markersize=3)
    right = _second_axis(panel, "drift, nats a token", HELD)
    right.plot(*smooth(log["step"], log["drift"]), color=HELD)


def _rewards(panel: Any, log: Columns, held: Columns) -> None:
    panel.set_title("Reward")
    panel.plot(*smooth(log["step"], log["reward"], 100), color=TRAIN, label="training prompts, as drawn")
    if held:
        panel.plot(held["step"], held["reward"], "o-", color=HELD, markersize=3, label="held out, temperature 0")
    panel.legend(fontsize=8, frameon=False)


def _distance(panel: Any, log: Columns, held: Columns) -> None:
    panel.set_title("Distance from the start, and clipped tokens")
    _left(panel, log, "kl", "KL, nats per token")
    right = _second_axis(panel, "share of tokens that are clipped", HELD)
    right.plot(*smooth(log["step"], log["clipped"], 100), color=HELD)
    right.set_ylim(bottom=0)


def _answers(panel: Any, log: Columns, held: Columns) -> None:
    panel.set_title("Answers")
    _left(panel, log, "answer_length", "tokens of an answer").set_ylim(bottom=0)
    right = _second_axis(panel, "share whose group has one reward", HELD)
    right.plot(*smooth(log["step"], log["agree"], 100), color=HELD)
    right.set_ylim(0, 1)


def _teacher(panel: Any, log: Columns, held: Columns) -> None:
    panel.set_title("KL from the teacher")
    panel.set_ylabel("nats per token")
    for name, label, (color, marker) in (("kl", "masked tokens", LEVELS[1]), ("kl_next", "next tokens", LEVELS[6])):
        panel.plot(*smooth(log["step"], log[name]), color=color, alpha=0.5, label=f"{label}, training")
        if held:
            panel.plot(held["step"], held[name], f"{marker}-", markersize=4, color=color, label=f"{label}, held out")
    panel.set_ylim(0, _range(np.concatenate([columns["kl"] for columns in (log, held) if columns]))[1])
    panel.legend(fontsize=8, frameon=False)


def _parallel(panel: Any, log: Columns, held: Columns) -> None:
    """Of answers that are written in blocks: on training prompts where a run learns from them, and held-out ones."""
    panel.set_title("Answers in blocks: tokens a forward, and repetition")
    panel.set_ylabel("tokens a forward", color=HELD)
    right = _second_axis(panel, "share of runs of four tokens that come twice", LEVELS[1][0])
    for axis, name, color in ((panel, "tokens_per_forward", HELD), (right, "repetition", LEVELS[1][0])):
        if name in log:
            axis.plot(*smooth(log["step"], log[name], 100), color=color, alpha=0.4)
        if held:
            axis.plot(held["step"], held[name], "o-", color=color, markersize=4)
    panel.set_ylim(bottom=1)
    right.set_ylim(0, 1)


def _speed(panel: Any, log: Columns, held: Columns) -> None:
    panel.set_title("Throughput and learning rate")
    _left(panel, log, "tokens_per_second", "tokens per second").set_ylim(bottom=0)
    right = _second_axis(panel, "learning rate, share of its peak", HELD)
    right.plot(log["step"], log["lr_factor"], color=HELD)
    right.set_ylim(0, 1.05)


def _left(panel: Any, log: Columns, name: str, label: str) -> Any:
    """A panel with a column on its left axis."""
    panel.set_ylabel(label, color=GRAY)
    panel.plot(*smooth(log["step"], log[name], 100), color=TRAIN)
    return panel


def _legend(panel: Any, title: str) -> None:
    """Beside the panel: no corner stays free of lines in every run."""
    panel.legend(fontsize=8, title=title, title_fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _second_axis(panel: Any, label: str, color: str) -> Any:
    axis = panel.twinx()
    axis.spines[["top", "left"]].set_visible(False)
    axis.set_ylabel(label, color=color)
    return axis


def _range(values: np.ndarray) -> tuple[float, float]:
    """From below the smallest value to above nearly all of them, so that the first steps do not flatten the rest."""
    known = values[np.isfinite(values)]
    if not known.size:
        return 0.0, 1.0
    low, high = float(known.min()), float(np.quantile(known, 0.97))
    margin = max(0.08 * (high - low), 0.02)
    return low - margin, high + margin
