"""A backbone as a denoiser: which rows a canvas needs, and what may be kept between steps.

A denoiser is asked for positions and answers with their logits; that the row at position j predicts j+1 in a shifted
model, that a span's first row is its seed, and which rows are settled is known here and nowhere else.

The cache of a session holds exactly the settled rows that the canvas at hand needs, so nothing in it ever has to be
hidden: a span's seed is an open row, and its own key enters the cache only once it stops being the seed.

Letters: A asked positions, S settled rows, R rows of a forward, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Literal, Protocol

import numpy as np
import torch

from daguerre.canvas import Canvas
from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.models.backbone import Backbone
from daguerre.models.cache import Cache
from daguerre.models.config import ModelConfig
from daguerre.models.layout import SETTLED, Layout, Rows
from daguerre.models.lean import LeanBackbone, cannot_pack

CacheMode = Literal["auto", "none"]
CACHE_MODES: tuple[CacheMode, ...] = ("auto", "none")
Execution = Literal["lean", "reference"]
EXECUTIONS: tuple[Execution, ...] = ("lean", "reference")


@dataclass
class Counts:
    """What a session has computed: forwards; rows that were active in them (open ones, seeds, or in a span of one the
    row that predicts it); settled rows of the first forward (prefill) and of later ones (settle).
    """

    forwards: int = 0
    rows: int = 0
    prefill_rows: int = 0
    settle_rows: int = 0


class Session(Protocol):
    """One request's denoiser: keeps what it may between calls, and changes no answer by it."""

    counts: Counts

    def logits(self, canvas: Canvas, asked: np.ndarray) -> np.ndarray:
        """Float32 logits (A, V) of the asked positions, int64 (A,) ascending; reserved tokens are minus infinity.

        The array is the caller's own to change.
        """


class Denoiser(Protocol):
    """Canvas and context to logits for the asked positions; never samples."""

    config: ModelConfig

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> Session:
        """A fresh session for canvases as long as `canvas`."""


@dataclass(frozen=True)
class RowPlan:
    """The rows that a canvas needs.

    settled   int64 (S,) positions, ascending; `segment` (S,) numbers the fixed run of each
    opened    int64 (R - S,) positions of the active rows, ascending
    offset    position i is predicted by the row at position i - offset
    """

    settled: np.ndarray
    segment: np.ndarray
    opened: np.ndarray
    offset: int


def plan_rows(config: ModelConfig, canvas: Canvas) -> RowPlan:
    """Rows for the active span of `canvas`: DESIGN, section 2, and the layouts of `train/objectives.py`."""
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
        return RowPlan(np.arange(start), np.zeros(start, dtype=np.int64), none, offset)
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


class BackboneDenoiser:
    """A `Denoiser` over one backbone, which it only reads: safe to use from several threads.

    execution: "lean" (`models.lean`) runs packed copies of the weights, on a CPU; "reference" runs the backbone itself.
    None is lean where the weights can be packed. Sessions see the weights as they are when the session begins.
    """

    def __init__(self, backbone: Backbone, execution: Execution | None = None) -> None:
        if backbone.config.context == "block" and backbone.config.shift:
            raise UnsupportedError("a model with block context and a shift cannot be decoded: only unshifted ones can")
        if execution not in (None, *EXECUTIONS):
            raise unknown("execution", execution, EXECUTIONS)
        self.backbone, self.execution = backbone, execution
        self.config = backbone.config
        self._lean: tuple[Stamp, LeanBackbone] | None = None
        self._packing = Lock()

    @property
    def executor(self) -> Backbone | LeanBackbone:
        """What runs the forwards. Weights are packed at the first call, and again once they have changed."""
        lean = self.execution or ("reference" if cannot_pack(self.backbone.embedding.weight) else "lean")
        if lean == "reference":
            return self.backbone
        with self._packing:
            stamp = _stamp(self.backbone)
            if self._lean is None or self._lean[0] != stamp:
                self._lean = stamp, LeanBackbone(self.backbone)
            return self._lean[1]

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> BackboneSession:
        """A fresh session. cache: "auto" keeps settled rows, exactly; "none" computes all of them in every forward."""
        if cache not in CACHE_MODES:
            raise unknown("cache", cache, CACHE_MODES)
        if len(canvas) > self.config.max_positions:
            raise InputError(
                f"the canvas has {len(canvas)} positions and the model {self.config.max_positions}: shorten the text"
            )
        return BackboneSession(self.executor, len(canvas), cache == "auto")


