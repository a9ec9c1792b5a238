"""A picture of a canvas over time: what was at each position after each step, as a PNG.

Across are the positions of the gaps with a little of what is given around them, labeled with the tokens in the end;
down are the steps. A cell is gray where the text was given, blue where it was kept from a draft, white where it is
open, and from its commit on colored by the confidence of that commit. What a step commits has its token written in it;
what it replaced or opened again is framed.
"""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.result import Result
from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.view.charts import add_frame, confidence_scale, new_figure, rgba, write_figure

AROUND = 6
"""Given positions shown on either side of a gap."""
MOST_POSITIONS, MOST_STEPS, MOST_LETTERS = 96, 64, 14
LIGHT = 0.55
"""Confidence from which a cell is light enough for dark letters."""
LETTER, ROOM, LEAST, CELL_HEIGHT = 0.068, 0.09, 0.3, 0.27
"""Inches: a letter of 8 points, the room beside a token, the narrowest cell and the height of a cell."""
FONT = {"family": "monospace", "fontsize": 8, "parse_math": False}
GIVEN, KEPT, OPEN, INK, CHANGED = "#d5d8dc", "#bcd8f0", "#ffffff", "#1b1f24", "#d55e00"


Places = tuple[np.ndarray, np.ndarray]
"""The positions shown, and where their cells begin and the last one ends."""


def draw(result: Result, tokenizer: Tokenizer, path: str | os.PathLike[str]) -> None:
    """Draw the trace of `result` to the PNG file `path`, written under a temporary name and renamed.

    InputError for a path that is no .png file in a folder, and for more positions or steps than can be read;
    MissingExtra without matplotlib.
    """
    check_picture(path)
    write_figure(figure_of(result, tokenizer), Path(path))


def check_picture(path: str | os.PathLike[str]) -> None:
    """InputError or MissingExtra where no picture can be written: call it before any work."""
    target = Path(path)
    if target.suffix != ".png" or target.is_dir() or not target.absolute().parent.is_dir():
        raise InputError(f"a picture cannot be written to {os.fspath(path)!r}: give a .png file in a folder there is")
    new_figure()


def figure_of(result: Result, tokenizer: Tokenizer) -> Any:
    """The picture as a matplotlib figure; its only axes have a cell for each step and position shown."""
    states = [result.trace.canvas, *result.trace.replay()]
    shown = _shown(states[0])
    if len(shown) > MOST_POSITIONS or len(states) - 1 > MOST_STEPS:
        raise InputError(
            f"a picture has at most {MOST_POSITIONS} positions and {MOST_STEPS} steps, and these are {len(shown)} and "
            f"{len(states) - 1}: ask for fewer tokens"
        )
    edges = _edges_across(result, states[-1], shown, tokenizer)
    width, height = edges[-1] + 2.0, len(states) * CELL_HEIGHT + 1.4
    figure = new_figure(max(6.0, width), height)
    axes = figure.subplots()
    down = np.arange(len(states) + 1) - 0.5
    axes.pcolormesh(edges, down, _colors(result, states, shown), rasterized=True)
    axes.invert_yaxis()
    _marks(axes, result, (shown, edges), tokenizer)
    _edges(axes, states, (shown, edges), tokenizer)
    figure.colorbar(confidence_scale(), ax=axes, pad=0.01, fraction=0.03).set_label("confidence at commit")
    _title(axes, result, states[-1], tokenizer.null_id)
    return figure


def _shown(canvas: Canvas) -> np.ndarray:
    """Positions of the gaps and AROUND given ones on either side, int64, ascending; without <bos>."""
    near = np.zeros(len(canvas), dtype=bool)
    for start, end in canvas.gaps:
        near[max(1, start - AROUND) : end + AROUND] = True
    return np.flatnonzero(near)


def _colors(result: Result, states: list[Canvas], shown: np.ndarray) -> np.ndarray:
    """Colors (steps + 1, positions, 4)."""
    scale, sure = confidence_scale(), np.full(len(states[0]), np.nan)
    out = np.empty((len(states), len(shown), 4))
    steps = (None, *result.trace.steps)
    for row, (step, state) in enumerate(zip(steps, states, strict=True)):
        if step is not None:
            sure[step.decision.positions] = step.decision.confidence
            sure[step.decision.reopen] = np.nan
        out[row] = scale.to_rgba(np.nan_to_num(sure[shown]), norm=True)
        out[row, np.isnan(sure[shown])] = rgba(GIVEN)
        out[row, np.isnan(sure[shown]) & state.in_gap[shown]] = rgba(KEPT)
        out[row, state.open[shown]] = rgba(OPEN)
    return out


