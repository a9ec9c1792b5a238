"""How published models of full context are decoded, restated from their papers and the descriptions of their scripts.

Each takes `logits_of`, from the tokens of a canvas (L,) to the logits of the token at each position, (L, V), and a
canvas whose positions from `start` on are masks. These are open at first; the scripts take every mask for an open
position, so they write over a mask in the prompt. Random numbers are given: `Numbers.exponential` (L, V) and
`Numbers.uniform` (L,), of each forward.

Letters: L positions, V vocabulary, N open positions, S steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

LogitsOf = Callable[[np.ndarray], np.ndarray]


class Numbers(Protocol):
    """The random numbers of a decode, by the number of the forward."""

    def exponential(self, forward: int) -> np.ndarray: ...

    def uniform(self, forward: int) -> np.ndarray: ...


@dataclass
class Decoded:
    """The canvas, what is open of it, and the positions that each forward committed, where any."""

    tokens: np.ndarray
    open: np.ndarray
    commits: list[list[int]] = field(default_factory=list)

    @classmethod
    def begin(cls, canvas: np.ndarray, start: int) -> Decoded:
        return cls(canvas.copy(), np.arange(len(canvas)) >= start)

    def among(self, positions: np.ndarray) -> np.ndarray:
        """Those of the positions that are open."""
        return positions[self.open[positions]]

    def commit(self, positions: np.ndarray, tokens: np.ndarray) -> None:
        self.tokens[positions] = tokens[positions]
        self.open[positions] = False
        if len(positions):
            self.commits.append(sorted(positions.tolist()))


def probabilities(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def highest(scores: np.ndarray, among: np.ndarray, count: int) -> np.ndarray:
    """The `count` positions of highest score among (N,), the leftmost of equals."""
    return among[np.argsort(-scores[among], kind="stable")[:count]]


# ---- LLaDA ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LLaDA:
    """`generate` of LLaDA (arXiv 2502.09992, algorithms 4 and 5): blocks from the left, each in `steps`
    steps, whose counts differ by one at most, larger ones first.

    remasking  "low_confidence": the likeliest tokens stay; "random": any do
    cfg_scale  s: un + (s + 1)(cond - un), where the prompt of `un` is masked
    never      tokens whose logits are minus infinity (`logits_eos_inf`)
    last       tokens whose confidence is 0 (`confidence_eos_eot_inf`)
    """

    mask_id: int
    block_length: int
    steps: int
    temperature: float = 0.0
    remasking: str = "low_confidence"
    cfg_scale: float = 0.0
    never: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def decode(self, logits_of: LogitsOf, canvas: np.ndarray, start: int, numbers: Numbers | None = None) -> Decoded:
        out, forward = Decoded.begin(canvas, start), 0
        for first in range(start, len(canvas), self.block_length):
            block = np.arange(first, min(first + self.block_length, len(canvas)))
            counts = [len(part) for part in np.array_split(block, self.steps)]
            for count in counts:
                tokens, confidence = self._predict(logits_of, out.tokens, start, numbers, forward)
                out.commit(highest(confidence, out.among(block), count), tokens)
                forward += 1
        return out

    def _predict(
        self, logits_of: LogitsOf, canvas: np.ndarray, start: int, numbers: Numbers | None, forward: int
    ) -> tuple[np.ndarray, np.ndarray]:
        logits = logits_of(canvas)
        if self.cfg_scale:
            hidden = canvas.copy()
            hidden[:start] = self.mask_id
            against = logits_of(hidden)
            known = np.isfinite(logits)
            logits[known] = against[known] + (self.cfg_scale + 1) * (logits[known] - against[known])
        logits[:, list(self.never)] = -np.inf
        tokens = logits.argmax(-1)
        if self.temperature:
            assert numbers is not None
            gumbel = -np.log(numbers.exponential(forward))
            tokens = (logits + self.temperature * gumbel).argmax(-1)
        if self.remasking == "random":
            assert numbers is not None
            confidence = numbers.uniform(forward)
        else:
            confidence = np.take_along_axis(probabilities(logits), tokens[:, None], -1)[:, 0]
        return tokens, np.where(np.isin(tokens, self.last), 0.0, confidence)


def fast_dllm(
    logits_of: LogitsOf,
    canvas: np.ndarray,
    start: int,
    block_length: int,
    *,
    threshold: float | None = None,
    factor: float = 0.0,
) -> Decoded:
    """Fast-dLLM without its caches (arXiv 2505.22618): in each block, until it is full, commit all whose confidence is
    `threshold` or more; or, with c_1 >= c_2 >= ..., the longest run of them with c_n >= 1 - factor / (n + 1). In either
    case at least the likeliest.
    """
    out = Decoded.begin(canvas, start)
    for first in range(start, len(canvas), block_length):
        block = np.arange(first, min(first + block_length, len(canvas)))
        while (still := out.among(block)).size:
            probs = probabilities(logits_of(out.tokens))
            best = probs.max(-1)
            ranked, count = highest(best, still, len(still)), 1
            for n, position in enumerate(ranked[1:], start=2):
                if best[position] < (1 - factor / (n + 1) if threshold is None else threshold):
                    break
                count = n
            if threshold is None and best[ranked[0]] < 1 - factor / 2:
                count = 1
            out.commit(ranked[:count], probs.argmax(-1))
    return out


# ---- Dream ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Dream:
    """`diffusion_generate` of Dream (arXiv 2508.15487): t falls from 1 to 0.001 in S equal steps, and step s commits
    floor(N (1 - t_{s+1} / t_s)) positions, the last one all.

    alg  "origin": each position with that chance; else by rank: "maskgit_plus" the probability of the token,
         "topk_margin" the highest less the second, "entropy" minus the entropy, of the distributions after
         temperature, top-p and top-k
    alg_temp  above 0: positions are drawn one by one, without replacement, with chances exp(rank / alg_temp)
    """

    steps: int
    alg: str = "entropy"
    alg_temp: float = 0.0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None

    def decode(self, logits_of: LogitsOf, canvas: np.ndarray, start: int, numbers: Numbers | None = None) -> Decoded:
        out, times = Decoded.begin(canvas, start), np.linspace(1, 1e-3, self.steps + 1)
        for step in range(self.steps):
            still = np.flatnonzero(out.open)
            share = 1 - times[step + 1] / times[step] if step + 1 < self.steps else 1.0
            tokens, rank = self._predict(logits_of(out.tokens), numbers, len(out.commits))
            if self.alg == "origin":
                assert numbers is not None
                chosen = still[numbers.uniform(step)[still] < share]
            else:
                chosen = self._chosen(rank, still, int(len(still) * share), numbers, len(out.commits))
            out.commit(chosen, tokens)
        return out

    def _chosen(
        self, rank: np.ndarray, still: np.ndarray, count: int, numbers: Numbers | None, forward: int
    ) -> np.ndarray:
        if not self.alg_temp:
            return highest(rank, still, count)
        assert numbers is not None
        clocks = -np.log(numbers.uniform(forward))  # the first of independent clocks of these rates, then the next
        rates = np.full(len(rank), 1e-300)
        rates[still] = probabilities(rank[still] / self.alg_temp)
        return highest(-clocks / rates, still, count)

    def _predict(self, logits: np.ndarray, numbers: Numbers | None, forward: int) -> tuple[np.ndarray, np.ndarray]:
        logits = logits / (self.temperature or 1.0)
        if self.top_p < 1:
            ranked = -np.sort(-logits, axis=-1)
            reached = probabilities(ranked).cumsum(-1) <= self.top_p
            last = np.take_along_axis(ranked, reached.sum(-1, keepdims=True), -1)
            logits = np.where(logits < last, -np.inf, logits)
        if self.top_k is not None:
            logits = np.where(logits < -np.sort(-logits, axis=-1)[:, [self.top_k - 1]], -np.inf, logits)
        probs = probabilities(logits)
        tokens = logits.argmax(-1)
        if self.temperature:
            assert numbers is not None
            tokens = (logits - np.log(numbers.exponential(forward))).argmax(-1)
        if self.alg == "topk_margin":
            first, second = -np.sort(-probs, axis=-1)[:, :2].T
            return tokens, first - second
        if self.alg == "entropy":
            return tokens, (probs * np.log(probs + 1e-10)).sum(-1)
        return tokens, np.take_along_axis(probs, tokens[:, None], -1)[:, 0]


# ---- DiffuLLaMA -----------------------------------------------------------------------------------------------------


def diffullama(
    logits_of: LogitsOf, canvas: np.ndarray, start: int, steps: int, temperature: float, numbers: Numbers
) -> Decoded:
    """The sampler of DiffuLLaMA and DiffuGPT (arXiv 2410.17891): S forwards; between two of them each open position
    keeps its token with chance 1 / S, then 1 / (S - 1), and so on; after the last forward all do.
    """
    out = Decoded.begin(canvas, start)
    for step in range(steps):
        still = np.flatnonzero(out.open)
        logits = logits_of(out.tokens)
        tokens = (logits / temperature - np.log(numbers.exponential(len(out.commits)))).argmax(-1)
        out.commit(still[numbers.uniform(step)[still] <= 1 / (steps - step)], tokens)
    return out
