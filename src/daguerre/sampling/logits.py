"""From logits to proposals: the law that a token is drawn from, and the draw.

Order: bias, then the model's own probabilities (temperature 1, full vocabulary: what policies call confidence), then
temperature, top-k, top-p, and the draw by inverse distribution function. All in float64, nothing in place; but where
nothing is drawn, at temperature 0, and within a constraint, in the float32 that logits come in, and without a copy.

Letters: A asked positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from daguerre.errors import InputError

CACHED = 1 << 17
"""Numbers that are worked on at a time: half a megabyte in float32."""


@dataclass(frozen=True, eq=False)
class Proposals:
    """A token for each asked position. All arrays (A,), positions ascending.

    `probabilities` are of the proposed tokens at temperature 1 over the full vocabulary; `logits` (A, V), after bias
    and bans, are what they came from. `marginals` are the probabilities given a constraint; None where there is none.
    """

    positions: np.ndarray
    tokens: np.ndarray
    probabilities: np.ndarray
    logits: np.ndarray
    marginals: np.ndarray | None = None

    @property
    def confidence(self) -> np.ndarray:
        """What policies rank by (A,): the probabilities, given the constraint where there is one."""
        return self.probabilities if self.marginals is None else self.marginals

    def __len__(self) -> int:
        return len(self.positions)

    @staticmethod
    def join(parts: Sequence[Proposals]) -> Proposals:
        """All of `parts`, made without a constraint, one behind the other."""
        names = ("positions", "tokens", "probabilities", "logits")
        return Proposals(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def keep(self, kept: np.ndarray) -> Proposals:
        """Only the proposals where the boolean `kept` (A,) is True."""
        if kept.all():
            return self
        marginals = None if self.marginals is None else self.marginals[kept]
        return Proposals(
            self.positions[kept], self.tokens[kept], self.probabilities[kept], self.logits[kept], marginals
        )


@dataclass(frozen=True)
class Law:
    """How a token is drawn. temperature 0 is the most likely token; top_p 1 and top_k None cut nothing."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature must be a number from 0 up, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k must be 1 or more, or None for no cut, not {self.top_k}")
        for token, bias in (self.logit_bias or {}).items():
            if math.isnan(bias) or bias == math.inf:
                raise InputError(f"logit_bias of token {token} must be a number or minus infinity, not {bias}")


def biased(logits: np.ndarray, law: Law, precise: bool = True) -> np.ndarray:
    """Logits (A, V) with the law's bias added: float64 ones, or at temperature 0, or if not `precise`, those given,
    changed in place.
    """
    out = logits if law.temperature == 0 or not precise else logits.astype(np.float64)
    for token, bias in (law.logit_bias or {}).items():
        out[:, token] += bias
    return out


def softmax(logits: np.ndarray) -> np.ndarray:
    """Float64 probabilities (A, V) of logits. InputError where no token is left."""
    logits = logits.astype(np.float64, copy=False)
    top = logits.max(axis=-1, keepdims=True)
    _check_any_left(top)
    out = np.exp(logits - top)
    return out / out.sum(axis=-1, keepdims=True)


def most_likely(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most likely tokens, int64 (A,), and their probabilities, float64 (A,), in the precision of logits (A, V).

    Exponentials are made for a few rows at a time, which stay in the processor's cache: a row's are the same alone.
    """
    num_rows, vocabulary = logits.shape
    tokens = logits.argmax(axis=-1)
    top = logits[np.arange(num_rows), tokens]
    _check_any_left(top)
    total = np.empty(num_rows)
    size = max(1, CACHED // vocabulary)
    for start in range(0, num_rows, size):
        rows = slice(start, start + size)
        weights = logits[rows] - top[rows, None]
        total[rows] = np.exp(weights, out=weights).sum(axis=-1)
    return tokens, 1 / total


def _check_any_left(top: np.ndarray) -> None:
    if not np.isfinite(top).all():
        raise InputError("no token is left to draw at some position: loosen logit_bias or min_tokens")


def tempered(logits: np.ndarray, law: Law) -> np.ndarray:
    """Probabilities (A, V) of the law: temperature, then top-k, then top-p; at 0 all on the most likely token.

    Equal logits at top-k's edge are kept or cut by token id, lowest first. Top-p keeps the fewest most likely tokens
    whose probabilities, after top-k, sum to at least p.
    """
    if law.temperature == 0:
        return np.eye(logits.shape[-1])[most_likely(logits)[0]]
    probs = softmax(logits / law.temperature)
    if law.top_k is None and law.top_p == 1.0:
        return probs
    order = np.argsort(-probs, axis=-1, kind="stable")
    ranked = np.take_along_axis(probs, order, axis=-1)
    if law.top_k is not None:
        ranked[:, law.top_k :] = 0.0
        ranked /= ranked.sum(axis=-1, keepdims=True)
    if law.top_p < 1.0:
        before = np.cumsum(ranked, axis=-1) - ranked
        ranked[before >= law.top_p] = 0.0
        ranked /= ranked.sum(axis=-1, keepdims=True)
    out = np.zeros_like(probs)
    np.put_along_axis(out, order, ranked, axis=-1)
    return out


def inverse_cdf(probs: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The first token whose cumulative probability exceeds u, int64 (A,), for probs (A, V) and u (A,) in [0, 1)."""
    total = np.cumsum(probs, axis=-1)
    tokens = (total <= (u * total[:, -1])[:, None]).sum(axis=-1)
    return tokens.astype(np.int64)


def propose(positions: np.ndarray, logits: np.ndarray, law: Law, u: np.ndarray) -> Proposals:
    """Draw a token for each position from logits (A, V) that `biased` gave, with bans; u (A,) decides."""
    if law.temperature == 0:
        return Proposals(positions, *most_likely(logits), logits)
    probs = softmax(logits)
    tokens = inverse_cdf(tempered(logits, law), u)
    return Proposals(positions, tokens, probs[np.arange(len(tokens)), tokens], logits)