def _edges_across(result: Result, final: Canvas, shown: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Where the cells of each position begin and where the last one ends, inches: a cell is as wide as its longest
    token.
    """
    tokens = {position: {int(final.tokens[position])} for position in shown.tolist()}
    for step in result.trace.steps:
        for position, token in zip(step.decision.positions.tolist(), step.decision.tokens.tolist(), strict=True):
            tokens[position].add(token)
    letters = [max(_letters(_label(tokenizer, token)) for token in tokens[position]) for position in shown.tolist()]
    return np.concatenate([[0.0], np.cumsum([max(LEAST, LETTER * num + ROOM) for num in letters])])


def _letters(text: str) -> int:
    """Widths of a letter: those of East Asia are twice as wide."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _marks(axes: Any, result: Result, places: Places, tokenizer: Tokenizer) -> None:
    """The tokens of each step in their cells, and a frame around what it replaced or opened again."""
    shown, edges = places
    column = {position: index for index, position in enumerate(shown.tolist())}
    middle = (edges[1:] + edges[:-1]) / 2
    for row, step in enumerate(result.trace.steps, 1):
        decision = step.decision
        for position, token, sure in zip(
            decision.positions.tolist(), decision.tokens.tolist(), decision.confidence.tolist(), strict=True
        ):
            color = "white" if sure < LIGHT else INK
            axes.text(middle[column[position]], row, _label(tokenizer, token), ha="center", va="center", color=color,
                      **FONT)  # fmt: skip
        for position in [*decision.replace.tolist(), *decision.reopen.tolist()]:
            start, end = edges[column[position] :][:2]
            add_frame(axes, (start, row - 0.5), end - start, 1, CHANGED)


def _edges(axes: Any, states: list[Canvas], places: Places, tokenizer: Tokenizer) -> None:
    """Tokens in the end along the top, steps down the side, and a dashed line where positions are left out."""
    shown, edges = places
    final = states[-1]
    labels = ["" if final.open[p] else _label(tokenizer, int(final.tokens[p])) for p in shown.tolist()]
    axes.set_xticks((edges[1:] + edges[:-1]) / 2, labels, **FONT)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(states)), ["start", *range(1, len(states))], fontsize=9)
    axes.set_ylabel("step")
    axes.set_xticks(edges, minor=True)
    axes.set_yticks(np.arange(-0.5, len(states)), minor=True)
    axes.grid(which="minor", color="#c3c8ce", linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    for index in np.flatnonzero(np.diff(shown) > 1).tolist():
        axes.axvline(edges[index + 1], color=INK, linewidth=1.5, linestyle=(0, (2, 2)))


def _title(axes: Any, result: Result, final: Canvas, null_id: int | None) -> None:
    changed = any(len(step.decision.replace) or len(step.decision.reopen) for step in result.trace.steps)
    kept = bool((result.trace.canvas.in_gap & ~result.trace.canvas.open).any())
    text = f"{result.usage.completion_tokens} tokens in {result.usage.forwards} forwards\ngray: given"
    ended = null_id is not None and bool((result.trace.canvas.in_gap & (final.tokens == null_id)).any())
    text += ", blue: kept" * kept + ", white: open" + ", framed: changed again" * changed + ", ×: nothing" * ended
    axes.set_xlabel(text, fontsize=9, loc="left", multialignment="left")


def _label(tokenizer: Tokenizer, token: int) -> str:
    """A token's text as it can be read in a row: white space as signs; the null as a cross, special tokens in words."""
    if token in tokenizer.special_ids:
        names = {tokenizer.null_id: "×", tokenizer.eos_id: "<eos>", tokenizer.mask_id: "<mask>"}
        return names.get(token, f"<{token}>")
    text = tokenizer.decode([token])
    signs = {" ": "·", "\n": "↵", "\t": "→", "\r": "␍"}
    shown = "".join(signs.get(c, c if c.isprintable() else "�") for c in text)
    return shown if len(shown) <= MOST_LETTERS else shown[: MOST_LETTERS - 1] + "…"
