"""A canvas over time as a picture: a cell for each step and position shown, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.result import Result
from daguerre.errors import InputError, MissingExtra
from daguerre.model import Model
from daguerre.trace import Event, Trace
from daguerre.view.picture import AROUND, CHANGED, GIVEN, KEPT, OPEN, draw, figure_of


def to_rgba(color: str) -> tuple[float, float, float, float]:
    from matplotlib import colors

    return colors.to_rgba(color)


def cells(figure: Any) -> np.ndarray:
    """The colors that are drawn, (steps + 1, positions, 4)."""
    return np.asarray(figure.axes[0].collections[0].get_array())


def traced(causal: Model, canvas: Canvas, decisions: list[Decision]) -> Result:
    events = []
    for step, decision in enumerate(decisions):
        canvas = canvas.apply(decision)
        events.append(Event(step, decision, canvas))
    whole = causal.generate("x", 1)
    start = events[0].canvas if not events else dataclasses.replace(canvas, open=canvas.in_gap)
    return dataclasses.replace(whole, trace=Trace.record(start, events))


def test_a_cell_says_what_stood_there(causal: Model) -> None:
    template = "def area(width, height):\n    return <gap>\n\n\ndef border(width, height):\n    return <gap>\n"
    result = causal.fill(template, 3, heal=False)
    figure = figure_of(result, causal.tokenizer)
    drawn, states = cells(figure), [result.trace.canvas, *result.trace.replay()]
    (first, second) = result.trace.canvas.gaps
    shown = [*range(first[0] - AROUND, first[1] + AROUND), *range(second[0] - AROUND, second[1] + AROUND)]
    shown = sorted({p for p in shown if 0 < p < len(states[0])})
    assert drawn.shape == (len(states), len(shown), 4)
    for row, state in enumerate(states):
        assert [tuple(c) == to_rgba(OPEN) for c in drawn[row]] == state.open[shown].tolist()
        assert [tuple(c) == to_rgba(GIVEN) for c in drawn[row]] == (~state.in_gap[shown]).tolist()
    labels = [tick.get_text() for tick in figure.axes[0].get_xticklabels() if tick.get_text()]
    assert len(labels) == len(shown)
    assert "return" in " ".join(labels)
    assert len(figure.axes[0].texts) == 6, "each commit is written once"


def test_what_is_kept_replaced_and_opened_again_is_told_apart(causal: Model) -> None:
    word = causal.tokenizer.encode("a")[0]
    canvas = Canvas.lay_out([[1, word], [word]], [3], 3).at((2, 5))
    one = Decision([2, 3, 4], [word] * 3, [0.5] * 3, [0.5, 0.6, 0.7])
    two = Decision([2], [word + 1], [0.9], [0.9], reopen=[3], replace=[2])
    three = Decision([3], [word], [0.9], [1.0])
    figure = figure_of(traced(causal, canvas, [one, two, three]), causal.tokenizer)
    axes = figure.axes[0]
    columns = axes.get_xticks(minor=True).tolist()  # where cells begin
    frames = [(columns.index(patch.get_x()), patch.get_y()) for patch in axes.patches]
    assert frames == [(1, 1.5), (2, 1.5)]
    assert all(patch.get_edgecolor() == to_rgba(CHANGED) for patch in figure.axes[0].patches)
    assert [tuple(c) == to_rgba(OPEN) for c in cells(figure)[2]] == [False, False, True, False, False]
    assert not np.array_equal(cells(figure)[1][1], cells(figure)[2][1])
    assert "framed" in figure.axes[0].get_xlabel()
    weak = causal.edit("alpha = beta + gamma\n", [(0, 14)], strength=0.5)
    kept = [tuple(c) == to_rgba(KEPT) for c in cells(figure_of(weak, causal.tokenizer))[0]]
    ((start, end),) = weak.trace.canvas.gaps
    assert sum(kept) == (~weak.trace.canvas.open[start:end]).sum() > 0


def test_any_text_can_be_drawn(causal: Model, tmp_path: Path) -> None:
    result = causal.fill("$x^2$ \\frac{ é🙂\t\r\n\ufeff§\x00<mask><gap> $_{\n", 4, temperature=2.0, seed=5)
    draw(result, causal.tokenizer, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_what_cannot_be_drawn_is_refused(causal: Model, tmp_path: Path, hide_matplotlib: Callable[[], None]) -> None:
    small = causal.generate("x", 2)
    for path in ("a.jpg", "no/such/folder/a.png", "folder.png"):
        (tmp_path / "folder.png").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=r"give a \.png file"):
            draw(small, causal.tokenizer, tmp_path / path)
    with pytest.raises(InputError, match="at most 96 positions"):
        figure_of(causal.infill("x", "y", 120, threshold=0.0), causal.tokenizer)
    hide_matplotlib()
    with pytest.raises(MissingExtra, match=r"daguerre\[train\]"):
        draw(small, causal.tokenizer, tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]
