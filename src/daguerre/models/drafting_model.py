"""A second model that drafts for another: which tokens both have, its sessions, and what forwards of the two take.

A draft never changes a text, so nothing here has to be exact: the second model may be quantized further, may have fewer
positions, and reads a token that it does not have as another.

Letters: R rows, V vocabulary.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Answer, Ask, Backend, DraftStep, Draws, Forward, KeyCache, Layout, Rules
from daguerre.models.rows import RowPlan
from daguerre.models.session import Asking
from daguerre.models.tokenizer import Tokenizer

MOST = 64
"""Rows of a forward up to which its time is that of as many tokens, each of them drawn; those of larger ones are a
prompt's."""
PROMPT, TIMED_ROWS = MOST + 1, (1, 1, 2, 3, 5, 9)
"""Rows of the forwards that are timed first; of the first of one row the weights may come from the disk."""
Clock = Callable[[], float]
"""In seconds, from any moment. That of a thread does not count what other processes do."""
KEPT = 5
"""The time of a forward of so many rows is the median of the last this many."""


EXPECTED, KEPT_TOKENS = 0.8, 200
"""What part of its tokens is taken to be right before any was seen."""


class DraftingModel:
    """The second model of a model.

    backend   of the second model; num_bytes: of its weights
    clock     by which forwards are timed: that of the thread, which also computes; or, on a device, the wall's
    known     int64 (V,): of each token of the model, what the second model reads it as
    shared    bool: of each token of the larger vocabulary, whether both have it; such ones alone are drafted
    acceptance  what part of its tokens was right, of about the last KEPT_TOKENS of all texts
    times     of forwards of the model, and of the second one

    InputError where its vocabulary is another; UnsupportedError where it has no autoregressive distribution.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        backend: Backend,
        other: Tokenizer,
        num_bytes: int = 0,
        clock: Clock = time.thread_time,
    ) -> None:
        own = backend.config
        if not (own.can_draft and config.can_draft):
            which, context = ("the one that drafts", own) if config.can_draft else ("this one", config)
            raise UnsupportedError(
                f"a second model drafts for an autoregressive distribution by its own, and {which} has "
                f"{context.context} context{'' if context.shift else ' without a shift'}: leave out drafts"
            )
        self.backend, self.num_bytes = backend, num_bytes
        self.shared = shared_tokens(tokenizer, other, config.vocab_size, own.vocab_size)
        self.known = np.where(self.shared[: config.vocab_size], np.arange(config.vocab_size), own.eos_id)
        self.acceptance = EXPECTED
        self.times = ForwardTimes(clock), ForwardTimes(clock)
        self._beside: tuple[Backend, TwoBackends] | None = None

    def beside(self, backend: Backend) -> TwoBackends:
        """The backend of the model with that of the second one."""
        if self._beside is None or self._beside[0] is not backend:
            for times, one in zip(self.times, (backend, self.backend), strict=True):
                times.measure(one)
            self._beside = backend, TwoBackends(backend, self.backend, self.times)
        return self._beside[1]

    def session(self, canvas: Canvas) -> DraftingSession:
        """A fresh session for canvases as long as `canvas`."""
        return DraftingSession(self, self.backend.cache(min(len(canvas), self.backend.config.max_positions)))


def shared_tokens(tokenizer: Tokenizer, other: Tokenizer, num: int, num_other: int) -> np.ndarray:
    """Which ids are the same token in vocabularies of `num` and `num_other`, bool (the larger,). InputError where an id
    is one text in one of them and another in the other: special and added tokens alone may differ.
    """
    out, both = np.zeros(max(num, num_other), dtype=bool), min(num, num_other, tokenizer.vocab_size, other.vocab_size)
    if tokenizer is other or tokenizer == other:
        out[:both] = True
        return out
    special = tokenizer.special_ids | other.special_ids
    for token in range(both):
        name, others = tokenizer.token_name(token), other.token_name(token)
        out[token] = name == others != ""
        if name and others and not out[token] and token not in special:
            raise InputError(
                f"a model drafts for one of the same vocabulary: token {token} is {name!r} in the model and {others!r} "
                "in the one that drafts; name another one as drafts, of the same family"
            )
    if not out.any():
        raise InputError("the model and the one that drafts have no token in common: name another one as drafts")
    return out


class DraftingSession(BackboneSession):
    """A session of the second model about canvases of the model. Its cache goes back with the text: rows of a draft
    that was rejected are discarded, as any that the canvas has not.
    """

    def __init__(self, model: DraftingModel, cache: KeyCache) -> None:
        super().__init__(model.backend.config, cache)
        self.model = model
        self._rules: tuple[Rules, Rules] | None = None

    def missing(self, canvas: Canvas, start: int) -> int:
        """How many rows it has to compute before it can draft the position `start`."""
        assert self._cache is not None
        held, text = self._held_tokens[: self._cache.length], self.model.known[canvas.tokens[:start]]
        num = min(len(held), start)
        differs = held[:num] != text[:num]
        return start - (int(differs.argmax()) if differs.any() else num)

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        """Draws, or logits (1, V), of the first open position; minus infinity for tokens that are not shared."""
        if isinstance(ask, Draws):
            return (yield from super().ask(canvas, positions, replace(ask, rules=self._own_rules(ask.rules))))
        answer = yield from super().ask(canvas, positions, ask)
        assert answer.logits is not None
        shape = len(answer.logits), len(self.model.known)
        logits, num = np.full(shape, -np.inf, dtype=np.float32), min(shape[1], answer.logits.shape[1])
        logits[:, :num] = np.where(self.model.shared[:num], answer.logits[:, :num], -np.inf)
        return Answer(logits=logits)

    def _own_rules(self, rules: Rules) -> Rules:
        """The rules without the tokens that the second model does not have."""
        if self._rules is None or self._rules[0] is not rules:
            num = self.config.vocab_size
            bias = {token: value for token, value in rules.logit_bias.items() if token < num}
            allowed = None if rules.allowed is None else rules.allowed[rules.allowed < num]
            own = replace(rules, logit_bias=bias, bans=rules.bans[rules.bans[:, 0] < num], allowed=allowed)
            self._rules = rules, own
        return self._rules[1]

    def _forward(self, plan: RowPlan, clean: np.ndarray, *rest: Any, **named: Any) -> Forward:
        forward = super()._forward(plan, self.model.known[clean], *rest, **named)
        forward.second = True
        return forward


class TwoBackends:
    """A `Backend` that has the forwards of a second model computed by its own, and times the forwards of both."""

    def __init__(self, backend: Backend, second: Backend, times: tuple[ForwardTimes, ForwardTimes]) -> None:
        self.config, self._backends, self._times = backend.config, (backend, second), times

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        """One answer for each; see `Backend`."""
        owners = [isinstance(one, Forward) and one.second for one in batch]
        parts = [[one for one, own in zip(batch, owners, strict=True) if own is second] for second in (False, True)]
        answers = [iter(self._compute(number, part)) for number, part in enumerate(parts)]
        return [next(answers[own]) for own in owners]

    def _compute(self, number: int, batch: list[Forward | DraftStep]) -> list[Answer]:
        if not batch:
            return []
        clock = self._times[number].clock
        started = clock()
        answers = self._backends[number].forward(batch)
        rows = [(len(one.tokens), len(one.wanted)) for one in batch if isinstance(one, Forward)]
        if len(rows) == len(batch):
            num, drawn = np.sum(rows, axis=0).tolist()
            self._times[number].took(num, clock() - started, prompt=2 * drawn < num)
        return answers

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """An empty cache of the model; see `Backend`."""
        return self._backends[0].cache(capacity, int8=int8)


class ForwardTimes:
    """What forwards of one model take, by their rows: as they were measured first, and as they are now."""

    def __init__(self, clock: Clock = time.thread_time) -> None:
        self.clock = clock
        self._seen: dict[int, deque[float]] = {}
        self._curve: np.ndarray | None = None
        self._row: float | None = None

    def measure(self, backend: Backend) -> None:
        """Time forwards of a few numbers of rows, and of a prompt."""
        longest = min(PROMPT, backend.config.max_positions)
        cache = backend.cache(longest)
        for rows in (*TIMED_ROWS, longest):
            cache.truncate(0)
            positions = np.arange(rows)
            layout = Layout(positions, np.arange(1, rows + 1, dtype=np.int32), rows)
            wanted = np.arange(0 if rows < longest else rows - 1, rows, dtype=np.int32)
            ask = Draws(Rules(), positions[wanted] + 1)
            tokens = np.full(rows, backend.config.eos_id)
            started = self.clock()
            backend.forward([Forward(tokens, layout, cache, wanted, ask)])
            self.took(rows, self.clock() - started, rows == longest)
        cache.free()

    def took(self, rows: int, seconds: float, prompt: bool = False) -> None:
        """A forward of so many rows was computed. prompt: few of them were drawn from."""
        if prompt or rows > MOST:
            if self._row is None or rows >= MOST:
                self._row = seconds / rows if self._row is None else (self._row + seconds / rows) / 2
            return
        self._seen.setdefault(rows, deque(maxlen=KEPT)).append(seconds)
        self._curve = None

    def curve(self) -> np.ndarray:
        """Seconds of forwards of 0, 1, ..., MOST rows, float64, which grow."""
        if self._curve is None:
            self._curve = curve_of({rows: median(seen) for rows, seen in self._seen.items()})
        return self._curve

    def prompt_row(self) -> float:
        """Seconds of a row of a prompt."""
        assert self._row is not None
        return self._row


def curve_of(seen: dict[int, float]) -> np.ndarray:
    """Times of 0, ..., MOST rows through those that were measured, one row's among them, and straight on beyond."""
    rows = np.array([0, *sorted(seen)])
    times = np.maximum.accumulate([0.0, *(seen[one] for one in rows[1:].tolist())])
    each = (times[-1] - times[1]) / max(1, rows[-1] - 1)
    last = times[-1] + each * (MOST - rows[-1])
    out: np.ndarray = np.interp(np.arange(MOST + 1), [*rows, MOST + 1e-9], [*times, last])
    return out
