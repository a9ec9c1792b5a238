"""What is wrong with a drawn figure: a legend over data, words over words, words over the edge."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.transforms import Bbox

SLACK = 1.0
"""Pixels by which boxes may overlap: those of words include the room of letters that go below the line."""


def faults(figure: Any) -> list[str]:
    """A line for each fault of a matplotlib figure; [] for a good one."""
    figure.canvas.draw()
    return [*_covered(figure), *_overlapping(figure)]


def _covered(figure: Any) -> Iterator[str]:
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend() is not None)]
    for legend in legends:
        box = legend.get_window_extent().padded(-2 * SLACK)
        for axes in figure.axes:
            hidden = sum(bool(_inside(points, box).any()) for points in _data(axes))
            if hidden:
                title = axes.get_title(loc="left") or axes.get_title()
                yield f"a legend ({_words(legend)}) covers {hidden} parts of {title!r}"


def _data(axes: Any) -> Iterator[np.ndarray]:
    """Points, pixels (N, 2), that lie close together along everything that is drawn of data."""
    for line in axes.lines:
        if len(line.get_xdata()):
            yield _along(line.get_transform().transform(np.column_stack(line.get_data()).astype(float)))
    for collection in axes.collections:
        for path in collection.get_paths():
            if len(path.vertices):
                yield _along(collection.get_transform().transform(path.vertices))
    for patch in axes.patches:
        x0, y0, x1, y1 = patch.get_window_extent().extents
        across, up = np.meshgrid(np.linspace(x0, x1, 40), np.linspace(y0, y1, 40))
        yield np.column_stack([across.ravel(), up.ravel()])


def _along(points: np.ndarray) -> np.ndarray:
    points = points[np.isfinite(points).all(1)]
    parts = [np.linspace(a, b, 50) for a, b in zip(points, points[1:], strict=False)]
    return np.concatenate([points, *parts])


def _inside(points: np.ndarray, box: Bbox) -> np.ndarray:
    return (points > box.min).all(1) & (points < box.max).all(1)


def _overlapping(figure: Any) -> Iterator[str]:
    """Words over other words, and over the edge of the picture."""
    texts = [(text, _box(text)) for text in _texts(figure)]
    width, height = figure.canvas.get_width_height()
    for text, box in texts:
        if box.x0 < -SLACK or box.y0 < -SLACK or box.x1 > width + SLACK or box.y1 > height + SLACK:
            yield f"{text.get_text()!r} goes over the edge"
    for (one, first), (other, second) in combinations(texts, 2):
        both = Bbox.intersection(first, second)
        if both is not None and both.width > SLACK and both.height > SLACK and not _turned_together(one, other):
            yield f"{one.get_text()!r} and {other.get_text()!r} overlap"


def _turned_together(one: Any, other: Any) -> bool:
    """Parallel slanted words do not meet where their boxes do."""
    return bool(one.get_rotation() % 90 and one.get_rotation() == other.get_rotation())


def _box(text: Any) -> Bbox:
    box: Bbox = text.get_window_extent()
    return box.padded(-SLACK)


def _texts(figure: Any) -> Iterator[Any]:
    shown = [*figure.texts, *([figure._suptitle] if figure._suptitle is not None else [])]
    for axes in figure.axes:
        shown += [axes.title, axes._left_title, axes._right_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis, low, high in ((axes.xaxis, *sorted(axes.get_xlim())), (axes.yaxis, *sorted(axes.get_ylim()))):
            shown += [
                label
                for tick in axis.get_major_ticks()
                for label in (tick.label1, tick.label2)
                if low <= tick.get_loc() <= high
            ]
        if axes.get_legend() is not None:
            shown += axes.get_legend().get_texts()
    for legend in figure.legends:
        shown += legend.get_texts()
    seen = set[int]()
    for text in shown:
        if text.get_visible() and text.get_text().strip() and id(text) not in seen:
            seen.add(id(text))
            yield text


def _words(legend: Any) -> str:
    return legend.get_texts()[0].get_text() if legend.get_texts() else ""
