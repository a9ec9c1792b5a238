"""Requests for computation and their answers: plain data that every backend accepts and returns.

A decoding run never calls a model. It yields forwards and is sent their answers. The code that drives the run computes
them, alone or in one batch with those of other runs (`Backend.forward`).

Letters: R rows of a forward, M keys that a mask covers, A wanted rows, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from daguerre.models.core.config import ModelConfig


@dataclass(eq=False, slots=True)
class Layout:
    """Which keys each row attends to in a forward of one request.

    The keys are the rows in the cache, followed by the rows of this forward. Row r sees the keys from begin[r] up to
    but not including end[r], and those of the last M keys for which its row of `mask` is true.

    position   int64 (R,): positions on the canvas
    end        int32 (R,)
    num_clean  how many rows are clean; they come first and are stored in the cache. They see no noisy row; only those
               that an approximate cache freezes (`models.stale`) see all rows
    begin      int32 (R,); None: 0 for every row
    mask       bool (R, M); None: no row sees keys outside its run
    """

    position: np.ndarray
    end: np.ndarray
    num_clean: int
    begin: np.ndarray | None = None
    mask: np.ndarray | None = None

    def dense(self, num_cached: int) -> np.ndarray:
        """The layout as a boolean (R, num_cached + R) mask: its definition, used by backends without runs."""
        keys = np.arange(num_cached + len(self.position))
        first = 0 if self.begin is None else self.begin[:, None]
        seen: np.ndarray = (keys >= first) & (keys < self.end[:, None])
        if self.mask is not None and self.mask.shape[1]:
            seen[:, len(keys) - self.mask.shape[1] :] |= self.mask
        return seen

    def within(self, window: int, num_cached: int) -> Layout:
        """The layout in a sliding layer: a row sees the keys at the last `window` positions up to its own. Noisy rows
        without a mask are a canvas: they see one another, and the clean keys that a clean row at the first of their
        positions would see. The clean rows, those in the cache too, are one run from position 0 on.
        """
        place, mask, first = self.position, self.mask, num_cached + self.num_clean
        if mask is None:
            place = np.minimum(np.arange(num_cached, num_cached + len(place)), first)
        else:
            keys = np.concatenate([np.arange(num_cached), place])[num_cached + len(place) - mask.shape[1] :]
            mask = mask & (keys > place[:, None] - window)
        begin = np.maximum(place + (1 - window), 0 if self.begin is None else self.begin)
        return Layout(self.position, self.end, self.num_clean, begin.astype(np.int32), mask)


NO_BANS = np.zeros((0, 3), dtype=np.int64)


class RandomNumbers(Protocol):
    """Counter-based random numbers, a function of their keys alone (`sampling.random.Counter`)."""

    @property
    def seed(self) -> int: ...

    @property
    def sample(self) -> int: ...

    def uniform(self, purpose: int, positions: np.ndarray, step: int) -> np.ndarray:
        """Numbers on [0, 1), float64 of the shape of `positions`."""

    def exponential(self, purpose: int, positions: np.ndarray, step: int, vocabulary: int) -> np.ndarray:
        """Exponential numbers of mean 1, float64 (A, V), for each token at each of the positions (A,)."""


@dataclass(frozen=True, eq=False, slots=True)
class Rules:
    """How tokens are drawn in a forward.

    temperature, top_p, top_k, min_p, logit_bias   as in `sampling.logits.SamplingParams`
    bans        int64 (n, 3): a token, and the positions [start, end) at which it may not be drawn
    allowed_at  the position at which only the tokens `allowed`, int32 (k,), may be drawn; None: no such position
    rng, purpose, step   determine the random number of a position; not needed at temperature 0
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bans: np.ndarray = field(default_factory=lambda: NO_BANS)
    allowed_at: int | None = None
    allowed: np.ndarray | None = None
    rng: RandomNumbers | None = None
    purpose: int = 0
    step: int = 0
    min_p: float = 0.0


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
    """Ask for one token for each wanted row, drawn by `rules`; `positions`, int64 (A,), are those of the tokens.

    entropy   also return the entropy of each distribution at temperature 1, in nats
    num_best  how many of the most likely tokens of each distribution to return as well
    """

    rules: Rules
    positions: np.ndarray
    entropy: bool = False
    num_best: int = 0


