"""Which rows a canvas needs, and which keys each of them sees.

Only this module knows that the row at position j predicts j+1 in a shifted model, unless it is noisy and masks are in
place, that a span's first row is its anchor, and which rows are clean.

Letters: A wanted positions, S clean rows, R rows of a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import InputError
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Layout

NONE = np.zeros(0, dtype=np.int64)
_INDICES = {kind: np.arange(1 << 14, dtype=kind) for kind in (np.int64, np.int32)}


def index_range(start: int, stop: int, kind: type[np.int64] | type[np.int32] = np.int64) -> np.ndarray:
    """start, ..., stop - 1; a shared array that must not be written to."""
    shared = _INDICES[kind]
    return shared[start:stop] if stop <= len(shared) else np.arange(start, stop, dtype=kind)


@dataclass(frozen=True, eq=False, slots=True)
class RowPlan:
    """The rows that a canvas needs.

    num_clean  S, the number of clean rows
    noisy      int64 (R - S,) positions
    offset     position i is predicted by the row at position i - offset
    clean      int64 (S,) positions, ascending; None: 0, ..., S - 1
    segment    int64 (S,): the segment (run of fixed text) of each clean row, which sees no other; None: each sees all
               clean rows before it
    num_read   how many of the last clean rows are wanted, too: they give the autoregressive distribution
    num_hidden how many of the last clean rows are covered by `mask`
    mask       bool (R - S, num_hidden + R - S): which of the last keys each noisy row sees; None: all keys
    num_seen   how many clean rows the noisy ones see; None: all but those that are covered by `mask`
    ready      the layout where all clean rows but those that are read are cached; None: it is made when it is needed
    """

    num_clean: int
    noisy: np.ndarray
    offset: int
    clean: np.ndarray | None = None
    segment: np.ndarray | None = None
    num_read: int = 0
    num_hidden: int = 0
    mask: np.ndarray | None = None
    ready: Layout | None = None
    num_seen: int | None = None

    def tokens(self, canvas: Canvas) -> np.ndarray:
        """Tokens of the clean rows, int64 (S,)."""
        return canvas.tokens[: self.num_clean] if self.clean is None else canvas.tokens[self.clean]

    def noisy_tokens(self, config: ModelConfig, canvas: Canvas) -> np.ndarray:
        """Tokens of the noisy rows, int64 (R - S,): masks where the canvas is open, and after its end."""
        out = np.full(len(self.noisy), config.placeholder)
        inside = self.noisy[self.noisy < len(canvas)]
        out[: len(inside)] = np.where(canvas.open[inside], config.placeholder, canvas.tokens[inside])
        return out

    def layout(self, config: ModelConfig, past: int) -> Layout:
        """The layout of all rows but the first `past` clean ones, which are cached."""
        num_clean, num_noisy, num_new = self.num_clean, len(self.noisy), self.num_clean - past
        if self.ready is not None and num_new == self.num_read:
            return self.ready
        position = index_range(past, num_clean) if self.clean is None else self.clean[past:]
        if config.context == "block":
            assert config.block_size is not None
            end = np.minimum((position // config.block_size + 1) * config.block_size, num_clean).astype(np.int32)
        else:
            end = index_range(past + 1, num_clean + 1, np.int32)
        begin, mask = None, None
        if self.segment is not None:
            begin = np.zeros(num_new + num_noisy, dtype=np.int32)
            begin[:num_new] = np.searchsorted(self.segment, self.segment[past:])
        if num_noisy:
            last = num_clean + num_noisy if self.mask is None else num_clean - self.num_hidden
            last = last if self.num_seen is None else self.num_seen
            noisy_end = np.full(num_noisy, last, dtype=np.int32)
            position, end = _joined(position, self.noisy), _joined(end, noisy_end)
            if self.mask is not None:
                mask = _joined(_unseen(num_new, self.mask.shape[1]), self.mask)
        return Layout(position, end, num_new, begin, mask)

    def rows_of(self, positions: np.ndarray, past: int) -> np.ndarray:
        """Indices of the rows that predict `positions`, int32 (A,), not counting the first `past` clean rows."""
        first = self.num_clean - self.num_read
        if not len(self.noisy):
            return index_range(first - past, self.num_clean - past, np.int32)
        index = np.searchsorted(self.noisy, positions - self.offset)
        assert np.array_equal(self.noisy[index], positions - self.offset), "a wanted position outside the active span"
        return (index + (self.num_clean - past)).astype(np.int32)


def _joined(first: np.ndarray, more: np.ndarray) -> np.ndarray:
    return np.concatenate([first, more]) if len(first) else more


@lru_cache(maxsize=64)
def _unseen(num_rows: int, num_keys: int) -> np.ndarray:
    return np.zeros((num_rows, num_keys), dtype=bool)


@dataclass(frozen=True)
class Tree:
    """A tree of continuations of a text: `tokens`, int64 (T,), and `parents`, int64 (T,): the index of the token before
    each, always an earlier one, or -1 for the text itself.
    """

    tokens: np.ndarray
    parents: np.ndarray

    @classmethod
    def of(cls, paths: Sequence[Sequence[int]]) -> tuple[Tree, list[list[int]]]:
        """The tree of these paths, in which shared prefixes occur once; and for each path the indices of its tokens in
        the tree.
        """
        tokens, parents, nodes_of_paths = list[int](), list[int](), list[list[int]]()
        known: dict[tuple[int, int], int] = {}
        for path in paths:
            nodes, last = list[int](), -1
            for token in path:
                new = last, token
                if new not in known:
                    known[new] = len(tokens)
                    tokens.append(token)
                    parents.append(last)
                last = known[new]
                nodes.append(last)
            nodes_of_paths.append(nodes)
        return cls(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64)), nodes_of_paths

    @property
    def depth(self) -> np.ndarray:
        """The number of ancestors of each token, int64 (T,)."""
        return self.ancestors.sum(axis=1) - 1

    @cached_property
    def ancestors(self) -> np.ndarray:
        """Bool (T, T): the ancestors of each token, itself included."""
        seen = np.eye(len(self.tokens), dtype=bool)
        for row, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                seen[row] |= seen[parent]
        return seen


def plan_tree(num_given: int, tree: Tree, num_clean: int | None = None) -> RowPlan:
    """Rows of a tree after the first `num_given` of `num_clean` clean rows; None: after all. None of them is cached;
    each sees these clean rows and its ancestors.
    """
    num = num_given if num_clean is None else num_clean
    return RowPlan(num, num_given + tree.depth, 1, mask=tree.ancestors, num_seen=num_given)


@lru_cache(maxsize=4096)
def plan_text(num: int) -> RowPlan:
    """Rows of a text to be continued: all are clean, and the last is wanted."""
    return RowPlan(num, NONE, 1, num_read=1)


def first_run(positions: np.ndarray) -> np.ndarray:
    """The run of adjacent positions that begins at the first of these ascending positions, int64 (A,)."""
    run: np.ndarray = positions[positions - positions[0] == np.arange(len(positions))]
    return run


def plan_rows(config: ModelConfig, canvas: Canvas) -> RowPlan:
    """Rows for the active span of `canvas`: DESIGN, section 2, and the layouts of `train/examples.py`."""
    assert canvas.span is not None
    start, end = canvas.span
    offset = int(config.shift)
    if canvas.gaps and canvas.gaps[0][0] < offset:
        raise InputError("the first position of this model's canvas cannot be open: nothing before it predicts it")
    if config.context == "full":
        return RowPlan(0, index_range(0, len(canvas)), offset)
    if config.context == "block":
        return _in_block(config, start, end)
    if config.context == "reordered":
        return _reordered(canvas, start, end)
    if not canvas.continues:
        return _between_segments(canvas, config.noisy_offset)
    if 1 in canvas.open[:start].tobytes():  # faster than any()
        raise InputError(f"a position before the span {canvas.span} is open: spans are decoded from left to right")
    if offset and end - start == 1:
        return plan_text(start)
    return plan_noisy(config, start, end)


def plan_noisy(config: ModelConfig, start: int, end: int) -> RowPlan:
    """Noisy rows for the span [start, end) at the end of a text of a causal model, which all see each other, and the
    clean rows before them. With a shift the first is the anchor. Where masks are in place none of them predicts for the
    anchor's sake: it is there to be seen, as Nemotron-Labs-Diffusion's blocks begin with a token that is written.
    """
    first = start - int(config.shift)
    return RowPlan(first, index_range(first, end - config.noisy_offset), config.noisy_offset)


def _in_block(config: ModelConfig, start: int, end: int) -> RowPlan:
    """A block of the grid: all of it, even where the span is a part of it or the canvas ends before it, because the
    model has seen no others. With a shift the anchor row is in the previous block, and its clean key is hidden; with a
    clean anchor a block's first position is predicted by the last clean row, and is a span of its own.
    """
    size, offset = config.block_size, int(config.shift)
    assert size is not None
    first = start // size * size
    if end > first + size:
        raise InputError(f"the span {(start, end)} crosses a block of {size}: ask for one block at a time")
    last = min(first + size, config.max_positions)
    if config.anchor == "clean":
        if start == first and end > first + 1:
            raise InputError(f"the span {(start, end)} begins a block: its first position is a span of its own")
        return plan_text(first) if start == first else RowPlan(first, index_range(first, last), offset)
    noisy = index_range(max(0, first - offset), last - offset)
    if not (offset and first):
        return RowPlan(first, noisy, offset)
    mask = np.ones((len(noisy), 1 + len(noisy)), dtype=bool)
    mask[:, 0] = False
    return RowPlan(first, noisy, offset, num_hidden=1, mask=mask)


def _reordered(canvas: Canvas, start: int, end: int) -> RowPlan:
    """Known tokens first, wherever they are, then the open positions of the span: each row sees those up to it, so a
    mask sees every known token and the masks before it (WeDLM, arXiv 2512.22737). Open positions outside of the span
    have no rows.
    """
    clean, noisy = np.flatnonzero(~canvas.open), start + np.flatnonzero(canvas.open[start:end])
    return RowPlan(len(clean), noisy, 0, clean, mask=_up_to_each(len(noisy)))


@lru_cache(maxsize=256)
def _up_to_each(num: int) -> np.ndarray:
    return np.tri(num, dtype=bool)


def _between_segments(canvas: Canvas, offset: int) -> RowPlan:
    """Infilling: all gaps are one active span; a clean row sees only its own segment; anchor rows are not clean."""
    in_gap = canvas.in_gap
    segment = np.zeros(len(canvas), dtype=np.int64)
    for _, end in canvas.gaps:
        segment[end:] += 1
    active = in_gap.copy()
    if offset:
        active[:-1] = in_gap[1:]
        active[-1] = False
    clean = np.flatnonzero(~(in_gap | active))
    return RowPlan(len(clean), np.flatnonzero(active), offset, clean, segment[clean])


def plan_verification(
    canvas: Canvas,
    num_draft: int,
    ahead: int,
    ends: tuple[int, ...] | None = None,
    masked: bool = True,
    in_order: bool = False,
) -> tuple[RowPlan, np.ndarray]:
    """Rows that verify a draft at the start of the active span: the anchor and the draft as clean rows, and for those
    of them whose numbers are in `ends` (None: for all) `ahead` masked rows, which see the clean rows up to it. If the
    draft is rejected at some position, the clean rows after it are wrong, and the next call discards them from the
    cache. Also returns where the masked rows of each clean row begin, and the end, int32 (num_draft + 2,).

    masked: False for a model without rows that draft, whose draft head has steps where others have masked rows, behind
            every row
    in_order  a masked row sees those before it alone, and not those behind it, too
    """
    assert canvas.span is not None
    start, end = canvas.span
    assert num_draft < end - start, "a draft ends before the last position of its span"
    steps = min(ahead, end - start - num_draft - 1)
    ahead = ahead if masked else 0
    position, sees, mask, groups = _masked_rows(
        num_draft, ahead, min(end - start, num_draft + ahead + 2), ends, in_order
    )
    read, position = num_draft + 1, start + position
    ready = Layout(position, np.int32(start) + sees, read, None, mask if len(mask) > read else None)
    groups = groups if masked else np.arange(num_draft + 2, dtype=np.int32) * np.int32(steps)
    return RowPlan(start + num_draft, position[read:], 1, None, None, read, read, mask[read:], ready), groups


def plan_draft(start: int, num: int) -> RowPlan:
    """Rows that draft `num` positions from `start` on: the last clean row, whose distribution is the autoregressive
    one, and masked rows, which see the clean rows and each other.
    """
    return RowPlan(start, index_range(start, start + num - 1), 1, num_read=1)


@lru_cache(maxsize=1024)
def _masked_rows(
    num_draft: int, ahead: int, room: int, ends: tuple[int, ...] | None, in_order: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of the clean rows that are read in a verification and the masked rows: positions, relative to the start of a
    span of `room` positions; ends of the keys that they see outside the mask, relative to the same; and the mask over
    themselves. And where the masked rows of each clean row begin.
    """
    followed = [ahead if ends is None or place in ends else 0 for place in range(num_draft + 1)]
    each = [np.arange(place, max(place, min(place + num, room - 2))) for place, num in enumerate(followed)]
    sizes = [len(rows) for rows in each]
    groups = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    place = np.repeat(np.arange(num_draft + 1), sizes)
    num_read = num_draft + 1
    within = place[:, None] == place
    if in_order:
        within &= _up_to_each(len(place))
    mask = np.concatenate([np.arange(num_read) <= place[:, None], within], axis=1)
    position = np.concatenate([np.arange(-1, num_draft), *each])
    sees = np.concatenate([np.arange(num_read), np.full(len(place), -1)]).astype(np.int32)
    return position, sees, np.concatenate([_unseen(num_read, mask.shape[1]), mask]), groups
