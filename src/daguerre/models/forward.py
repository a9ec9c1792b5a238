"""What a run needs computed, and what it is answered: data that every backend serves.

A run of decoding never calls a model. It yields forwards and is sent their answers; whoever drives it computes them,
alone or together with those of other runs (`Backend.forward`).

Letters: R rows of a forward, M keys that a mask is about, A wanted rows, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from daguerre.models.core.config import ModelConfig


@dataclass(eq=False, slots=True)
class Layout:
    """Who may attend to whom in a forward of one request.

    Its keys are the rows that the cache holds, then its own rows. A row sees a run of them, from begin[r] up to but not
    including end[r]; and of the last M keys those for which its row of `mask` is true.

    position   int64 (R,): places on the canvas
    end        int32 (R,)
    num_clean  the first so many rows are clean: they go into the cache, and see no noisy row; the others are noisy
    begin      int32 (R,); None: 0 for every row
    mask       bool (R, M); None: no row sees more than its run
    """

    position: np.ndarray
    end: np.ndarray
    num_clean: int
    begin: np.ndarray | None = None
    mask: np.ndarray | None = None

    def dense(self, num_cached: int) -> np.ndarray:
        """The same as a boolean (R, num_cached + R) mask: the definition, and what backends without runs use."""
        keys = np.arange(num_cached + len(self.position))
        first = 0 if self.begin is None else self.begin[:, None]
        seen: np.ndarray = (keys >= first) & (keys < self.end[:, None])
        if self.mask is not None and self.mask.shape[1]:
            seen[:, len(keys) - self.mask.shape[1] :] |= self.mask
        return seen


NO_BANS = np.zeros((0, 3), dtype=np.int64)


class Uniform(Protocol):
    """Random numbers that are a function of what they are for (`sampling.random.Counter`)."""

    @property
    def seed(self) -> int: ...

    @property
    def sample(self) -> int: ...

    def uniform(self, purpose: int, positions: np.ndarray, step: int) -> np.ndarray:
        """Numbers on [0, 1), float64 of the shape of `positions`."""


@dataclass(frozen=True, eq=False, slots=True)
class Rules:
    """How tokens are drawn in a forward.

    temperature, top_p, top_k, logit_bias   as in `sampling.logits.SamplingParams`
    bans        int64 (n, 3): a token, and the positions [start, end) at which it is not drawn
    allowed_at  the position at which only `allowed`, int32 (k,), may be drawn; None: there is none
    rng, purpose, step   make the random number of a position; not needed at temperature 0
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bans: np.ndarray = field(default_factory=lambda: NO_BANS)
    allowed_at: int | None = None
    allowed: np.ndarray | None = None
    rng: Uniform | None = None
    purpose: int = 0
    step: int = 0


@dataclass(eq=False, slots=True)
class Hidden:
    """Ask for the hidden states of the wanted rows, float32 (A, D)."""


@dataclass(eq=False, slots=True)
class Logits:
    """Ask for the logits of the wanted rows, float32 (A, V); reserved tokens are minus infinity."""


@dataclass(eq=False, slots=True)
class LogProbs:
    """Ask for log-probabilities of `tokens`, int64 (A,), in nats, float64 (A,)."""

    tokens: np.ndarray


@dataclass(eq=False, slots=True)
class Draws:
    """Ask for a token for each wanted row, drawn by `rules`; `positions`, int64 (A,), are those of the tokens.

    entropy   also the entropy of each distribution at temperature 1, in nats
    num_best  also so many of the likeliest tokens of each
    """

    rules: Rules
    positions: np.ndarray
    entropy: bool = False
    num_best: int = 0


@dataclass(eq=False, slots=True)
class DrawsInTurn:
    """Ask for tokens of consecutive positions, from the left, each drawn once the one before it is (`DraftHead`).

    They end with the first, from the second on, whose probability is below `threshold`.
    """

    rules: Rules
    positions: np.ndarray
    threshold: float = 0.0


@dataclass(eq=False, slots=True)
class Cycle:
    """Ask for a cycle of speculation: verify, draw, accept, draft.

    The first D + 1 wanted rows are clean and have read the first 0, 1, ..., D tokens of `draft`, int64 (D,). A token is
    drawn for each by `rules`. Let j be the first of them that differs from the draft. The masked rows groups[j] up to
    groups[j + 1], counted from the first masked row, then draft the likeliest tokens behind it, one after the other, up
    to the one with which the product of their probabilities falls below `worth`.

    positions  int64 (D + 1,): of the tokens drawn
    groups     int32 (D + 2,)
    """

    rules: Rules
    positions: np.ndarray
    draft: np.ndarray
    groups: np.ndarray
    worth: float


Ask = Hidden | Logits | LogProbs | Draws | DrawsInTurn | Cycle


class KeyCache(Protocol):
    """Keys and values of one request's clean rows, as its backend keeps them."""

    @property
    def length(self) -> int:
        """Rows that forwards read."""

    def truncate(self, length: int) -> None:
        """Forget every row behind the first `length`."""

    def moved(self, by: np.ndarray) -> KeyCache:
        """A copy whose rows stand `by`, int64 (length,), positions further to the right."""


@dataclass(eq=False, slots=True)
class Forward:
    """Rows of one request that are to be computed, and what is asked about some of them.

    tokens  int64 (R,)
    cache   holds earlier clean rows, and gets this forward's; None: nothing is cached
    wanted  int32 (A,): rows of this forward
    level   the noise level, for a model with `time_input`
    """

    tokens: np.ndarray
    layout: Layout
    cache: KeyCache | None
    wanted: np.ndarray
    ask: Ask
    level: float | None = None


@dataclass(eq=False, slots=True)
class DraftStep:
    """One step of the draft head over the hidden state (1, D) of a row, for whoever chooses a draft's tokens himself.

    The answer has the next `hidden` state (1, D), from the token and the `state` (1, D) before it, and its `logits`
    (1, V). Without a state, or a draft head, both are those of the `rows`, of which there may be several, (A, D).
    """

    rows: np.ndarray
    token: int = 0
    state: np.ndarray | None = None


@dataclass(eq=False, slots=True)
class Answer:
    """What was asked for; everything else is None.

    tokens, probabilities, entropies   (A,) int64, float64, float64: of draws; probabilities are at temperature 1, over
                                       the whole vocabulary; a token of -1 says that none was left to draw
    best_tokens, best_probabilities    (A, num_best)
    draft       of a cycle: int64 (d,), the tokens drafted behind those that stand
    evidence    (A, ...): what the head that made the logits says about them
    """

    hidden: np.ndarray | None = None
    logits: np.ndarray | None = None
    log_probs: np.ndarray | None = None
    tokens: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    entropies: np.ndarray | None = None
    best_tokens: np.ndarray | None = None
    best_probabilities: np.ndarray | None = None
    draft: np.ndarray | None = None
    evidence: np.ndarray | None = None


class Head(Protocol):
    """What turns hidden states into logits, where it is not the model's own vocabulary projection."""

    def __call__(self, hidden: Any) -> tuple[Any, np.ndarray | None]:
        """Float32 logits (A, V) of hidden states (A, D), both tensors, and evidence for each row, (A, ...) or None."""


class Backend(Protocol):
    """What computes forwards. Safe to use from several threads, each with caches of its own."""

    config: ModelConfig

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        """An answer to each; what stands beside a request changes nothing of its own answer."""

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """An empty cache for one request of at most so many clean rows; with `int8` an approximate one."""