Stamp = tuple[tuple[int, int, torch.dtype], ...]


def _stamp(backbone: Backbone) -> Stamp:
    """Which weights these are, and how often they were written: equal stamps, equal weights."""
    return tuple((w.data_ptr(), 0 if w.is_inference() else w._version, w.dtype) for w in backbone.parameters())


class BackboneSession:
    """State of one request: its cache, and which settled rows are in it.

    A call compares the rows in the cache with those that its canvas needs and forgets from the first that differs, so
    an answer is a function of the canvas alone.
    """

    def __init__(self, executor: Backbone | LeanBackbone, capacity: int, cached: bool) -> None:
        self.executor = executor
        self.counts = Counts()
        weight = executor.embedding.weight
        self.device = weight.device
        keep = cached and executor.config.context != "full"
        self._cache = Cache(executor.config, capacity, dtype=weight.dtype, device=self.device) if keep else None
        self._held = np.zeros((3, 0), dtype=np.int64)  # position, segment and token of each cached row

    @torch.inference_mode()
    def logits(self, canvas: Canvas, asked: np.ndarray) -> np.ndarray:
        """Float32 logits (A, V) of the asked positions; see `Session`."""
        config = self.executor.config
        plan = plan_rows(config, canvas)
        tokens = np.where(canvas.open, config.mask_id, canvas.tokens)
        past = self._reuse(plan, tokens)
        positions = np.concatenate([plan.settled[past:], plan.opened])
        hidden = self.executor(
            torch.from_numpy(tokens[positions])[None].to(self.device),
            self._layout(plan, past),
            self._cache,
            asked_A=torch.from_numpy(self._row_of(asked - plan.offset, plan, past)).to(self.device),
        )
        self._count(plan, past)
        return self.executor.logits(hidden[0]).cpu().numpy()

    def _reuse(self, plan: RowPlan, tokens: np.ndarray) -> int:
        """Forget cached rows from the first that this plan does not need; returns how many stay."""
        if self._cache is None:
            return 0
        needed = np.stack([plan.settled, plan.segment, tokens[plan.settled]])
        common = min(needed.shape[1], self._held.shape[1])
        differs = np.flatnonzero((needed[:, :common] != self._held[:, :common]).any(axis=0))
        past = int(differs[0]) if differs.size else common
        if not plan.opened.size:
            past = min(past, needed.shape[1] - 1)  # the last settled row is the one that answers
        self._cache.truncate(past)
        self._held = needed
        return past

    def _layout(self, plan: RowPlan, past: int) -> Layout:
        num_new = len(plan.settled) - past
        position = np.concatenate([plan.settled[past:], plan.opened])
        span, segment = np.zeros((2, len(position)), dtype=np.int64)
        span[:num_new], segment[:num_new] = SETTLED, plan.segment[past:]
        config = self.executor.config
        plain = config.context == "causal" and not plan.segment.any()
        rows = Rows.of_numpy(position, span, segment).to(self.device)
        return Layout(rows, num_new, config.context, config.block_size, plain=plain, open_sees_all=True)

    def _row_of(self, rows: np.ndarray, plan: RowPlan, past: int) -> np.ndarray:
        """Where in the forward the rows at these positions are."""
        if not plan.opened.size:
            return np.searchsorted(plan.settled[past:], rows)
        index = np.searchsorted(plan.opened, rows)
        assert np.array_equal(plan.opened[index], rows), "a position was asked that is outside the active span"
        return index + len(plan.settled) - past

    def _count(self, plan: RowPlan, past: int) -> None:
        answering = 0 if plan.opened.size else 1
        settled = len(plan.settled) - past - answering
        if self.counts.forwards:
            self.counts.settle_rows += settled
        else:
            self.counts.prefill_rows += settled
        self.counts.forwards += 1
        self.counts.rows += len(plan.opened) + answering
