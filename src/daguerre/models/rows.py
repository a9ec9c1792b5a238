"""Which rows a canvas needs.

That the row at position j predicts j+1 in a shifted model, that a span's first row is its seed, and which rows are
settled is known here and nowhere else.

Letters: A asked positions, S settled rows, R rows of a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from daguerre.canvas import Canvas
from daguerre.errors import InputError
from daguerre.models.config import ModelConfig
from daguerre.models.layout import NO_HORIZON, SETTLED, Rows, allowed


@dataclass(frozen=True)
class RowPlan:
    """The rows that a canvas needs.

    settled    int64 (S,) positions, ascending; `segment` (S,) numbers the fixed run of each
    opened     int64 (R - S,) positions of the active rows, ascending among those that see one another
    offset     position i is predicted by the row at position i - offset
    answering  how many settled rows, the last ones, are asked too: the autoregressive law
    horizon    int64 (R - S,): an active row sees the settled rows at positions below its horizon, and the active rows
               that have the same one; None: it sees all of both
    among      bool: what the answering and the active rows see of one another, where every other row is seen by all of
               them; None: the labels tell. Of a tree it says less than they do
    """

    settled: np.ndarray
    segment: np.ndarray
    opened: np.ndarray
    offset: int
    answering: int = 0
    horizon: np.ndarray | None = None
    among: Tensor | None = None


@dataclass(frozen=True)
class Tree:
    """Ways in which a text may go on: `tokens`, int64 (T,), and the `parents` (T,) they stand behind, each an earlier
    one of them, or -1, the text itself.
    """

    tokens: np.ndarray
    parents: np.ndarray

    @classmethod
    def of(cls, paths: Sequence[Sequence[int]]) -> tuple[Tree, list[list[int]]]:
        """The tree of these paths, each beginning that some share in it once; and the way of each, numbers of its
        tokens in the tree.
        """
        tokens, parents, ways = list[int](), list[int](), list[list[int]]()
        known: dict[tuple[int, int], int] = {}
        for path in paths:
            way, last = list[int](), -1
            for token in path:
                new = last, token
                if new not in known:
                    known[new] = len(tokens)
                    tokens.append(token)
                    parents.append(last)
                last = known[new]
                way.append(last)
            ways.append(way)
        return cls(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64)), ways

    @property
    def depth(self) -> np.ndarray:
        """How many tokens stand before each on its way from the text, int64 (T,)."""
        return self.ancestors.sum(axis=1) - 1

    @cached_property
    def ancestors(self) -> np.ndarray:
        """Bool (T, T): the tokens on the way to each, itself included."""
        seen = np.eye(len(self.tokens), dtype=bool)
        for row, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                seen[row] |= seen[parent]
        return seen


def plan_tree(num_given: int, tree: Tree) -> RowPlan:
    """Rows of a tree behind settled ones: none is settled itself, and each sees its own way alone."""
    settled = np.arange(num_given)
    none, horizon = np.zeros(num_given, dtype=np.int64), np.full(len(tree.tokens), num_given)
    among = torch.from_numpy(tree.ancestors)
    return RowPlan(settled, none, num_given + tree.depth, 1, horizon=horizon, among=among)


def first_run(asked: np.ndarray) -> np.ndarray:
    """Of ascending positions, int64 (A,), those side by side with the first."""
    return asked[asked - asked[0] == np.arange(len(asked))]


def plan_rows(config: ModelConfig, canvas: Canvas) -> RowPlan:
    """Rows for the active span of `canvas`: DESIGN, section 2, and the layouts of `train/examples.py`."""
    assert canvas.span is not None
    start, end = canvas.span
    offset = int(config.shift)
    if min((gap[0] for gap in canvas.gaps), default=offset) < offset:
        raise InputError("a canvas begins with <bos>: its first position cannot be open")
    none = np.zeros(0, dtype=np.int64)
    if config.context == "full":
        return RowPlan(none, none, np.arange(len(canvas)), offset)
    if config.context == "block":
        assert config.block_size is not None
        first = start // config.block_size * config.block_size
        if end > first + config.block_size:
            raise InputError(
                f"the span {canvas.span} crosses a block of {config.block_size}: ask for one block at a time"
            )
        return RowPlan(np.arange(first), np.zeros(first, dtype=np.int64), np.arange(first, end), offset)
    if not canvas.continues:
        return _between_segments(canvas, offset)
    if canvas.open[:start].any():
        raise InputError(f"a position before the span {canvas.span} is open: spans are decoded from left to right")
    if offset and end - start == 1:  # the autoregressive law: one settled row
        return RowPlan(np.arange(start), np.zeros(start, dtype=np.int64), none, offset, answering=1)
    first = start - offset
    return RowPlan(np.arange(first), np.zeros(first, dtype=np.int64), np.arange(first, end - offset), offset)


def _between_segments(canvas: Canvas, offset: int) -> RowPlan:
    """Infilling: all gaps are one active span; each fixed run is blind to the others; a seed is not settled."""
    opened = canvas.in_gap
    numbers = np.zeros(len(canvas), dtype=np.int64)
    for _, end in canvas.gaps:
        numbers[end:] += 1
    active = opened.copy()
    if offset:
        active[:-1] = opened[1:]
        active[-1] = False
    settled = np.flatnonzero(~(opened | active))
    return RowPlan(settled, numbers[settled], np.flatnonzero(active), offset)


def plan_verification(canvas: Canvas, num_draft: int, ahead: int) -> RowPlan:
    """Rows that verify a draft at the start of the active span: the seed and the draft, settled; and behind each of
    them `ahead` open rows, which see settled rows up to it. Where the draft fails, the settled rows behind are wrong,
    and what they wrote into the cache is forgotten by the next call.
    """
    assert canvas.span is not None
    start, end = canvas.span
    assert num_draft < end - start, "a draft ends before the last position of its span"
    behind, horizon, among = _behind_each(num_draft, ahead, min(end - start, num_draft + ahead + 2))
    settled = np.arange(start + num_draft)
    none = np.zeros(len(settled), dtype=np.int64)
    return RowPlan(settled, none, start + behind, 1, num_draft + 1, start + horizon, among)


@lru_cache(maxsize=1024)
def _behind_each(num_draft: int, ahead: int, room: int) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Positions and horizons of the open rows of a verification, counted from the start of a span of `room` positions,
    and the mask among its last rows.
    """
    seeds = np.arange(num_draft + 1)
    each = [np.arange(seed, max(seed, min(seed + ahead, room - 2))) for seed in range(num_draft + 1)]
    behind, horizon = np.concatenate(each), np.repeat(seeds, [len(rows) for rows in each])
    position = np.concatenate([seeds - 1, behind])
    span = np.concatenate([np.full(len(seeds), SETTLED), horizon])
    until = np.concatenate([np.full(len(seeds), NO_HORIZON), horizon])
    rows = Rows.of_numpy(position, span, np.zeros_like(position), until)
    return behind, horizon, allowed(rows, rows, "causal")[0]
