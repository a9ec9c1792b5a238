"""From logits to proposals: the distribution that a token is drawn from, and the draw. The reference, in NumPy.

Backends draw for whole batches (`models.forward.Draws`) and are tested equal to this. Constraints, guidance and scorers
use it directly.

Order: bias, then probabilities at temperature 1 over the full vocabulary (what policies call confidence), then
temperature, top-k, top-p, min-p, and the draw. All in float64, and nothing in place; but at temperature 0, and within a
constraint, in the float32 of the logits, and without a copy.

A draw is a race of exponential clocks: token v has a number E_v, and argmin E_v / p_v wins, which has probability p_v.
(Its logarithm is the Gumbel-max trick: Gumbel 1954; Maddison et al., arXiv 1411.0030.) Two distributions that draw with
the same numbers often draw the same token, with probability sum_v 1 / sum_w max(p_w / p_v, q_w / q_v): this is how a
draft at temperature 1 agrees with the text (Daliri, Musco and Suresh, arXiv 2408.07978).

Letters: A wanted positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from daguerre.errors import InputError
from daguerre.kinds import NOT_NEGATIVE, PROBABILITY, SHARE, Biases, Whole, check_fields, option

CACHED = 1 << 17
"""Numbers that are processed at a time: half a megabyte in float32."""
DRAWN = 1 << 22
"""Numbers that a draw works on at a time: 32 megabytes in float64, of which it needs several copies."""


def chunks(num_rows: int, vocabulary: int) -> list[slice]:
    """Runs of rows (A, V) that draws work on one after the other. The numbers of a row do not depend on them."""
    size = max(1, DRAWN // vocabulary)
    return [slice(start, start + size) for start in range(0, max(1, num_rows), size)]


@dataclass(eq=False, slots=True)
class Proposals:
    """A token for each wanted position. All arrays (A,), positions ascending.

    probabilities     of the proposed tokens at temperature 1 over the full vocabulary, after bias and bans
    marginals         what policies rank by in place of the probabilities: those given a constraint, or those of the
                      distributions that tokens are drawn from (`propose`); None without either
    entropies         of the distributions at temperature 1, in nats; None unless a policy reads them
    best              (A, n): probabilities of the n likeliest tokens; None unless a policy reads them
    evidence          (A, ...): the head's evidence for each token; None for the vocabulary projection
    waits             bool: proposals that are committed after all others; None for none
    """

    positions: np.ndarray
    tokens: np.ndarray
    probabilities: np.ndarray
    marginals: np.ndarray | None = None
    entropies: np.ndarray | None = None
    best: np.ndarray | None = None
    evidence: np.ndarray | None = None
    waits: np.ndarray | None = None

    @property
    def confidence(self) -> np.ndarray:
        """The numbers that policies rank by (A,): the probabilities, or the marginals where there are any."""
        return self.probabilities if self.marginals is None else self.marginals

    def __len__(self) -> int:
        return len(self.positions)

    @staticmethod
    def join(parts: Sequence[Proposals]) -> Proposals:
        """The proposals of all `parts`, in order; none has a constraint."""
        if len(parts) == 1:
            return parts[0]

        def joined(name: str) -> np.ndarray | None:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else np.concatenate(values)

        names = ("positions", "tokens", "probabilities", "marginals", "entropies", "best", "evidence")
        return Proposals(*(joined(name) for name in names))  # type: ignore[arg-type]

    @property
    def first(self) -> Proposals:
        """The proposals that do not wait; all where all do."""
        return self if self.waits is None or self.waits.all() else self.keep(~self.waits)

    def keep(self, kept: np.ndarray) -> Proposals:
        """Only the proposals where the boolean `kept` (A,) is True."""
        values = (getattr(self, name) for name in self.__slots__)
        return Proposals(*(None if value is None else value[kept] for value in values))  # type: ignore[arg-type]


@dataclass(frozen=True)
class SamplingParams:
    """How a token is drawn. A temperature of 0 takes the most likely token; top_p 1, top_k None and min_p 0 cut
    nothing.
    """

    temperature: float = option(
        0.0, NOT_NEGATIVE, "Temperature of the draws; 0 takes the most likely token.", common=True
    )
    top_p: float = option(1.0, SHARE)
    top_k: int | None = option(None, Whole(low=1, none=True))
    logit_bias: Mapping[int, float] | None = option(
        None, Biases(none=True), "Numbers added to the logits of tokens, by token id. Minus infinity bans one."
    )
    min_p: float = option(
        0.0,
        PROBABILITY,
        "Draw no token less likely than this share of the likeliest, after top_k and top_p.",
    )

    def __post_init__(self) -> None:
        check_fields(self)


def biased(logits: np.ndarray, params: SamplingParams, precise: bool = True) -> np.ndarray:
    """Logits (A, V) with the bias added, in float64; at temperature 0, or if not `precise`, the given array, changed in
    place.
    """
    out = logits if params.temperature == 0 or not precise else logits.astype(np.float64)
    for token, bias in (params.logit_bias or {}).items():
        out[:, token] += bias
    return out


def softmax(logits: np.ndarray) -> np.ndarray:
    """Float64 probabilities (A, V) of logits. InputError where no token is left."""
    logits = logits.astype(np.float64, copy=False)
    top = logits.max(axis=-1, keepdims=True)
    _check_any_left(top)
    out = np.exp(logits - top)
    return out / out.sum(axis=-1, keepdims=True)


def entropies(probs: np.ndarray) -> np.ndarray:
    """H = -sum_v p_v log p_v in nats, float64 (A,), of probabilities (A, V)."""
    return -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(axis=-1)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Float64 log-probabilities (A, V) of logits that are not all minus infinity."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def most_likely(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most likely tokens, int64 (A,), and their probabilities, float64 (A,), in the precision of logits (A, V).

    A few rows are processed at a time, which fit into the processor's cache; the numbers of a row do not depend on it.
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
        raise no_token_left()


def no_token_left() -> InputError:
    """The error where everything is banned."""
    return InputError("no token is left to draw at some position: loosen logit_bias or min_tokens")


def tempered(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities (A, V) after temperature, top-k, top-p and min-p, in this order; at temperature 0 the most likely
    token's is 1.

    Of equal logits at the edge of top-k the lowest token ids are kept. Top-p keeps the fewest most likely tokens whose
    probabilities, after top-k, sum to at least p. Min-p keeps tokens at least p times as likely as the likeliest
    (Nguyen et al., arXiv 2407.01082).
    """
    if params.temperature == 0:
        return np.eye(logits.shape[-1])[most_likely(logits)[0]]
    probs = softmax(logits / params.temperature)
    if params.top_k is None and params.top_p == 1.0:
        return likely_enough(probs, params.min_p)
    order = np.argsort(-probs, axis=-1, kind="stable")
    ranked = np.take_along_axis(probs, order, axis=-1)
    if params.top_k is not None:
        ranked[:, params.top_k :] = 0.0
        ranked /= ranked.sum(axis=-1, keepdims=True)
    if params.top_p < 1.0:
        before = np.cumsum(ranked, axis=-1) - ranked
        ranked[before >= params.top_p] = 0.0
        ranked /= ranked.sum(axis=-1, keepdims=True)
    ranked = likely_enough(ranked, params.min_p)
    out = np.zeros_like(probs)
    np.put_along_axis(out, order, ranked, axis=-1)
    return out