@dataclass(eq=False, slots=True)
class SequentialDraws:
    """Ask for tokens at consecutive positions, drawn from left to right, each given the one before it (`DraftHead`).

    Drawing stops after a token, other than the first, whose probability is below `threshold`.
    """

    rules: Rules
    positions: np.ndarray
    threshold: float = 0.0


@dataclass(eq=False, slots=True)
class Refinement:
    """Ask for what a sampler needs that draws a whole canvas again in every step (`decoding.modes.renoise`): for each
    wanted row, at the temperature of `rules`, a token, drawn by one uniform number; the most likely token; the entropy;
    and the conditioning of the next forward. `positions`, int64 (A,), are those of the tokens.
    """

    rules: Rules
    positions: np.ndarray


@dataclass(eq=False, slots=True)
class Cycle:
    """Ask for one cycle of speculative decoding: verify, draw, accept, draft.

    The first D + 1 wanted rows are clean and have read the first 0, 1, ..., D tokens of `draft`, int64 (D,). A token is
    drawn for each by `rules`. Let j be the index of the first one that differs from the draft, or D. The masked rows
    from groups[j] up to groups[j + 1], counted from the first masked row, then draft the tokens after it, one by one,
    by the same rules and the same random numbers, until the chance that all are accepted falls below `worth`.

    positions  int64 (D + 1,): positions of the drawn tokens
    groups     int32 (D + 2,): where the masked rows of each j begin, and the end
    """

    rules: Rules
    positions: np.ndarray
    draft: np.ndarray
    groups: np.ndarray
    worth: float


UNLIKELY_ACCEPTED = 0.3
"""How often a drafted token of a small probability is accepted at temperature 1."""


def acceptance_of(probability: float, temperature: float) -> float:
    """The chance that a drafted token of this probability is accepted, for a model that has learned no better: the
    probability at temperature 0, a line through what was measured at 1, and between the two in between.
    """
    return probability + min(temperature, 1.0) * UNLIKELY_ACCEPTED * (1 - probability)


def num_agreed(tokens: np.ndarray, draft: np.ndarray) -> int:
    """The length of the common prefix of a draft (D,) and the drawn tokens (D + 1,)."""
    for place, (drawn, drafted) in enumerate(zip(tokens.tolist(), draft.tolist(), strict=False)):
        if drawn != drafted:
            return place
    return len(draft)


Ask = Hidden | Logits | LogProbs | Draws | SequentialDraws | Refinement | Cycle


class KeyCache(Protocol):
    """Keys and values of one request's clean rows, in the format of its backend."""

    @property
    def length(self) -> int:
        """Number of rows that forwards read."""

    @property
    def kept_from(self) -> int:
        """The first row that all layers have. Those before it are in the layers alone that see everything: sliding
        layers may let go of rows that no later row sees.
        """

    def reaches(self, length: int) -> bool:
        """Whether all that rows after the first `length` see is here."""

    def truncate(self, length: int) -> None:
        """Discard all rows after the first `length`; all rows, unless it reaches so far back."""

    def moved(self, by: np.ndarray) -> KeyCache:
        """A copy whose rows are moved right by `by`, int64 (length,), positions."""

    shares: bool
    """Whether rows that are copied stay in one memory."""

    @property
    def kind(self) -> str:
        """What rows must have in common to be copied from one cache to another."""

    def copy(self, start: int, stop: int) -> list[Any]:
        """The rows from `start` up to `stop`, multiples of `models.core.cache.ROUND`, for `append` of other caches: an
        item for each ROUND of them. Of the last it may have fewer.
        """

    def append(self, rows: list[Any]) -> int:
        """Add such rows after its own, whose number is a multiple of ROUND; `truncate` takes what the last has not.
        Returns how many items it has added: as many of the first ones as possible, so that all keys that later rows see
        are there.
        """

    def free(self) -> None:
        """Discard all rows, and their memory."""


