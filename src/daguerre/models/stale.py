"""Approximate caches for models with full context: keys and values are read again although they are out of date.

In full context each row sees all others, so no key stays exact once a token changes. These caches keep some all the
same. A rule (`RULES`) names the rows that a forward may not take from the cache, the *fresh* ones. All others are
frozen: computed together with everything else, stored, and from then on read. Every row sees every key, of whatever
age. With a shift, position i is predicted by the row at i - 1, so the rows of a span include the one before it.

rule      fresh rows of a forward                         everything is computed
prefix    the active span and all after it                at the start of each span
dual      the active span                                 at the start of each span
vicinity  the active span and NEAR positions around it    at the start of each span
delayed   open positions, and rows that predict one       at the start, and after every REFRESH forwards

Prefix and dual are those of Fast-dLLM (arXiv 2505.22618), vicinity is that of dInfer (arXiv 2510.08666). Delayed is
dKV-Cache-Decode (arXiv 2505.15781): a token's row is computed once more in the forward after it was committed, and only
then stored; the authors' code also refreshes its cache at such an interval, 8 in their example.

Whatever the rule, everything is computed where a frozen row holds another token than it did, or is asked about: after a
revision, for example, or where the caller changed the text.

Letters: L positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from daguerre.canvas import Canvas
from daguerre.models.backbone_session import BackboneSession, noise_level
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Answer, Ask, Forward, KeyCache, Layout
from daguerre.models.rows import plan_rows
from daguerre.models.session import Asking

CacheMode = Literal[
    "auto",
    "none",
    "approximate_int8",
    "approximate_prefix",
    "approximate_dual",
    "approximate_vicinity",
    "approximate_delayed",
]
CACHE_MODES: tuple[CacheMode, ...] = get_args(CacheMode)

NEAR = 16
"""How many positions on each side of the span "vicinity" computes again, as in dInfer's server."""
REFRESH = 8
"""From one forward that computes everything to the next, in "delayed"."""


def _run(canvas: Canvas, start: int, end: int) -> np.ndarray:
    place = np.arange(len(canvas))
    inside: np.ndarray = (place >= start) & (place < end)
    return inside


def _from_span_on(canvas: Canvas, offset: int) -> np.ndarray:
    assert canvas.span is not None
    return _run(canvas, canvas.span[0] - offset, len(canvas))


def _in_span(canvas: Canvas, offset: int) -> np.ndarray:
    assert canvas.span is not None
    return _run(canvas, canvas.span[0] - offset, canvas.span[1])


def _near_span(canvas: Canvas, offset: int) -> np.ndarray:
    assert canvas.span is not None
    return _run(canvas, canvas.span[0] - NEAR, canvas.span[1] + NEAR)


def _open(canvas: Canvas, offset: int) -> np.ndarray:
    fresh = canvas.open.copy()
    if offset:
        fresh[:-1] |= canvas.open[1:]
    return fresh


@dataclass(frozen=True)
class Staleness:
    """Which rows are frozen, and until when.

    fresh     fresh(canvas, offset), bool (L,): the rows that are not; the row at i - offset predicts position i
    by_span   whether everything is computed at the start of each active span
    interval  after how many forwards everything is computed again; None: never for this reason
    """

    fresh: Callable[[Canvas, int], np.ndarray]
    by_span: bool = True
    interval: int | None = None


RULES: dict[str, Staleness] = {
    "approximate_prefix": Staleness(_from_span_on),
    "approximate_dual": Staleness(_in_span),
    "approximate_vicinity": Staleness(_near_span),
    "approximate_delayed": Staleness(_open, by_span=False, interval=REFRESH),
}
"""By the name of the cache (`models.denoiser.CacheMode`)."""


class StaleSession(BackboneSession):
    """The state of one request with an approximate cache, for canvases of `length` positions. An answer depends on the
    canvas and on the forwards before it.
    """

    def __init__(self, config: ModelConfig, cache: KeyCache, rule: Staleness, length: int) -> None:
        super().__init__(config, cache)
        self._rule, self._store, self._length = rule, cache, length
        self._forget()

    def _forget(self) -> None:
        self._frozen = np.zeros(self._length, dtype=bool)
        self._tokens = np.full(self._length, -1)  # that each row held when it was last stored
        self._span: tuple[int, int] | None = None
        self._age = 0  # forwards since everything was computed

    def restart(self) -> None:
        """Reset the counts, for another request whose canvas has the same length; nothing is kept."""
        super().restart()
        self._forget()

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        """An answer about positions of the active span; see `Session`."""
        plan = plan_rows(self.config, canvas)  # every row, which are all noisy
        asked, tokens = positions - plan.offset, plan.noisy_tokens(self.config, canvas)
        fresh = self._rule.fresh(canvas, plan.offset)
        if self._outdated(canvas, tokens, fresh, asked):
            self._store.truncate(0)
            self._frozen, self._age = np.zeros_like(self._frozen), 0
        stored = ~(fresh | self._frozen)
        self._count_rows(stored, tokens, asked)
        rows = np.concatenate([np.flatnonzero(stored), np.flatnonzero(fresh)])
        self._frozen, self._span, self._age = self._frozen | stored, canvas.span, self._age + 1
        self._tokens[stored] = tokens[stored]
        index = np.empty(len(canvas), dtype=np.int32)
        index[rows] = np.arange(len(rows))
        layout = Layout(rows, np.full(len(rows), len(canvas), dtype=np.int32), int(stored.sum()))
        level = noise_level(canvas) if self.config.time_input else None
        (answer,) = yield [Forward(tokens[rows], layout, self._store, index[asked], ask, level)]
        return answer

    def _outdated(self, canvas: Canvas, tokens: np.ndarray, fresh: np.ndarray, asked: np.ndarray) -> bool:
        """Whether nothing that is cached may be read."""
        rule, frozen = self._rule, self._frozen
        return bool(
            (rule.by_span and canvas.span != self._span)
            or (rule.interval is not None and self._age >= rule.interval)
            or (frozen & (fresh | (tokens != self._tokens))).any()
            or frozen[asked].any()
            or self._store.length != frozen.sum()  # the last forward was never computed
        )

    def _count_rows(self, stored: np.ndarray, tokens: np.ndarray, asked: np.ndarray) -> None:
        """Count a forward that reads the frozen rows and computes all others."""
        other = stored.copy()
        other[asked] = False
        again = int((other & (tokens == self._tokens)).sum())
        new, reused = int(other.sum()) - again, int(self._frozen.sum())
        self._count(len(tokens) - reused - new - again, new, again, reused)