def likely_enough(probs: np.ndarray, min_p: float) -> np.ndarray:
    """The probabilities (A, V) of tokens at least `min_p` times as likely as the likeliest, which sum to 1."""
    if not min_p:
        return probs
    kept = np.where(probs >= min_p * probs.max(axis=-1, keepdims=True), probs, 0.0)
    return kept / kept.sum(axis=-1, keepdims=True)


def race(probs: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The winner argmin_v E_v / p_v of each row, int64 (A,), for probs (A, V) and exponential numbers (A, V)."""
    with np.errstate(over="ignore"):  # infinite, as it is for a probability of 0
        return np.divide(noise, probs, out=np.full(probs.shape, np.inf), where=probs > 0).argmin(axis=-1)


def inverse_cdf(probs: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The first token whose cumulative probability exceeds u, int64 (A,), for probs (A, V) and u (A,) in [0, 1)."""
    total = np.cumsum(probs, axis=-1)
    tokens = (total <= (u * total[:, -1])[:, None]).sum(axis=-1)
    return tokens.astype(np.int64)


def propose(
    positions: np.ndarray,
    logits: np.ndarray,
    params: SamplingParams,
    noise: np.ndarray | None = None,
    *,
    entropy: bool = False,
    num_best: int = 0,
    as_drawn: bool = False,
) -> Proposals:
    """Draw a token for each position from logits (A, V), after `biased` and bans, by exponential numbers (A, V), which
    temperature 0 does not need.

    as_drawn: policies rank by the distributions after temperature, top-k and top-p; entropies and best are of these,
    too. At temperature 0 they are those of temperature 1, cut.
    """
    if params.temperature == 0 and not (entropy or num_best or as_drawn):
        return Proposals(positions, *most_likely(logits))
    probs = softmax(logits)
    ranked = tempered(logits, replace(params, temperature=params.temperature or 1.0)) if as_drawn else probs
    if params.temperature == 0:
        tokens, chance = most_likely(logits)
    else:
        assert noise is not None
        tokens = race(ranked if as_drawn else tempered(logits, params), noise)
        chance = probs[np.arange(len(tokens)), tokens]
    return Proposals(
        positions,
        tokens,
        chance,
        ranked[np.arange(len(tokens)), tokens] if as_drawn else None,
        entropies=entropies(ranked) if entropy else None,
        best=-np.sort(-ranked, axis=-1)[:, :num_best] if num_best else None,
    )
