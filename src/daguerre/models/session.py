"""The denoiser state of one request: which forwards it needs, and what is cached between its steps.

A session turns queries about a canvas into forwards; `models.rows` decides which rows they need. The cache holds
exactly the clean rows that the current canvas needs, so no mask ever hides a cached key: a span's anchor row is noisy,
and its key enters the cache only once it is no longer the anchor.

Letters: A wanted positions, D tokens of a draft, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import (
    Answer,
    Ask,
    Cycle,
    DraftStep,
    Forward,
    Hidden,
    KeyCache,
    Layout,
    Logits,
    Rules,
    SequentialDraws,
)
from daguerre.models.rows import (
    NONE,
    RowPlan,
    Tree,
    first_run,
    index_range,
    plan_draft,
    plan_noisy,
    plan_rows,
    plan_text,
    plan_tree,
    plan_verification,
)

T = TypeVar("T")
Asking = Generator[list[Forward | DraftStep], list[Answer], T]
"""A generator that yields batches of forwards, is sent their answers, and returns its result."""


@dataclass
class Counts:
    """How much a request has computed.

    forwards
    query_tokens       rows whose outputs are used: open positions, anchors, and clean rows with wanted outputs
    prefill_tokens     other rows of the first forward: the given text
    finalized_tokens   other rows of later forwards, computed for the first time: committed tokens
    recomputed_tokens  other rows, computed before; always 0 with an exact cache
    reused_tokens      rows read from the cache instead of computed, summed over forwards
    drafted            tokens of drafts that were verified, whatever drafted them
    accepted           how many of them were accepted
    lookup_drafted, lookup_accepted   those of them that were looked up in the text itself
    head_drafted, head_accepted       those that the model drafted; the others are of the caller's draft
    deadline_forced    forwards in which the deadline, not the policy, decided how much is committed
    accepted_prediction_tokens   tokens of the caller's draft that are in the text, in their expected place
    rejected_prediction_tokens   all other tokens of the caller's draft

    With an approximate cache (`models.stale`) the other rows are those that a forward stores, open positions included.
    """

    forwards: int = 0
    query_tokens: int = 0
    prefill_tokens: int = 0
    finalized_tokens: int = 0
    recomputed_tokens: int = 0
    reused_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    lookup_drafted: int = 0
    lookup_accepted: int = 0
    head_drafted: int = 0
    head_accepted: int = 0
    deadline_forced: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    def count_draft(self, source: str, drafted: int, accepted: int) -> None:
        """Count a draft that was verified; `source` as in `daguerre.decoding.drafters`."""
        self.drafted += drafted
        self.accepted += accepted
        if source == "lookup":
            self.lookup_drafted += drafted
            self.lookup_accepted += accepted
        elif source == "head":
            self.head_drafted += drafted
            self.head_accepted += accepted

    def accept(self, num: int) -> None:
        """Count `num` tokens of the caller's draft as accepted; until then they count as rejected."""
        self.accepted_prediction_tokens += num
        self.rejected_prediction_tokens -= num

    def add(self, other: Counts) -> None:
        """Add the counts of `other`."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def together(*askings: Asking[Any]) -> Asking[list[Any]]:
    """Run several at once, with their forwards in shared batches; returns their results in order."""
    out: list[Any] = [None] * len(askings)
    waiting: dict[int, list[Forward | DraftStep]] = {}

    def go_on(number: int, answers: list[Answer] | None) -> None:
        try:
            waiting[number] = next(askings[number]) if answers is None else askings[number].send(answers)
        except StopIteration as end:
            waiting.pop(number, None)
            out[number] = end.value

    for number in range(len(askings)):
        go_on(number, None)
    while waiting:
        pending = dict(waiting)
        answers = iter((yield [forward for batch in pending.values() for forward in batch]))
        for number, batch in pending.items():
            go_on(number, [next(answers) for _ in batch])
    return out


class NextLogits(Protocol):
    """The distributions of consecutive positions, one at a time, for a caller that chooses the tokens.

    evidence  (1, ...): the head's evidence for the last distribution; None for the vocabulary projection
    """

    @property
    def evidence(self) -> np.ndarray | None: ...

    def after(self, token: int) -> Asking[np.ndarray | None]:
        """Float32 logits (V,) of the next position, given `token` at the position before it; None if no position is
        left. Without a draft head they do not depend on the token.
        """


@dataclass(frozen=True, eq=False)
class Verification:
    """Distributions from one forward that verifies a draft of D tokens at the start s of a span.

    logits     float32 (D + 1, V): the autoregressive distribution at s + j given the first j tokens of the draft
    following  following(j): the distributions of the masked positions s + j + 1, ..., which see the same j tokens; only
               a draft head takes the token at s + j into account
    evidence   (D + 1, ...): the head's evidence for each row of `logits`; None for the vocabulary projection
    """

    logits: np.ndarray
    following: Callable[[int], NextLogits]
    evidence: np.ndarray | None = None


class Session(Protocol):
    """The denoiser state of one request. What it caches between calls never changes an answer, unless the cache is
    approximate.

    draws: whether the session can answer with draws; otherwise only with logits.
    """

    counts: Counts
    draws: bool

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        """An answer about positions of the active span, int64 (A,), ascending."""

    def sequential_logits(self, canvas: Canvas) -> Asking[NextLogits]:
        """The distributions of the first run of adjacent masked positions of the active span, one at a time. They are
        those of `ask`, except that with a draft head each but the first also depends on the token before it.
        """

    def ask_tokens(self, clean: np.ndarray, noisy: np.ndarray, ask: Ask, conditioning: Any = None) -> Asking[Answer]:
        """An answer about the positions of the `noisy` tokens, int64 (A,), which follow the `clean` ones, (S,). Only
        for an unshifted model with causal context that denoises tokens in place of masks. conditioning: that of the
        last answer about these positions.
        """

    def verify(
        self, canvas: Canvas, draft: np.ndarray, ahead: int, ends: tuple[int, ...] | None = None
    ) -> Asking[Verification]:
        """Verify `draft`, int64 (D,), at the start of the active span in one forward. Nothing of the span may be
        committed.

        ahead: how many masked positions follow a place at which the text may end; fewer near the end of the span, none
        after its last position. ends: those of the places 0 .. D, by how many tokens of the draft are accepted, that
        masked positions follow; None: all. Only for causal context with a shift, and a single gap at the end. Where
        masks are in place `ahead` is 0: `draft` drafts.
        """

    def cycle(
        self,
        canvas: Canvas,
        draft: np.ndarray,
        ahead: int,
        ends: tuple[int, ...] | None,
        rules: Rules,
        worth: float,
    ) -> Asking[Answer]:
        """One cycle of speculative decoding in one answer (`Cycle`): verify, draw by `rules`, and draft what follows
        the accepted tokens. Only where `draws` is true.
        """

    def draft(self, canvas: Canvas, num: int, ask: Ask) -> Asking[Answer]:
        """An answer about the first `num` positions of the active span, all of them open, as a draft: with the low-rank
        weights of drafts, which act on the anchor, too. Only where masks are in place.
        """

    def tree_logits(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[np.ndarray]:
        """The autoregressive distributions, float32 logits (A, V), after the `wanted` nodes, int64 (A,), of a tree of
        continuations of the `given` tokens, (S,); -1 means after the last given token. Only for causal context with a
        shift.
        """

    def ask_noisy(self, tokens: np.ndarray, level: float, positions: np.ndarray) -> Asking[Answer]:
        """Logits (A, V) of the clean tokens of a text, int64 (L,), at noise level t, which a model without `time_input`
        is not given. Only for full context; with the absorbing process t is that of the linear schedule.
        """


class BackboneSession:
    """The state of one request: its cache, and which clean rows are in it.

    Each call compares the cached rows with those that its canvas needs and discards them from the first difference on,
    so an answer is a function of the canvas alone.
    """

    draws = True

    def __init__(self, config: ModelConfig, cache: KeyCache | None) -> None:
        self.config, self.counts = config, Counts()
        self._cache, self._first = cache, True
        self._held_tokens, self._held_rows = NONE, RowPlan(0, NONE, 0)

    def restart(self) -> None:
        """Reset the counts, for another request whose canvas has the same length; the cache is kept."""
        self.counts, self._first = Counts(), True

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        """An answer about positions of the active span; see `Session`.

        UnsupportedError unless the model's process is absorbing: other processes do not fill open positions.
        """
        config = self.config
        if config.process != "absorbing":
            raise UnsupportedError(f"a model of the {config.process} process does not fill open positions")
        if isinstance(ask, SequentialDraws) and self._drafts(canvas, positions):
            (answer,) = yield [self._drafting(canvas, positions, ask)]
            return answer
        plan = plan_rows(config, canvas)
        noisy = plan.noisy_tokens(config, canvas)
        level = noise_level(config, canvas)
        (answer,) = yield [self._forward(plan, plan.tokens(canvas), noisy, positions, ask, level)]
        return answer

    def sequential_logits(self, canvas: Canvas) -> Asking[NextLogits]:
        """The distributions of the first masked positions, one at a time; see `Session`."""
        positions = first_run(canvas.active_positions())
        if self._drafts(canvas, positions):
            (answer,) = yield [self._drafting(canvas, positions, Hidden())]
        else:
            answer = yield from self.ask(canvas, positions, Hidden())
        assert answer.hidden is not None
        return DraftRows(answer.hidden, None)

    def ask_noisy(self, tokens: np.ndarray, level: float, positions: np.ndarray) -> Asking[Answer]:
        """Logits of the clean tokens of a text at noise level t; see `Session`."""
        assert self.config.context == "full"
        rows, time = positions - int(self.config.shift), level if self.config.time_input else None
        layout = Layout(np.arange(len(tokens)), np.full(len(tokens), len(tokens), dtype=np.int32), 0)
        self.counts.forwards += 1
        self.counts.query_tokens += len(tokens)
        (answer,) = yield [Forward(tokens, layout, None, rows.astype(np.int32), Logits(), time)]
        return answer

    def ask_tokens(self, clean: np.ndarray, noisy: np.ndarray, ask: Ask, conditioning: Any = None) -> Asking[Answer]:
        """An answer about noisy tokens after clean ones; see `Session`."""
        assert self.config.context == "causal" and not self.config.shift
        plan = RowPlan(len(clean), index_range(len(clean), len(clean) + len(noisy)), 0)
        forward = self._forward(plan, clean, noisy, plan.noisy, ask)
        forward.conditioning = conditioning
        (answer,) = yield [forward]
        return answer

    def verify(
        self, canvas: Canvas, draft: np.ndarray, ahead: int, ends: tuple[int, ...] | None = None
    ) -> Asking[Verification]:
        """The distributions of a draft and of the positions after it; see `Session`."""
        plan, groups = plan_verification(canvas, len(draft), ahead, ends)
        (answer,) = yield [self._verifying(canvas, plan, draft, Hidden())]
        assert answer.hidden is not None
        hidden, groups = answer.hidden, groups + len(draft) + 1
        (read,) = yield [DraftStep(hidden[: len(draft) + 1])]
        assert read.logits is not None

        def following(row: int) -> NextLogits:
            return DraftRows(hidden[groups[row] : groups[row + 1]], hidden[row : row + 1])

        return Verification(read.logits, following, read.evidence)

    def cycle(
        self,
        canvas: Canvas,
        draft: np.ndarray,
        ahead: int,
        ends: tuple[int, ...] | None,
        rules: Rules,
        worth: float,
    ) -> Asking[Answer]:
        """Verify, draw, accept and draft; see `Session`."""
        assert canvas.span is not None
        positions = index_range(canvas.span[0], canvas.span[0] + len(draft) + 1)
        plan, groups = plan_verification(canvas, len(draft), ahead, ends)
        (answer,) = yield [self._verifying(canvas, plan, draft, Cycle(rules, positions, draft, groups, worth))]
        return answer

    def draft(self, canvas: Canvas, num: int, ask: Ask) -> Asking[Answer]:
        """An answer about the next positions as a draft; see `Session`."""
        assert self.config.masks_in_place and canvas.continues and canvas.span is not None
        start = canvas.span[0]
        plan, positions = plan_noisy(self.config, start, start + num), index_range(start, start + num)
        noisy = plan.noisy_tokens(self.config, canvas)
        forward = self._forward(plan, plan.tokens(canvas), noisy, positions, ask)
        forward.drafting = self.config.draft_rank > 0
        (answer,) = yield [forward]
        return answer

    def tree_logits(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[np.ndarray]:
        """The distributions after tokens of a tree; see `Session`."""
        out = np.empty((len(wanted), self.config.vocab_size), dtype=np.float32)
        in_tree, num = wanted >= 0, len(given)
        if not in_tree.all() or (self._cache is not None and not self._holds(given)):
            (answer,) = yield [self._forward(plan_text(num), given, NONE, np.array([num]), Logits())]
            out[~in_tree] = answer.logits
        if in_tree.any():
            plan = plan_tree(num, tree)
            rows = (wanted[in_tree] + num).astype(np.int32)  # among all rows, clean ones first
            (answer,) = yield [self._forward(plan, given, tree.tokens, rows, Logits(), by_row=True)]
            out[in_tree] = answer.logits
        return out

    def _holds(self, given: np.ndarray) -> bool:
        """Whether the cache begins with these tokens, as one run from position 0 on."""
        segment = self._held_rows.segment
        one_run = segment is None or not segment[: len(given)].any()
        return one_run and np.array_equal(self._held_tokens[: len(given)], given)

    def _drafts(self, canvas: Canvas, positions: np.ndarray) -> bool:
        """Whether these open positions can be drafted from the left as mode "speculative" drafts: all of the active
        span that is left to fill, at the end of a text of a causal model with a shift. Where masks are in place the
        noisy rows of `plan_rows` give the same without low-rank weights.
        """
        if not (self.config.can_draft and canvas.continues and len(positions) > 1 and canvas.span is not None):
            return False
        if self.config.masks_in_place:
            return False
        return bool(positions[-1] + 1 == canvas.span[1]) and 1 not in canvas.open[: positions[0]].tobytes()

    def _drafting(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Forward:
        """A forward that drafts these positions from the left."""
        start, num = int(positions[0]), len(positions)
        masks, wanted = _masks(self.config.placeholder, num - 1), index_range(start - 1, start + num - 1, np.int32)
        plan = plan_draft(start, num)
        forward = self._forward(plan, canvas.tokens[:start], masks, wanted, ask, by_row=True)
        forward.drafting = self.config.draft_rank > 0
        return forward

    def _verifying(self, canvas: Canvas, plan: RowPlan, draft: np.ndarray, ask: Ask) -> Forward:
        """The forward of `verify`. Wanted rows in order: the clean rows that are read, then the masked rows."""
        assert canvas.span is not None and canvas.continues and not (self.config.masks_in_place and len(plan.noisy))
        masks = _masks(self.config.placeholder, len(plan.noisy))
        wanted = index_range(plan.num_clean - plan.num_read, plan.num_clean + len(masks), np.int32)
        clean = np.concatenate([canvas.tokens[: canvas.span[0]], draft])
        forward = self._forward(plan, clean, masks, wanted, ask, by_row=True)
        forward.drafting = bool(self.config.draft_rank and len(masks))
        return forward

    def _forward(
        self,
        plan: RowPlan,
        clean: np.ndarray,
        noisy: np.ndarray,
        wanted: np.ndarray,
        ask: Ask,
        level: float | None = None,
        by_row: bool = False,
    ) -> Forward:
        """The forward of all rows that are not cached; `clean` and `noisy` are the tokens of the plan's rows.

        wanted  positions to predict; with `by_row`, rows of the plan, clean ones first
        """
        past = self._reuse(plan, clean)
        rows = wanted - np.int32(past) if by_row else plan.rows_of(wanted, past)
        tokens = np.concatenate([clean[past:], noisy]) if len(noisy) else clean[past:]
        return Forward(tokens, plan.layout(self.config, past), self._cache, rows, ask, level)

    def _reuse(self, plan: RowPlan, tokens: np.ndarray) -> int:
        """Discard cached rows from the first that this plan does not need on, and count; returns how many are kept."""
        held, held_rows = self._held_tokens, self._held_rows
        common = known = min(plan.num_clean - plan.num_read, len(held))
        moved = plan.clean is not None or held_rows.clean is not None
        if moved or held[:common].tobytes() != tokens[:common].tobytes():
            differs = held[:common] != tokens[:common]
            if moved:
                differs |= (_places(plan)[:, :common] != _places(held_rows)[:, :common]).any(axis=0)
            known = int(differs.argmax()) if differs.any() else common
        if self.config.block_size is not None and self.config.context == "block":  # its rows see each other
            known -= known % self.config.block_size
        self._held_tokens, self._held_rows = tokens, plan
        self._count(plan, known)
        if self._cache is None:
            return 0
        self._cache.truncate(known)
        return known

    def _count(self, plan: RowPlan, known: int) -> None:
        """Count a forward whose first `known` clean rows have been computed before."""
        counts, new = self.counts, plan.num_clean - known - plan.num_read
        if self._first:
            counts.prefill_tokens += new
        else:
            counts.finalized_tokens += new
        self._first = False
        counts.forwards += 1
        counts.query_tokens += len(plan.noisy) + plan.num_read
        if self._cache is None:
            counts.recomputed_tokens += known
        else:
            counts.reused_tokens += known


def noise_level(config: ModelConfig, canvas: Canvas) -> float | None:
    """The noise level of a canvas: the open share of its gaps; None for a model without `time_input`."""
    return float(canvas.open.sum() / canvas.in_gap.sum()) if config.time_input else None


@lru_cache(maxsize=256)
def _masks(mask_id: int, num: int) -> np.ndarray:
    """The tokens of masked rows, int64 (num,); a shared array that must not be written to."""
    return np.full(num, mask_id)


def _places(plan: RowPlan) -> np.ndarray:
    """Position and segment of each clean row, int64 (2, S)."""
    if plan.clean is None or plan.segment is None:
        return np.stack([index_range(0, plan.num_clean), np.zeros(plan.num_clean, dtype=np.int64)])
    return np.stack([plan.clean, plan.segment])


class DraftRows:
    """Distributions of consecutive masked rows with hidden states (A, D); uses the draft head if the model has one.

    state  (1, D): the state before the first row; None: the first row has read the token before it
    """

    def __init__(self, rows: np.ndarray, state: np.ndarray | None) -> None:
        self._rows, self._state, self._place = rows, state, 0
        self.evidence: np.ndarray | None = None

    def after(self, token: int) -> Asking[np.ndarray | None]:
        """The logits of the next position; see `NextLogits`."""
        place = self._place
        if place == len(self._rows):
            return None
        self._place += 1
        (answer,) = yield [DraftStep(self._rows[place : place + 1], token, self._state)]
        self._state, self.evidence = answer.hidden, answer.evidence
        assert answer.logits is not None
        return answer.logits[0]
