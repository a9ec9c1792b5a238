"""Sessions around sessions that change requests before they are computed, and answers after.

Letters: A wanted positions, D tokens of a draft.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Answer, Ask, DraftStep, Forward, Hidden, Rules
from daguerre.models.rows import Tree, index_range
from daguerre.models.session import Asking, Counts, NextLogits, Session, Verification

T = TypeVar("T")
Finish = Callable[[Answer], Answer]


@dataclass(frozen=True, eq=False, slots=True)
class About:
    """What the requests of a question are about.

    canvas     the canvas of the question
    positions  int64 (A,): those that the rows of a draft step predict
    draft      int64 (D,): tokens at the start of the active span that are verified. Row j of the first D + 1 has read j
               of them, and so have the masked rows behind it
    """

    canvas: Canvas
    positions: np.ndarray | None = None
    draft: np.ndarray | None = None


class RewritingSession(ABC):
    """A `Session` around `inner`, of a canvas as it is at the start; everything else is that of the inner one."""

    def __init__(self, config: ModelConfig, inner: Session, canvas: Canvas) -> None:
        self.config, self._inner, self._canvas = config, inner, canvas

    @abstractmethod
    def change(self, one: Forward | DraftStep, about: About) -> Finish:
        """Change a request, which asks for more than hidden states; returns what is done to its answer."""

    @property
    def counts(self) -> Counts:
        return self._inner.counts

    @counts.setter
    def counts(self, counts: Counts) -> None:
        self._inner.counts = counts

    @property
    def draws(self) -> bool:
        return self._inner.draws

    @draws.setter
    def draws(self, draws: bool) -> None:
        self._inner.draws = draws

    @property
    def explains(self) -> bool:
        return self._inner.explains

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        """An answer about positions of the active span; see `Session`."""
        return self.through(self._inner.ask(canvas, positions, ask), About(canvas))

    def draft(self, canvas: Canvas, num: int, ask: Ask) -> Asking[Answer]:
        """An answer about the next positions as a draft; see `Session`."""
        return self.through(self._inner.draft(canvas, num, ask), About(canvas))

    def sequential_logits(self, canvas: Canvas) -> Asking[NextLogits]:
        """The distributions of the first masked positions, one at a time; see `Session`."""
        found = yield from self.through(self._inner.sequential_logits(canvas), About(canvas))
        return _RewrittenNextLogits(self, found, canvas, int(canvas.active_positions()[0]))

    def verify(
        self, canvas: Canvas, draft: np.ndarray, ahead: int, ends: tuple[int, ...] | None = None
    ) -> Asking[Verification]:
        """The distributions of a draft and of the positions after it; see `Session`."""
        assert canvas.span is not None
        start = canvas.span[0]
        about = About(canvas, start + np.arange(len(draft) + 1), draft)
        found = yield from self.through(self._inner.verify(canvas, draft, ahead, ends), about)

        def following(row: int) -> NextLogits:
            return _RewrittenNextLogits(self, found.following(row), with_draft(canvas, draft[:row]), start + row + 1)

        return replace(found, following=following)

    def cycle(
        self, canvas: Canvas, draft: np.ndarray, ahead: int, ends: tuple[int, ...] | None, rules: Rules, worth: float
    ) -> Asking[Answer]:
        """Verify, draw, accept and draft; see `Session`."""
        asking = self._inner.cycle(canvas, draft, ahead, ends, rules, worth)
        return self.through(asking, About(canvas, draft=draft))

    def tree_logits(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[Answer]:
        """The distributions after tokens of a tree; see `Session`."""
        return self.through(self._inner.tree_logits(given, tree, wanted), About(self._canvas))

    def tree_log_probs(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[np.ndarray]:
        """The log-probabilities of the tokens of a tree; see `Session`."""
        parents, rows = np.unique(tree.parents[wanted], return_inverse=True)
        answer = yield from self.tree_logits(given, tree, parents)
        assert answer.logits is not None
        logits = answer.logits.astype(np.float64)
        found: np.ndarray = logits[rows, tree.tokens[wanted]] - np.logaddexp.reduce(logits, axis=1)[rows]
        return found

    def ask_noisy(self, tokens: np.ndarray, level: float, positions: np.ndarray) -> Asking[Answer]:
        """Logits of the clean tokens of a text at noise level t; see `Session`."""
        opened = self._canvas.in_gap & (tokens == self.config.placeholder)
        canvas = replace(self._canvas, tokens=tokens, open=opened)
        return self.through(self._inner.ask_noisy(tokens, level, positions), About(canvas))

    def ask_tokens(self, clean: np.ndarray, noisy: np.ndarray, ask: Ask, conditioning: Any = None) -> Asking[Answer]:
        """An answer about noisy tokens after clean ones; see `Session`."""
        return self.through(self._inner.ask_tokens(clean, noisy, ask, conditioning), About(self._canvas))

    def through(self, asking: Asking[T], about: About) -> Asking[T]:
        """A question to the inner session, with its requests and their answers changed."""
        answers: Any = None
        while True:
            try:
                batch = asking.send(answers)
            except StopIteration as end:
                return end.value
            finish = [self._changed(one, about) for one in batch]
            found = yield batch
            answers = [done(answer) for done, answer in zip(finish, found, strict=True)]

    def _changed(self, one: Forward | DraftStep, about: About) -> Finish:
        return as_it_is if isinstance(one, Forward) and isinstance(one.ask, Hidden) else self.change(one, about)


def as_it_is(answer: Answer) -> Answer:
    return answer


class _RewrittenNextLogits:
    """The distributions of consecutive positions, from `first` on."""

    def __init__(self, session: RewritingSession, inner: NextLogits, canvas: Canvas, first: int) -> None:
        self._session, self._inner, self._canvas, self._places = session, inner, canvas, count(first)

    @property
    def evidence(self) -> np.ndarray | None:
        return self._inner.evidence

    def after(self, token: int) -> Asking[np.ndarray | None]:
        """The logits of the next position; see `NextLogits`."""
        about = About(self._canvas, np.array([next(self._places)]))
        return self._session.through(self._inner.after(token), about)


def with_draft(canvas: Canvas, draft: np.ndarray) -> Canvas:
    """The canvas with the draft committed at the start of the active span, which then is the position after it."""
    assert canvas.span is not None
    place = canvas.span[0] + len(draft)
    if len(draft):
        sure = np.ones(len(draft))
        canvas = canvas.apply(Decision.plain(index_range(canvas.span[0], place), draft, sure, sure))
    return canvas.at((place, place + 1))


def predicted(config: ModelConfig, forward: Forward) -> np.ndarray:
    """The positions, int64 (A,), of the tokens that the wanted rows of a forward predict."""
    rows = forward.wanted
    if not config.masks_in_place:
        return forward.layout.position[rows] + int(config.shift)
    return forward.layout.position[rows] + (rows < forward.layout.num_clean)
