"""Small functions over arrays of integers."""

from __future__ import annotations

import numpy as np

DEAD = -1
"""The state after what leads nowhere."""
NONE = -1
"""The class of a token that is never allowed."""


def reach(src: np.ndarray, dst: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Which states (Q,) are reached from the boolean `seeds` (Q,) along edges src -> dst."""
    order = np.argsort(src, kind="stable")
    first = np.searchsorted(src[order], np.arange(len(seeds) + 1))
    targets = dst[order]
    seen = seeds.copy()
    frontier = np.flatnonzero(seeds)
    while len(frontier):
        reached = targets[ranges(first[frontier], first[frontier + 1])]
        frontier = np.unique(reached[~seen[reached]])
        seen[frontier] = True
    return seen


def ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers of [starts[i], ends[i]) for every i, one after another."""
    counts = ends - starts
    offsets = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(offsets - starts, counts)


def distinct_columns(*deltas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns that are equal in all tables get one number: (first column of each number, number of each column)."""
    keys = [b"".join(part.tobytes() for part in parts) for parts in zip(*(list(d.T) for d in deltas), strict=True)]
    numbers: dict[bytes, int] = {}
    number_of = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    return np.unique(number_of, return_index=True)[1], number_of