@dataclass(eq=False, slots=True)
class Edit:
    """How concepts change the hidden states h (A, D) of wanted rows before they become logits, J concepts at once:

        h + sum_j (shift_j + scale_j w_j) write_j,   and logits - sum_j ban_j mask_j

    w_j is the weight of concept j in h, 0 where h does not keep it (`models.core.concept_heads`). All else of h stays
    as it is, the residual included.

    It is not changed once it was computed with.

    concepts  int32 (J,): their numbers
    write     float32 (J, D)
    mask      float32 (J, V), 0 or more; None: nothing is banned
    shift, scale, ban   float32 (A, J)
    """

    concepts: np.ndarray
    write: np.ndarray
    mask: np.ndarray | None
    shift: np.ndarray
    scale: np.ndarray
    ban: np.ndarray


@dataclass(eq=False, slots=True)
class Forward:
    """Rows of one request to compute, and what to return for some of them.

    tokens  int64 (R,)
    cache   holds earlier clean rows; the clean rows of this forward are added; None: nothing is cached
    wanted  int32 (A,): indices of the rows that `ask` is about
    level   the noise level, for a model with `time_input`
    drafting  the noisy rows draft: they use the low-rank weights of a model that has them (`ModelConfig.draft_rank`)
    conditioning  of a model with self-conditioning: the answer's `conditioning` of the last forward whose wanted rows
              were these noisy rows; None in a first step. Only the backend that made it can read it
    edit      how the hidden states of the wanted rows are changed before they become logits; not for `Hidden`
    explain   return the hidden states that logits were computed from, before any edit, as evidence
    second    it is of the second model, which drafts (`models.drafting_model`)
    """

    tokens: np.ndarray
    layout: Layout
    cache: KeyCache | None
    wanted: np.ndarray
    ask: Ask
    level: float | None = None
    drafting: bool = False
    conditioning: Any = None
    edit: Edit | None = None
    explain: bool = False
    second: bool = False


@dataclass(eq=False, slots=True)
class DraftStep:
    """One step of the draft head over the hidden state (1, D) of a row, for a caller that chooses the draft's tokens.

    The answer has the next `hidden` state (1, D), computed from the previous token and the previous `state` (1, D), and
    its `logits` (1, V). Without a state, or without a draft head, it has the hidden states and logits of the `rows`
    themselves; there may then be several, (A, D).
    """

    rows: np.ndarray
    token: int = 0
    state: np.ndarray | None = None
    edit: Edit | None = None
    explain: bool = False


@dataclass(eq=False, slots=True)
class Answer:
    """The fields that the `Ask` calls for; all others are None.

    tokens, probabilities, entropies   (A,) int64, float64, float64: of draws; probabilities are at temperature 1, over
                                       the whole vocabulary; token -1: no token was allowed. Entropies are at
                                       temperature 1, those of a refinement at its own
    best_tokens, best_probabilities    (A, num_best); (A, 1) of a refinement
    conditioning  of a refinement: what the model keeps of the distributions, D numbers a row in place of V
    draft       of a cycle: int64 (d,), the tokens drafted after the accepted ones
    acceptance  of a cycle: float64 (d,), the chance that each of these is accepted, given that those before it are
    evidence    (A, ...): what the head returned along with the logits; or, of a forward that explains, float32 (A, D)
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
    acceptance: np.ndarray | None = None
    evidence: np.ndarray | None = None
    conditioning: Any = None


class Head(Protocol):
    """Turns hidden states into logits in place of the model's vocabulary projection."""

    def __call__(self, hidden: Any) -> tuple[Any, np.ndarray | None]:
        """Float32 logits (A, V) of hidden states (A, D), both tensors; and evidence for each row, (A, ...), or None."""


class Backend(Protocol):
    """Computes forwards. Safe to use from several threads, if each uses separate caches."""

    config: ModelConfig

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        """One answer for each; a request's answer does not depend on the other requests of the batch."""

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """An empty cache for one request of at most `capacity` clean rows; with `int8` an approximate one."""
