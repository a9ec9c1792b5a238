"""Weights of logits: for each class of tokens and each bundle of classes, the highest token and the sum.

Work on tokens is done in the precision of the logits, all that follows in float64.

Letters: A wanted positions, P positions of a span, C classes, S classes of all bundles, B bundles, V vocabulary.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from daguerre.sampling.constraints.arrays import ranges
from daguerre.sampling.constraints.tokens import Pairs, TokenAutomaton

CACHED = 1 << 16
"""Bytes of rows that are worked on at a time, in one buffer: new memory is expensive."""
TINY = 1e-30
"""Below it a sum of float32 may have lost small terms."""


class Weights:
    """Log-probabilities (A, V), or logits, over a temperature: nothing depends on their sum.

    top_A    the highest of each row
    sum_AC   the probability of each class, divided by that of the row's likeliest token; float64
    total_A  the log of the sum of all tokens' probabilities: 0 for log-probabilities, but for rounding; float64
    most_AC  with `best`, the highest of each class, as given
    exp_AV   without it, the probability of each token of `automaton.order`, divided likewise
    """

    def __init__(
        self, logp_AV: np.ndarray, automaton: TokenAutomaton, temperature: float = 1.0, best: bool = True
    ) -> None:
        self.logp_AV, self.automaton, self.temperature = logp_AV, automaton, logp_AV.dtype.type(temperature)
        top_A = logp_AV.max(axis=1)
        self.top_A = np.where(top_A == -np.inf, 0, top_A).astype(logp_AV.dtype)
        (num_rows, vocabulary), num_classes = logp_AV.shape, automaton.num_classes
        self.most_AC = np.empty((num_rows if best else 0, num_classes), dtype=logp_AV.dtype)
        self.sum_AC, sum_A = np.empty((num_rows, num_classes)), np.empty(num_rows)
        first = automaton.first_token
        size = max(1, CACHED // (vocabulary * logp_AV.itemsize))
        self.exp_AV = np.empty((size if best else num_rows, vocabulary), dtype=logp_AV.dtype)
        for start in range(0, num_rows, size):
            rows = slice(start, min(start + size, num_rows))
            held = self.exp_AV[: rows.stop - start] if best else self.exp_AV[rows]
            logp_AV[rows].take(automaton.order, axis=1, out=held, mode="clip")
            if best:
                np.maximum.reduceat(held[:, : first[-1]], first[:-1], axis=1, out=self.most_AC[rows])
            np.exp(self.relative(held, rows), out=held)
            self.sum_AC[rows] = np.add.reduceat(held[:, : first[-1]], first[:-1], axis=1)
            sum_A[rows] = held[:, first[-1] :].sum(axis=1)
        with np.errstate(divide="ignore"):
            self.total_A = np.log(sum_A + self.sum_AC.sum(axis=1)) + self.top_A / np.float64(self.temperature)
        self.faint = np.nonzero(self.sum_AC < TINY)
        if len(self.faint[0]):  # relative to the row's likeliest token these vanish: they need a separate scale
            self._faint_logs = self._by_itself(*self.faint)
            self.sum_AC[self.faint] = np.exp(self._faint_logs)

    @cached_property
    def best_AC(self) -> np.ndarray:
        """The log-probability of the likeliest token of each class, less that of the row's likeliest; float64."""
        return np.asarray((self.most_AC - self.top_A[:, None].astype(np.float64)) / self.temperature)

    @cached_property
    def all_AC(self) -> np.ndarray:
        """The logarithms of `sum_AC`, also of sums that underflow."""
        with np.errstate(divide="ignore"):
            out = np.log(self.sum_AC)
        if len(self.faint[0]):
            out[self.faint] = self._faint_logs
        return out

    def of_class(self, i: int, cls: int) -> np.ndarray:
        """The weights of a class's tokens in a row, in their order, up to a common factor."""
        first = self.automaton.first_token
        if len(self.most_AC) == 0 and self.sum_AC[i, cls] >= TINY:
            return np.asarray(self.exp_AV[i, first[cls] : first[cls + 1]])
        logs = self.logp_AV[i].take(self.automaton.tokens_of(cls))
        logs -= logs.max()
        return np.asarray(np.exp(logs / self.temperature))

    def relative(self, logp: np.ndarray, rows: slice | int) -> np.ndarray:
        """Log-probabilities of some rows less the highest of each row, over the temperature; changed in place."""
        logp -= self.top_A[rows, None] if isinstance(rows, slice) else self.top_A[rows]
        if self.temperature != 1:
            logp /= self.temperature
        return logp

    def _by_itself(self, rows: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """The logs of some entries of `sum_AC`, summed without the rest of their rows."""
        first = self.automaton.first_token
        counts = first[classes + 1] - first[classes]
        tokens = self.automaton.order[ranges(first[classes], first[classes + 1])]
        held = self.logp_AV[rows.repeat(counts), tokens].astype(np.float64) - self.top_A[rows].repeat(counts)
        held /= self.temperature
        return np.asarray(np.logaddexp.reduceat(held, np.cumsum(counts) - counts))


def best_of_bundles(scores_PC: np.ndarray, pairs: Pairs) -> np.ndarray:
    """(P, B): the highest score of a class of each bundle."""
    return np.maximum.reduceat(scores_PC.take(pairs.classes, axis=1), pairs.starts[:-1], axis=1)


def sum_of_bundles(weights_PC: np.ndarray, pairs: Pairs) -> np.ndarray:
    """(P, B): the sum over each bundle."""
    return np.add.reduceat(weights_PC.take(pairs.classes, axis=1), pairs.starts[:-1], axis=1)


def log_sum_of_bundles(scores_PC: np.ndarray, pairs: Pairs) -> np.ndarray:
    """(P, B): the log of the sum of exponentials over each bundle."""
    return np.asarray(np.logaddexp.reduceat(scores_PC.take(pairs.classes, axis=1), pairs.starts[:-1], axis=1))
