"""Windows of mode "expand": the part of each gap that the model sees, whose length changes.

Letters: L positions of a request's canvas, k commits of a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from daguerre.canvas import Canvas, Decision, Span
from daguerre.models.core.config import ModelConfig


@dataclass(frozen=True, eq=False, slots=True)
class WindowSlot:
    """A position of a window: its token, and what was known when it was committed.

    evidence   what the model's head said about it, (...); None where it said nothing
    """

    token: int = -1
    probability: float = 1.0
    confidence: float = 1.0
    evidence: np.ndarray | None = None


OPEN = WindowSlot()
"""An open position."""


@dataclass(frozen=True)
class Window:
    """The positions of a gap that the model sees, from the left; all others of the gap hold fillers.

    gap            the gap of the request's canvas
    fewest, most   the least and the greatest length
    budget         how many expansions are left
    """

    gap: Span
    slots: tuple[WindowSlot, ...]
    fewest: int
    most: int
    budget: int


@dataclass(frozen=True)
class Sight:
    """What the model sees: a canvas without the fillers, and where each window is on it, from left to right."""

    canvas: Canvas
    runs: tuple[Span, ...]


def seen(config: ModelConfig, canvas: Canvas, windows: Sequence[Window]) -> Sight:
    """What the model sees of a canvas. It ends in <eos>, as the texts of training do."""
    kept = np.ones(len(canvas), dtype=bool)
    for window in windows:
        kept[window.gap[0] + len(window.slots) : window.gap[1]] = False
    tokens, opened = canvas.tokens[kept], canvas.open[kept]
    if tokens[-1] != config.eos_id or opened[-1]:
        tokens, opened = np.append(tokens, config.eos_id), np.append(opened, False)
    runs, num_left_out = list[Span](), 0
    for window in windows:
        start, length = window.gap[0] - num_left_out, len(window.slots)
        runs.append((start, start + length))
        num_left_out += window.gap[1] - window.gap[0] - length
    gaps = tuple((start, end) for start, end in runs if start < end)
    return Sight(Canvas(tokens, opened, gaps, (gaps[0][0], gaps[-1][1])), tuple(runs))


def edited(
    config: ModelConfig, window: Window, run: Span, decision: Decision, evidence: np.ndarray | None, fills: bool
) -> Window:
    """The window, which is at `run` of what the model sees, after a decision: words are committed, deletions taken out,
    and expanded positions doubled.

    fills   a deletion also takes out the open positions to its right
    evidence   of each commit, (k, ...)

    Deletions go first. Where not all fit between the least and the greatest length, the leftmost do, and the other
    positions stay open.
    """
    slots, drawn = list(window.slots), dict[int, int]()
    for index in np.flatnonzero((decision.positions >= run[0]) & (decision.positions < run[1])).tolist():
        place, token = int(decision.positions[index]) - run[0], int(decision.tokens[index])
        drawn[place] = token
        if token not in (config.null_id, config.expand_id):
            said = None if evidence is None else evidence[index]
            numbers = float(decision.probabilities[index]), float(decision.confidence[index])
            slots[place] = WindowSlot(token, *numbers, said)
    out = [place for place, token in drawn.items() if token == config.null_id]
    if fills and out:
        open_after = [place for place in range(out[0] + 1, len(slots)) if slots[place] is OPEN]
        out += [place for place in reversed(open_after) if place not in out]
    out = out[: len(slots) - window.fewest]
    grown = [place for place, token in drawn.items() if token == config.expand_id and place not in out]
    grown = grown[: min(window.budget, window.most - (len(slots) - len(out)))]
    parts = [() if place in out else (OPEN, OPEN) if place in grown else (slot,) for place, slot in enumerate(slots)]
    return replace(window, slots=sum(parts, ()), budget=window.budget - len(grown))


def difference(before: Sequence[Window], after: Sequence[Window], filler: int) -> tuple[Decision, np.ndarray | None]:
    """The decision that turns the gaps of some windows into those of others, with `filler` to the right of each; and
    the evidence of its commits, (k, ...), NaN where there is none.
    """
    nothing = WindowSlot(filler)
    reopen, replaced, places, slots = list[int](), list[int](), list[int](), list[WindowSlot]()
    for old, new in zip(before, after, strict=True):
        pairs = zip_longest(old.slots, new.slots, fillvalue=nothing)
        for position, (was, now) in enumerate(pairs, new.gap[0]):
            if was is now:
                continue
            if was is not OPEN:
                (reopen if now is OPEN else replaced).append(position)
            if now is not OPEN:
                places.append(position)
                slots.append(now)
    tokens, probabilities = [slot.token for slot in slots], [slot.probability for slot in slots]
    confidence, said = [slot.confidence for slot in slots], [slot.evidence for slot in slots]
    decision = Decision(
        np.array(places, dtype=np.int64),
        np.array(tokens, dtype=np.int64),
        np.array(probabilities),
        np.array(confidence),
        reopen=np.array(reopen, dtype=np.int64),
        replace=np.array(replaced, dtype=np.int64),
    )
    return decision, _stacked(said)


def _stacked(said: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The evidence of several commits, NaN where there is none; None where there is none at all."""
    shapes = [one.shape for one in said if one is not None]
    if not shapes:
        return None
    return np.stack([np.full(shapes[0], np.nan, dtype=np.float32) if one is None else one for one in said])
