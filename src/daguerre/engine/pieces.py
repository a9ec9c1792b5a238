"""Forwards in pieces, so that a long prompt is computed beside other requests, a part at a time.

The clean rows of a forward come first and are stored in the cache. Those that see none of the rows after them can be
computed, or taken from elsewhere, before the others: the result is the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from daguerre.models.forward import Forward, Hidden, KeyCache, Layout

NONE = np.zeros(0, dtype=np.int32)


def cut_at(forward: Forward, most: int) -> int:
    """How many of the first rows, at most `most`, can be computed before the others: clean rows of which none is wanted
    and none sees a later row.
    """
    layout = forward.layout
    if forward.cache is None:
        return 0
    if layout.mask is not None and layout.mask.any():
        most = min(most, int(layout.mask.any(axis=1).argmax()))
    num = max(0, min(most, layout.num_clean, int(forward.wanted.min(initial=layout.num_clean))))
    seen = np.maximum.accumulate(layout.end[:num]) - forward.cache.length
    (closed,) = np.nonzero(seen <= np.arange(1, num + 1))
    return int(closed[-1]) + 1 if len(closed) else 0


def first_rows(forward: Forward, num: int) -> Forward:
    """The first `num` rows, which are clean, as a forward of their own; nothing is wanted of it."""
    layout = forward.layout
    begin = None if layout.begin is None else layout.begin[:num]
    clean = Layout(layout.position[:num], layout.end[:num], num, begin)
    return Forward(forward.tokens[:num], clean, forward.cache, NONE, Hidden(), forward.level)


def other_rows(forward: Forward, num: int) -> Forward:
    """The rows after the first `num`, once those are in the cache."""
    layout = forward.layout
    begin, mask = (None if x is None else x[num:] for x in (layout.begin, layout.mask))
    rest = Layout(layout.position[num:], layout.end[num:], layout.num_clean - num, begin, mask)
    return replace(forward, tokens=forward.tokens[num:], layout=rest, wanted=forward.wanted - np.int32(num))


class CleanRows:
    """What the clean rows in a cache were computed from: token, position, and the run of keys that each sees. It says
    which rows of two requests are equal, and restores a cache that was given up.
    """

    def __init__(self) -> None:
        self.length = 0
        self.level: float | None = None
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
        self.level = forward.level

    @property
    def closed(self) -> bool:
        """Whether no row saw a row that is not here, so that all can be computed again."""
        return max(self._ends, default=0) <= self.length

    def forward(self, cache: KeyCache) -> Forward:
        """The forward that computes all of them again, into an empty cache."""
        tokens, position, begin, end = self.rows.T.copy()
        layout = Layout(position, end.astype(np.int32), self.length, begin.astype(np.int32))
        return Forward(tokens, layout, cache, NONE, Hidden(), self.level)


def rows_of(forward: Forward, num: int) -> np.ndarray:
    """The first `num` rows, which are clean, as `CleanRows` keeps them, int64 (num, 4)."""
    layout = forward.layout
    begin = np.zeros(num, dtype=np.int64) if layout.begin is None else layout.begin[:num]
    return np.stack([forward.tokens[:num], layout.position[:num], begin, layout.end[:num]], axis=1)
