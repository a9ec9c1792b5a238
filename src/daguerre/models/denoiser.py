"""A backbone as a denoiser: what runs it, and what may be kept between steps.

A denoiser is asked for positions and answers with their logits; which rows those take, `models.rows` knows.

The cache of a session holds exactly the settled rows that the canvas at hand needs, so nothing in it ever has to be
hidden: a span's seed is an open row, and its own key enters the cache only once it stops being the seed.

Letters: A asked positions, S settled rows, R rows of a forward, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from daguerre.canvas import Canvas
from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.models.backbone import Backbone
from daguerre.models.cache import Cache
from daguerre.models.captured import CapturedBackbone
from daguerre.models.compiled import CompiledBackbone
from daguerre.models.config import ModelConfig
from daguerre.models.draft_head import Chain
from daguerre.models.layout import NO_HORIZON, SETTLED, Layout, Rows
from daguerre.models.lean import LeanBackbone, cannot_pack
from daguerre.models.native import NativeBackbone, can_run
from daguerre.models.rows import RowPlan, Tree, first_run, plan_rows, plan_tree, plan_verification

CacheMode = Literal["auto", "none", "approximate_int8"]
CACHE_MODES: tuple[CacheMode, ...] = ("auto", "none", "approximate_int8")
Execution = Literal["native", "lean", "reference", "compiled", "approximate_int8"]
EXECUTIONS: tuple[Execution, ...] = ("native", "lean", "reference", "compiled", "approximate_int8")
Made = LeanBackbone | NativeBackbone | CompiledBackbone | CapturedBackbone
Executor = Backbone | Made


@dataclass
class Counts:
    """What a session has computed.

    forwards
    rows            active in them: open ones, seeds, and settled ones that answer (see `RowPlan`)
    prefill_rows    settled rows of the first forward that do not answer
    settle_rows     the same of later forwards, computed for the first time
    refreshed_rows  the same, computed again: none with a cache, where nothing goes stale
    reused_rows     settled rows read from the cache instead of computed, summed over forwards
    drafted         tokens put to the test by `verify`, and `accepted`: those of them that stood it
    hurried         forwards in which a deadline, not the policy, decided how much is committed
    accepted_prediction_tokens   tokens of the caller's draft that the text has where they were expected
    rejected_prediction_tokens   the others of it
    """

    forwards: int = 0
    rows: int = 0
    prefill_rows: int = 0
    settle_rows: int = 0
    refreshed_rows: int = 0
    reused_rows: int = 0
    drafted: int = 0
    accepted: int = 0
    hurried: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    def accept(self, num: int) -> None:
        """Tokens of the caller's draft, all of them rejected until they stand."""
        self.accepted_prediction_tokens += num
        self.rejected_prediction_tokens -= num

    def __add__(self, other: Counts) -> Counts:
        """What both have computed."""
        return Counts(**{name: value + getattr(other, name) for name, value in vars(self).items()})


Behind = Callable[[int], np.ndarray | None]
"""behind(token): float32 logits (V,) of the next position, `token` standing before it; None: there is none."""


@dataclass(frozen=True, eq=False)
class Verification:
    """What one forward says about a draft of D tokens that begins at a span's first position s, and about what follows.

    logits  float32 (D + 1, V): the autoregressive law at s + j, had the draft's first j tokens been drawn
    behind  behind(j): the laws of the positions s + j + 1, ..., as open ones that see the same j tokens, one after the
            other (`models.draft_head.Chain`): what stands at s + j tells only a draft head
    """

    logits: np.ndarray
    behind: Callable[[int], Behind]


class Session(Protocol):
    """One request's denoiser: keeps what it may between calls, and changes no answer by it."""

    counts: Counts

    def logits(self, canvas: Canvas, asked: np.ndarray) -> np.ndarray:
        """Float32 logits (A, V) of the asked positions, int64 (A,) ascending; reserved tokens are minus infinity.

        The array is the caller's own to change.
        """

    def in_turn(self, canvas: Canvas) -> Behind:
        """The laws of the first open positions of the active span, as far as they are side by side, one after the
        other: the first as `logits` has it, the others too, but where a draft head is told what stands before them.
        """

    def noisy_logits(self, tokens_BL: Tensor, t: float, asked: np.ndarray) -> np.ndarray:
        """Float32 logits (B, A, V) of the clean tokens of texts (B, L) at time t, at positions asked, int64 (A,).

        For an unshifted model of full context with `time_input`; one of the absorbing process takes t on the linear
        schedule.
        """

    def verify(self, canvas: Canvas, draft: np.ndarray, ahead: int) -> Verification:
        """Test `draft`, int64 (D,), at the start of the active span, of which nothing is committed, in one forward.

        ahead: open positions behind each place where the draft may fail; fewer at the end of the span, and none at its
        last position, where only the law speaks. Only for causal context with a shift, and one gap at the end.
        """

    def branches(self, given: np.ndarray, tree: Tree, asked: np.ndarray) -> np.ndarray:
        """The autoregressive law, float32 logits (A, V), behind the `asked` tokens of a tree, int64 (A,), that goes on
        from tokens given, (S,); -1 asks behind those. Only for causal context with a shift.
        """


