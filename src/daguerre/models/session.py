"""One request's denoiser: what it asks a backend, and what it keeps between its steps.

A session turns questions about a canvas into forwards; `models.rows` knows which rows those take. Its cache holds
exactly the clean rows that the current canvas needs, so no mask ever hides a cached key: a span's anchor row is noisy,
and its key enters the cache only once it is no longer the anchor.

Letters: A asked positions, D tokens of a draft, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
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
)
from daguerre.models.rows import (
    NONE,
    RowPlan,
    Tree,
    first_run,
    numbers,
    plan_rows,
    plan_text,
    plan_tree,
    plan_verification,
)

T = TypeVar("T")
Asking = Generator[list[Forward | DraftStep], list[Answer], T]
"""What yields batches of forwards, is sent their answers, and returns what came of them."""


@dataclass
class Counts:
    """What a request has computed.

    forwards
    query_tokens       rows that forwards ask about: open positions, anchors, and clean rows that are read
    prefill_tokens     other rows of the first forward: the caller's text
    finalized_tokens   other rows of later forwards, computed for the first time: what was committed
    recomputed_tokens  other rows that had been computed before: none with a cache
    reused_tokens      rows read from the cache instead of computed, summed over forwards
    drafted            tokens of the model's drafts that were verified
    accepted           those of them that were right
    deadline_forced    forwards in which the deadline, not the policy, decided how much is committed
    accepted_prediction_tokens   tokens of the caller's draft that the text has where they were expected
    rejected_prediction_tokens   the others of it
    """

    forwards: int = 0
    query_tokens: int = 0
    prefill_tokens: int = 0
    finalized_tokens: int = 0
    recomputed_tokens: int = 0
    reused_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    deadline_forced: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    def accept(self, num: int) -> None:
        """Tokens of the caller's draft, all of them rejected until they stand."""
        self.accepted_prediction_tokens += num
        self.rejected_prediction_tokens -= num

    def add(self, other: Counts) -> None:
        """Count what another has computed, too."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def together(*askings: Asking[Any]) -> Asking[list[Any]]:
    """What each of them returns, their forwards in the same batches."""
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
        asked = dict(waiting)
        answers = iter((yield [forward for batch in asked.values() for forward in batch]))
        for number, batch in asked.items():
            go_on(number, [next(answers) for _ in batch])
    return out


class NextLogits(Protocol):
    """The distributions of consecutive positions, one after the other, for whoever chooses the tokens.

    evidence  (1, ...): what the head says about the last one; None for the vocabulary projection
    """

    @property
    def evidence(self) -> np.ndarray | None: ...

    def after(self, token: int) -> Asking[np.ndarray | None]:
        """Float32 logits (V,) of the next position, `token` standing before it; None: there is none left. Without a
        draft head they do not depend on the token.
        """


@dataclass(frozen=True, eq=False)
class Verification:
    """What one forward says about a draft of D tokens that begins at a span's first position s, and about what follows.

    logits  float32 (D + 1, V): the autoregressive distribution at s + j, had the draft's first j tokens been drawn
    behind  behind(j): the distributions of the positions s + j + 1, ..., masked, that see the same j tokens; what
            stands at s + j tells only a draft head
    evidence  (D + 1, ...): what the head says about each of the first; None for the vocabulary projection
    """

    logits: np.ndarray
    behind: Callable[[int], NextLogits]
    evidence: np.ndarray | None = None


class Session(Protocol):
    """One request's denoiser: keeps what it may between calls, and changes no answer by it.

    draws: whether the session can ask for draws; else only for logits.
    """

    counts: Counts
    draws: bool

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        """An answer about positions of the active span, int64 (A,), ascending."""

    def in_turn(self, canvas: Canvas) -> Asking[NextLogits]:
        """The distributions of the first masked positions of the active span, as far as they are side by side, one
        after the other: the first as `ask` has it, the others too, but where a draft head knows what stands before.
        """

    def verify(self, canvas: Canvas, draft: np.ndarray, ahead: int) -> Asking[Verification]:
        """Test `draft`, int64 (D,), at the start of the active span, of which nothing is committed, in one forward.

        ahead: masked positions behind each place where the draft may fail; fewer at the end of the span, and none at
        its last position. Only for causal context with a shift, and one gap at the end.
        """

    def cycle(self, canvas: Canvas, draft: np.ndarray, ahead: int, rules: Rules, worth: float) -> Asking[Answer]:
        """`verify`, what `rules` draw, and the likeliest draft behind what stands, in one answer (`Cycle`). For a
        session that `draws`.
        """

    def branches(self, given: np.ndarray, tree: Tree, asked: np.ndarray) -> Asking[np.ndarray]:
        """The autoregressive distribution, float32 logits (A, V), behind the `asked` tokens of a tree, int64 (A,), that
        goes on from tokens given, (S,); -1 asks behind those. Only for causal context with a shift.
        """

    def ask_noisy(self, tokens: np.ndarray, level: float, positions: np.ndarray) -> Asking[Answer]:
        """Logits (A, V) of the clean tokens of a text, int64 (L,), at noise level t. For an unshifted model of
        full context with `time_input`; one of the absorbing process takes t on the linear schedule.
        """


class BackboneSession:
    """State of one request: its cache, and which clean rows are in it.

    A call compares the rows in the cache with those that its canvas needs and forgets from the first that differs, so
    an answer is a function of the canvas alone.
    """

    draws = True

    def __init__(self, config: ModelConfig, cache: KeyCache | None) -> None:
        self.config, self.counts = config, Counts()
        self._cache, self._first = cache, True
        self._held_tokens, self._held_rows = NONE, RowPlan(0, NONE, 0)

    def restart(self) -> None:
        """Count from nothing, for another request whose canvas is as long; what is cached stays."""
        self.counts, self._first = Counts(), True

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        """An answer about positions of the active span; see `Session`.

        UnsupportedError for a model of another process than the absorbing one: it does not fill open positions.
        """
        config = self.config
        if config.process != "absorbing":
            raise UnsupportedError(f"a model of the {config.process} process does not fill open positions")
        plan = plan_rows(config, canvas)
        noisy = NONE
        if len(plan.noisy):
            noisy = canvas.tokens[plan.noisy]
            noisy[canvas.open[plan.noisy]] = config.mask_id
        level = float(canvas.open.sum() / canvas.in_gap.sum()) if config.time_input else None
        (answer,) = yield [self._forward(plan, plan.tokens(canvas), noisy, positions, ask, level)]
        return answer

    def in_turn(self, canvas: Canvas) -> Asking[NextLogits]:
        """The distributions of the first masked positions, one after the other; see `Session`."""
        answer = yield from self.ask(canvas, first_run(canvas.active_positions()), Hidden())
        assert answer.hidden is not None
        return DraftRows(answer.hidden, None)

    def ask_noisy(self, tokens: np.ndarray, level: float, positions: np.ndarray) -> Asking[Answer]:
        """What a text at noise level t was; see `Session`."""
        assert self.config.time_input and not self.config.shift and self.config.context == "full"
        layout = Layout(np.arange(len(tokens)), np.full(len(tokens), len(tokens), dtype=np.int32), 0)
        self.counts.forwards += 1
        self.counts.query_tokens += len(tokens)
        (answer,) = yield [Forward(tokens, layout, None, positions.astype(np.int32), Logits(), level)]
        return answer

    def verify(self, canvas: Canvas, draft: np.ndarray, ahead: int) -> Asking[Verification]:
        """The distributions of a draft and of what is behind it; see `Session`."""
        (answer,) = yield [self._verifying(canvas, draft, ahead, Hidden())]
        assert answer.hidden is not None
        hidden, groups = answer.hidden, plan_verification(canvas, len(draft), ahead)[1] + len(draft) + 1
        (read,) = yield [DraftStep(hidden[: len(draft) + 1])]
        assert read.logits is not None

        def behind(row: int) -> NextLogits:
            return DraftRows(hidden[groups[row] : groups[row + 1]], hidden[row : row + 1])

        return Verification(read.logits, behind, read.evidence)

    def cycle(self, canvas: Canvas, draft: np.ndarray, ahead: int, rules: Rules, worth: float) -> Asking[Answer]:
        """Verify, draw, accept and draft; see `Session`."""
        assert canvas.span is not None
        positions = canvas.span[0] + np.arange(len(draft) + 1)
        groups = plan_verification(canvas, len(draft), ahead)[1]
        (answer,) = yield [self._verifying(canvas, draft, ahead, Cycle(rules, positions, draft, groups, worth))]
        return answer

    def branches(self, given: np.ndarray, tree: Tree, asked: np.ndarray) -> Asking[np.ndarray]:
        """The distributions behind tokens of a tree; see `Session`."""
        out = np.empty((len(asked), self.config.vocab_size), dtype=np.float32)
        behind, num = asked >= 0, len(given)
        if not behind.all() or (self._cache is not None and not self._holds(given)):
            (answer,) = yield [self._forward(plan_text(num), given, NONE, np.array([num]), Logits())]
            out[~behind] = answer.logits
        if behind.any():
            plan = plan_tree(num, tree)
            places = (asked[behind] + num).astype(np.int32)  # among all rows, clean ones first
            (answer,) = yield [self._forward(plan, given, tree.tokens, places, Logits(), by_row=True)]
            out[behind] = answer.logits
        return out

    def _holds(self, given: np.ndarray) -> bool:
        """Whether the cache begins with these tokens, as one run from the first position on."""
        segment = self._held_rows.segment
        one_run = segment is None or not segment[: len(given)].any()
        return one_run and np.array_equal(self._held_tokens[: len(given)], given)

    def _verifying(self, canvas: Canvas, draft: np.ndarray, ahead: int, ask: Ask) -> Forward:
        """The forward of `verify`, its rows wanted in their order: clean ones that are read, then masked ones."""
        assert canvas.span is not None and canvas.continues
        start = canvas.span[0]
        plan, _ = plan_verification(canvas, len(draft), ahead)
        masks = np.full(len(plan.noisy), self.config.mask_id)
        wanted = numbers(plan.num_clean - plan.num_read, plan.num_clean + len(masks), np.int32)
        clean = np.concatenate([canvas.tokens[:start], draft])
        return self._forward(plan, clean, masks, wanted, ask, by_row=True)

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
        """The forward of the rows that are not cached, whose tokens are given.

        wanted  positions that are asked; `by_row` rows of the plan, clean ones first
        """
        past = self._reuse(plan, clean)
        rows = wanted - np.int32(past) if by_row else plan.rows_of(wanted, past)
        tokens = np.concatenate([clean[past:], noisy]) if len(noisy) else clean[past:]
        return Forward(tokens, plan.layout(self.config, past), self._cache, rows, ask, level)

    def _reuse(self, plan: RowPlan, tokens: np.ndarray) -> int:
        """Forget cached rows from the first that this plan does not need, and count; returns how many stay."""
        held, held_rows = self._held_tokens, self._held_rows
        common = min(plan.num_clean - plan.num_read, len(held))
        differs = held[:common] != tokens[:common]
        if plan.clean is not None or held_rows.clean is not None:
            differs |= (_places(plan)[:, :common] != _places(held_rows)[:, :common]).any(axis=0)
        known = int(differs.argmax()) if common else 0
        if not (common and differs[known]):
            known = common
        if self.config.block_size is not None and self.config.context == "block":  # a block's rows saw all of it
            known -= known % self.config.block_size
        self._held_tokens, self._held_rows = tokens, plan
        self._count(plan, known)
        if self._cache is None:
            return 0
        self._cache.truncate(known)
        return known

    def _count(self, plan: RowPlan, known: int) -> None:
        """Add a forward whose first `known` clean rows have been computed before."""
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


def _places(plan: RowPlan) -> np.ndarray:
    """Position and segment of each clean row, int64 (2, S)."""
    if plan.clean is None or plan.segment is None:
        return np.stack([numbers(0, plan.num_clean), np.zeros(plan.num_clean, dtype=np.int64)])
    return np.stack([plan.clean, plan.segment])


class DraftRows:
    """Distributions of consecutive masked rows, whose hidden states are (A, D), by the draft head where there is one.

    state  (1, D), of what stands before the first row; None: the first row has read that itself
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
