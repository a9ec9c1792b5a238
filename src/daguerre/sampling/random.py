"""Random numbers from a counter: each is a function of its key alone.

Each number is keyed by (seed, sample, purpose, position, step), and in a draw by the token, too; hashed by SplitMix64
(Steele, Lea and Flood 2014); and made uniform in float64. There is no state, so neighbors, order and threads cannot
change one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOKEN, ORDER, NOISE, DRAFT = 1, 2, 3, 5
"""Purposes: the token of a position; the order of commits; the noise that a process begins with; the tokens of a draft
that are kept. 4 is not used."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def splitmix(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64, on uint64 arrays; sums wrap modulo 2^64."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX[0]
    x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Counter:
    """The random numbers of one sample of one request."""

    seed: int
    sample: int = 0

    def uniform(self, purpose: int, positions: np.ndarray, step: int) -> np.ndarray:
        """Uniform numbers on [0, 1) with 53 bits, float64 of the shape of `positions`."""
        return (self._hash(purpose, positions, step) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def exponential(self, purpose: int, positions: np.ndarray, step: int, vocabulary: int) -> np.ndarray:
        """Exponential numbers of mean 1, float64 (A, V), one for each token at each of the positions (A,).

        They are -log u, with u uniform on the 2^52 midpoints of (0, 1).
        """
        state = self._hash(purpose, positions, step)[:, None]
        state = splitmix(state ^ splitmix(np.arange(vocabulary, dtype=np.uint64)))
        return -np.log(((state >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)

    def _hash(self, purpose: int, positions: np.ndarray, step: int) -> np.ndarray:
        """Uint64 of the shape of `positions`."""
        keys = [np.array([key], dtype=np.uint64) for key in (self.seed % 2**64, self.sample, purpose, step)]
        state = np.zeros(1, dtype=np.uint64)
        for key in (*keys, positions.astype(np.uint64)):
            state = splitmix(state ^ splitmix(key))
        return state