class Denoiser(Protocol):
    """Canvas and context to logits for the asked positions; never samples."""

    config: ModelConfig

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> Session:
        """A fresh session for canvases as long as `canvas`."""


class BackboneDenoiser:
    """A `Denoiser` over one backbone, which it only reads: safe to use from several threads.

    execution: "native" (`models.native`) runs a forward as one call of C++, compiled once in seconds, on a CPU;
    "approximate_int8" the same with matrices of 8-bit numbers; "lean" (`models.lean`) runs packed copies of the weights
    on a CPU and compiles nothing; "reference" runs the backbone itself; "compiled" runs steps of decoding on a CPU as
    code compiled for these weights (`models.compiled`), which takes seconds to minutes once, and on a CUDA device as
    captured graphs (`models.captured`). None is the first of native, lean and the reference that can be had here.
    Sessions see the weights as they are when the session begins.
    """

    def __init__(self, backbone: Backbone, execution: Execution | None = None) -> None:
        if backbone.config.context == "block" and backbone.config.shift:
            raise UnsupportedError("a model with block context and a shift cannot be decoded: only unshifted ones can")
        if execution not in (None, *EXECUTIONS):
            raise unknown("execution", execution, EXECUTIONS)
        self.backbone, self.execution = backbone, execution
        self.config = backbone.config
        self._made: tuple[Stamp, Made] | None = None
        self._making = Lock()

    def __reduce__(self) -> tuple[type[BackboneDenoiser], tuple[Backbone, Execution | None]]:
        """A copy, in another process for example, packs weights of its own."""
        return BackboneDenoiser, (self.backbone, self.execution)

    @property
    def executor(self) -> Executor:
        """What runs the forwards. Weights are packed or compiled at the first call, and again if they have changed."""
        execution = self.execution or _best(self.backbone)
        if execution == "reference":
            return self.backbone
        makers: dict[Execution, Callable[[Backbone], Made]] = {
            "lean": LeanBackbone,
            "native": NativeBackbone,
            "approximate_int8": partial(NativeBackbone, int8=True),
            "compiled": CapturedBackbone if self.backbone.embedding.weight.is_cuda else CompiledBackbone,
        }
        make = makers[execution]
        with self._making:
            stamp = _stamp(self.backbone)
            if self._made is None or self._made[0] != stamp:
                self._made = stamp, make(self.backbone)
            return self._made[1]

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> BackboneSession:
        """A fresh session. cache: "auto" keeps settled rows, exactly; "none" computes all of them in every forward;
        "approximate_int8" keeps them as 8-bit numbers.
        """
        if cache not in CACHE_MODES:
            raise unknown("cache", cache, CACHE_MODES)
        if len(canvas) > self.config.max_positions:
            raise InputError(
                f"the canvas has {len(canvas)} positions and the model {self.config.max_positions}: shorten the text"
            )
        check_cache(self.config, cache)
        kept: CacheMode = "none" if self.config.context == "full" else cache  # where nothing settles
        return BackboneSession(self.executor, len(canvas), kept)


def _best(backbone: Backbone) -> Execution:
    """The fastest exact execution that needs nothing but what is here."""
    if can_run(backbone):
        return "native"
    return "reference" if cannot_pack(backbone) else "lean"


def check_cache(config: ModelConfig, cache: CacheMode) -> None:
    """UnsupportedError for an approximation of what is not there."""
    if cache == "approximate_int8" and config.context == "full":
        raise UnsupportedError(
            'cache="approximate_int8" has no part in full context, where no row settles: leave it out'
        )


Stamp = tuple[tuple[int, int, torch.dtype], ...]


def _stamp(backbone: Backbone) -> Stamp:
    """Which weights these are, and how often they were written: equal stamps, equal weights."""
    return tuple((w.data_ptr(), 0 if w.is_inference() else w._version, w.dtype) for w in backbone.parameters())


