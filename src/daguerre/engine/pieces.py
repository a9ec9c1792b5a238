"""Forwards in pieces, so that a long prompt is computed beside other requests, a part at a time.

The clean rows of a forward come first and are stored in the cache. Those that see none of the rows after them can be
computed, or taken from elsewhere, before the others: the result is the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from daguerre.models.forward import Answer, Ask, Forward, Hidden, KeyCache, Layout, LogProbs

NONE = np.zeros(0, dtype=np.int32)


def cut_at(forward: Forward, most: int, wanted: bool = False) -> int:
    """How many of the first rows, at most `most`, can be computed before the others: clean rows of which none sees a
    later row, and none is wanted, or, with `wanted`, each has an answer of its own.
    """
    layout = forward.layout
    if forward.cache is None:
        return 0
    if layout.mask is not None and layout.mask.any():
        most = min(most, int(layout.mask.any(axis=1).argmax()))
    if not (wanted and asks_for_rows(forward)):
        most = min(most, int(forward.wanted.min(initial=layout.num_clean)))
    num = max(0, min(most, layout.num_clean))
    seen = np.maximum.accumulate(layout.end[:num]) - forward.cache.length
    (closed,) = np.nonzero(seen <= np.arange(1, num + 1))
    return int(closed[-1]) + 1 if len(closed) else 0


def asks_for_rows(forward: Forward) -> bool:
    """Whether what it asks for is an answer of each of its rows, in their order."""
    plain = isinstance(forward.ask, Hidden | LogProbs) and forward.edit is None and not forward.explain
    return plain and bool((np.diff(forward.wanted) > 0).all())


def first_rows(forward: Forward, num: int) -> Forward:
    """The first `num` rows, which are clean, as a forward of their own, with what is wanted of them."""
    layout, wanted = forward.layout, forward.wanted[forward.wanted < num]
    begin = None if layout.begin is None else layout.begin[:num]
    clean = Layout(layout.position[:num], layout.end[:num], num, begin)
    ask = _ask_of(forward.ask, slice(len(wanted))) if len(wanted) else Hidden()
    return Forward(forward.tokens[:num], clean, forward.cache, wanted, ask, forward.level, second=forward.second)


def other_rows(forward: Forward, num: int) -> Forward:
    """The rows after the first `num`, once those are in the cache."""
    layout = forward.layout
    begin, mask = (None if x is None else x[num:] for x in (layout.begin, layout.mask))
    rest = Layout(layout.position[num:], layout.end[num:], layout.num_clean - num, begin, mask)
    before = int((forward.wanted < num).sum())
    ask = _ask_of(forward.ask, slice(before, None)) if before else forward.ask
    return replace(
        forward, tokens=forward.tokens[num:], layout=rest, wanted=forward.wanted[before:] - np.int32(num), ask=ask
    )


def _ask_of(ask: Ask, wanted: slice) -> Ask:
    return LogProbs(ask.tokens[wanted]) if isinstance(ask, LogProbs) else Hidden()


def joined(answers: list[Answer]) -> Answer:
    """The answer of a forward that was computed in parts."""
    if len(answers) == 1:
        return answers[0]
    hidden = [one.hidden for one in answers if one.hidden is not None]
    scores = [one.log_probs for one in answers if one.log_probs is not None]
    return Answer(
        hidden=np.concatenate(hidden) if hidden else None, log_probs=np.concatenate(scores) if scores else None
    )


class CleanRows:
    """What the clean rows in a cache were computed from: token, position, and the run of keys that each sees. It says
    which rows of two requests are equal, and restores a cache that was given up.
    """

    def __init__(self) -> None:
        self.length = 0
        self.level: float | None = None
        self.second = False
        self._parts: list[Forward] = []
        self._ends: list[int] = []

    @property
    def rows(self) -> np.ndarray:
        """Int64 (n, 4): token, position, begin and end of each row."""
        if not self._parts:
            return np.zeros((0, 4), dtype=np.int64)
        return np.concatenate([rows_of(part, part.layout.num_clean) for part in self._parts])

    def truncate(self, length: int) -> None:
        """Discard all rows after the first `length`."""
        while self.length > length:
            last, _ = self._parts.pop(), self._ends.pop()
            num = last.layout.num_clean
            self.length -= num
            if self.length < length:
                self.add(first_rows(last, length - self.length))

    def add(self, forward: Forward) -> None:
        """Add the clean rows of a forward that was computed."""
        if forward.layout.num_clean:
            self._parts.append(forward)
            self._ends.append(int(forward.layout.end[: forward.layout.num_clean].max()))
            self.length += forward.layout.num_clean
        self.level, self.second = forward.level, forward.second

    @property
    def closed(self) -> bool:
        """Whether no row saw a row that is not here, so that all can be computed again."""
        return max(self._ends, default=0) <= self.length

    def forward(self, cache: KeyCache) -> Forward:
        """The forward that computes all of them again, into an empty cache."""
        tokens, position, begin, end = self.rows.T.copy()
        layout = Layout(position, end.astype(np.int32), self.length, begin.astype(np.int32))
        return Forward(tokens, layout, cache, NONE, Hidden(), self.level, second=self.second)


def rows_of(forward: Forward, num: int) -> np.ndarray:
    """The first `num` rows, which are clean, as `CleanRows` keeps them, int64 (num, 4)."""
    layout = forward.layout
    begin = np.zeros(num, dtype=np.int64) if layout.begin is None else layout.begin[:num]
    return np.stack([forward.tokens[:num], layout.position[:num], begin, layout.end[:num]], axis=1)
