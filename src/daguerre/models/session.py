"""What decoding asks of a model: the session of one request, and how several are computed together.

A session answers questions about a canvas by forwards, which it yields. `models.backbone_session` is that of our own
backends.

Letters: A wanted positions, D tokens of a draft, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from daguerre.canvas import Canvas
from daguerre.models.forward import Answer, Ask, Backend, DraftStep, Forward, Rules
from daguerre.models.rows import Tree

T = TypeVar("T")
Asking = Generator[list[Forward | DraftStep], list[Answer], T]
"""A generator that yields batches of forwards, is sent their answers, and returns its result."""


@dataclass
class Counts:
    """How much a request has computed.

    forwards
    query_tokens       rows whose outputs are used: open positions, anchors, and clean rows with wanted outputs
    prefill_tokens     other rows of the first forward: the given text
    finalized_tokens   other rows of later forwards, computed for the first time: committed tokens. In reordered context
                       also those before which another token was committed
    recomputed_tokens  other rows, computed before; always 0 with an exact cache
    reused_tokens      rows read from the cache instead of computed, summed over forwards
    drafted            tokens of drafts that were verified, whatever drafted them
    accepted           how many of them were accepted
    lookup_drafted, lookup_accepted   those of them that were looked up in the text itself
    head_drafted, head_accepted       those that the model, or a second one, drafted; the others are of the caller's
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

    draws     whether the session can answer with draws; otherwise only with logits
    explains  whether evidence has the parts of `models.wrappers.explaining`
    """

    counts: Counts
    draws: bool

    @property
    def explains(self) -> bool: ...

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

    def tree_logits(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[Answer]:
        """The autoregressive distributions, logits (A, V), after the `wanted` nodes, int64 (A,), of a tree of
        continuations of the `given` tokens, (S,); -1 means after the last given token. Only for causal context with a
        shift.
        """

    def tree_log_probs(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[np.ndarray]:
        """Autoregressive log-probabilities, in nats, float64 (A,), of the `wanted` tokens of a tree, int64 (A,), given
        those before each. Only for causal context with a shift.
        """

    def ask_noisy(self, tokens: np.ndarray, level: float, positions: np.ndarray) -> Asking[Answer]:
        """Logits (A, V) of the clean tokens of a text, int64 (L,), at noise level t, which a model without `time_input`
        is not given. Only for full context; with the absorbing process t is that of the linear schedule.
        """


def compute(asking: Asking[T], backend: Backend) -> T:
    """What an `Asking` returns, its forwards computed one batch after the other."""
    answers: list[Answer] | None = None
    while True:
        try:
            batch = next(asking) if answers is None else asking.send(answers)
        except StopIteration as end:
            result: T = end.value
            return result
        answers = backend.forward(batch)