class BackboneSession:
    """State of one request: its cache, and which settled rows are in it.

    A call compares the rows in the cache with those that its canvas needs and forgets from the first that differs, so
    an answer is a function of the canvas alone.
    """

    def __init__(self, executor: Executor, capacity: int, cache: CacheMode = "auto") -> None:
        self.executor = executor
        self.counts = Counts()
        weight = executor.embedding.weight
        self.device = weight.device
        self._cache: Cache | None = None
        if cache == "auto" and isinstance(executor, CapturedBackbone | NativeBackbone):
            self._cache = executor.cache(capacity)
        elif cache != "none":
            int8 = cache == "approximate_int8"
            self._cache = Cache(executor.config, capacity, dtype=weight.dtype, device=self.device, int8=int8)
        self._held = np.zeros((3, 0), dtype=np.int64)  # position, segment and token of each cached row

    @torch.inference_mode()
    def logits(self, canvas: Canvas, asked: np.ndarray) -> np.ndarray:
        """Float32 logits (A, V) of the asked positions; see `Session`.

        UnsupportedError for a model of another process than the absorbing one: it does not fill open positions.
        """
        return self._project(self._hidden(canvas, asked))

    def _hidden(self, canvas: Canvas, asked: np.ndarray) -> Tensor:
        """Hidden states (A, D) of the rows that predict the asked positions."""
        config = self.executor.config
        if config.process != "absorbing":
            raise UnsupportedError(f"a model of the {config.process} process does not fill open positions")
        plan = plan_rows(config, canvas)
        tokens = np.where(canvas.open, config.mask_id, canvas.tokens)
        wanted = self._row_of(asked - plan.offset, plan)
        return self._forward(plan, tokens[plan.settled], tokens[plan.opened], wanted, self._level(canvas))

    @torch.inference_mode()
    def in_turn(self, canvas: Canvas) -> Behind:
        """The laws of the first open positions, one after the other; see `Session`."""
        return Chain(self.executor, self._hidden(canvas, first_run(canvas.asked())))

    @torch.inference_mode()
    def noisy_logits(self, tokens_BL: Tensor, t: float, asked: np.ndarray) -> np.ndarray:
        """What texts at time t were; see `Session`."""
        config = self.executor.config
        assert config.time_input and not config.shift and config.context == "full"
        tokens = tokens_BL.to(self.device)
        position = torch.arange(tokens.shape[1], device=self.device).expand(len(tokens), -1)
        layout = Layout(Rows.make(position, span=0), num_settled=0, context=config.context)
        told = {"time_BR": torch.full(tokens.shape, t, device=self.device)}
        hidden = self.executor(tokens, layout, None, asked_A=torch.from_numpy(asked).to(self.device), **told)
        self.counts.forwards += 1
        self.counts.rows += tokens.numel()
        return self._project(hidden)

    @torch.inference_mode()
    def verify(self, canvas: Canvas, draft: np.ndarray, ahead: int) -> Verification:
        """The laws of a draft and of what is behind it; see `Session`."""
        assert canvas.span is not None and canvas.continues
        start = canvas.span[0]
        plan = plan_verification(canvas, len(draft), ahead)
        if self._cache is not None:
            self._cache.reserve(len(plan.settled) + len(plan.opened))
        masks = np.full(len(plan.opened), self.executor.config.mask_id)
        every = np.arange(plan.answering + len(plan.opened))
        hidden = self._forward(plan, np.concatenate([canvas.tokens[:start], draft]), masks, every)
        return Verification(self._project(hidden[: plan.answering]), partial(self._behind, hidden, plan, start))

    @torch.inference_mode()
    def branches(self, given: np.ndarray, tree: Tree, asked: np.ndarray) -> np.ndarray:
        """The laws behind tokens of a tree; see `Session`."""
        out = np.empty((len(asked), self.executor.config.vocab_size), dtype=np.float32)
        behind, num = asked >= 0, len(given)
        if not behind.all() or (self._cache is not None and not self._holds(given)):
            law = RowPlan(np.arange(num), np.zeros(num, dtype=np.int64), np.zeros(0, dtype=np.int64), 1, answering=1)
            out[~behind] = self._project(self._forward(law, given, given[:0], np.zeros(1, dtype=np.int64)))
        if behind.any():
            if self._cache is not None:
                self._cache.reserve(num + len(tree.tokens))
            out[behind] = self._project(self._forward(plan_tree(num, tree), given, tree.tokens, asked[behind]))
        return out

    def _holds(self, given: np.ndarray) -> bool:
        """Whether the cache begins with these tokens, as one run from the first position on."""
        held = self._held[:, : len(given)]
        return np.array_equal(held, [np.arange(len(given)), np.zeros(len(given)), given])

    def _behind(self, hidden: Tensor, plan: RowPlan, start: int, row: int) -> Behind:
        assert plan.horizon is not None
        first, last = np.searchsorted(plan.horizon, (start + row, start + row + 1)) + plan.answering
        return Chain(self.executor, hidden[first:last], hidden[row : row + 1])

    def _forward(
        self, plan: RowPlan, settled: np.ndarray, opened: np.ndarray, wanted: np.ndarray, level: float | None = None
    ) -> Tensor:
        """Hidden states (A, D), from the tokens of settled and active rows.

        wanted  int64 (A,): which of the answering and then the active rows
        level   the noise level, for a model with `time_input`
        """
        past = self._reuse(plan, settled)
        tokens = torch.from_numpy(np.concatenate([settled[past:], opened]))[None].to(self.device)
        asked = torch.from_numpy(len(plan.settled) - past - plan.answering + wanted).to(self.device)
        told = {} if level is None else {"time_BR": torch.full(tokens.shape, level, device=self.device)}
        return self.executor(tokens, self._layout(plan, past), self._cache, asked_A=asked, **told)[0]

    def _project(self, hidden: Tensor) -> np.ndarray:
        """Float32 logits of hidden states."""
        return self.executor.logits(hidden).cpu().numpy()

    def _level(self, canvas: Canvas) -> float | None:
        """The share of the gaps that is open still."""
        return float(canvas.open.sum() / canvas.in_gap.sum()) if self.executor.config.time_input else None

    def _reuse(self, plan: RowPlan, tokens: np.ndarray) -> int:
        """Forget cached rows from the first that this plan does not need, and count; returns how many stay."""
        needed = np.array([plan.settled, plan.segment, tokens])
        common = min(needed.shape[1] - plan.answering, self._held.shape[1])
        differs = needed[:, :common] != self._held[:, :common]
        known = int(differs.any(axis=0).argmax()) if differs.any() else common
        self._held = needed
        self._count(plan, known)
        if self._cache is None:
            return 0
        self._cache.truncate(known)
        return known

    def _layout(self, plan: RowPlan, past: int) -> Layout:
        num_new = len(plan.settled) - past
        position = np.concatenate([plan.settled[past:], plan.opened])
        span, segment = np.zeros((2, len(position)), dtype=np.int64)
        span[:num_new], segment[:num_new] = SETTLED, plan.segment[past:]
        horizon = np.full(len(position), NO_HORIZON)
        if plan.horizon is not None:
            horizon[num_new:] = span[num_new:] = plan.horizon
        config, among, seen = self.executor.config, plan.among, None
        if among is not None and num_new > plan.answering:  # other rows of this forward are before them
            if not plan.answering:
                seen = torch.ones(1, len(position), len(position), dtype=torch.bool, device=self.device)
                seen[0, num_new:, num_new:] = among
            among = None
        return Layout(
            Rows.of_numpy(position, span, segment, horizon, self.device),
            num_new,
            config.context,
            config.block_size,
            plain=config.context == "causal" and not plan.segment.any(),
            open_sees_all=plan.horizon is None,
            alone=num_new if num_new == plan.answering else 0,
            seen=seen,
            among=None if among is None else among.to(self.device),
        )

    def _row_of(self, rows: np.ndarray, plan: RowPlan) -> np.ndarray:
        """Where among the answering and active rows those at these positions are."""
        places = np.concatenate([plan.settled[len(plan.settled) - plan.answering :], plan.opened])
        index = np.searchsorted(places, rows)
        assert np.array_equal(places[index], rows), "a position was asked that is outside the active span"
        return index

    def _count(self, plan: RowPlan, known: int) -> None:
        """Add a forward whose first `known` settled rows have been computed before."""
        counts, settled = self.counts, len(plan.settled) - known - plan.answering
        if counts.forwards:
            counts.settle_rows += settled
        else:
            counts.prefill_rows += settled
        counts.forwards += 1
        counts.rows += len(plan.opened) + plan.answering
        if self._cache is None:
            counts.refreshed_rows += known
        else:
            counts.reused_rows += known
