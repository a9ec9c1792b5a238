"""A span of positions, and the paths through it, in NumPy; the slow reference of native/spans.h, and its stand-in.

Sums over paths are sums of logarithms.

Letters: P positions, Q states, T transitions at a position, B bundles.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from daguerre.sampling.constraints.indices import ranges
from daguerre.sampling.constraints.tokens import StatePairs

BELOW_ONE = float(np.nextafter(1.0, 0.0))


class SlowSpan:
    """`length` positions from `state` on, as `spans.span` has them.

    steps  of each position the transitions (T,), as numbers of pairs, that are reached from the state and from which
           the text after the span completes
    ends   the states that are reached behind the last position, and may be there
    """

    def __init__(self, pairs: StatePairs, state: int, length: int, last: bytes) -> None:
        self.pairs, self.steps, reached = pairs, list[np.ndarray](), np.array([state])
        for _ in range(length):
            self.steps.append(ranges(pairs.first[reached], pairs.first[reached + 1]))
            reached = np.unique(pairs.dst[self.steps[-1]])
        alive = np.frombuffer(last, dtype=bool)
        self.ends = reached[alive[reached]]
        for i in reversed(range(length)):
            self.steps[i] = self.steps[i][alive[pairs.dst[self.steps[i]]]]
            alive = self.marked(pairs.src[self.steps[i]])

    def marked(self, states: np.ndarray) -> np.ndarray:
        """Bool (Q,): these states."""
        out = np.zeros(len(self.pairs.first) - 1, dtype=bool)
        out[states] = True
        return out

    def _before(self, position: int) -> np.ndarray:
        """The states that a text of the span has before a position."""
        return self.pairs.src[self.steps[position]] if position < len(self.steps) else self.ends

    def has(self, position: int, state: int) -> bool:
        return bool((self._before(position) == state).any())

    def forced(self, allowed_PB: np.ndarray, only_2B: np.ndarray, kind: np.ndarray) -> np.ndarray | None:
        """See `CompiledSpan.forced`."""
        pairs, taken, reached = self.pairs, list[np.ndarray](), self.marked(self._before(0))
        for step, allowed_B in zip(self.steps, allowed_PB, strict=True):
            taken.append(step[reached[pairs.src[step]] & (allowed_B[pairs.bundle[step]] > 0)])
            reached = self.marked(pairs.dst[taken[-1]])
        if not reached.any():
            return None
        tokens = np.full(len(taken), -1)
        for i, step in reversed(list(enumerate(taken))):
            whole = step[reached[pairs.dst[step]]]
            reached = self.marked(pairs.src[whole])
            own = only_2B[kind[i]][pairs.bundle[whole]]
            if (own == own[0]).all():
                tokens[i] = max(own[0], -1)
        return tokens


class SlowPaths:
    """Paths from a state before position `first` on, as `spans.CompiledPaths` has them.

    score_PB  the logarithms of the bundles' weights
    best_PB   other scores, by which the best path is chosen; None: the same
    """

    is_exact = True

    def __init__(
        self, span: SlowSpan, first: int, state: int, score_PB: np.ndarray, best_PB: np.ndarray | None
    ) -> None:
        self.span, self.state, self.score_PB = span, state, score_PB
        self.best_PB = score_PB if best_PB is None else best_PB
        pairs = span.pairs
        self.layers = [(pairs.src[step], pairs.dst[step], pairs.bundle[step]) for step in span.steps[first:]]

    def _to(self, score_PB: np.ndarray, combine: np.ufunc) -> list[np.ndarray]:
        """(Q,) before each position and behind the last: the logarithm of all paths to a state, or of the best."""
        out = [np.where(self.span.marked(np.array([self.state])), 0.0, -np.inf)]
        for (src, dst, bundle), score_B in zip(self.layers, score_PB, strict=True):
            out.append(np.full(len(out[0]), -np.inf))
            combine.at(out[-1], dst, out[-2][src] + score_B[bundle])
        return out

    @cached_property
    def _farthest(self) -> list[np.ndarray]:
        """The best path to each state."""
        return self._to(self.best_PB, np.maximum)

    @cached_property
    def _from(self) -> list[np.ndarray]:
        """(Q,) before each position and behind the last: the logarithm of all paths from a state to the end."""
        out = [np.where(self.span.marked(self.span.ends), 0.0, -np.inf)]
        for (src, dst, bundle), score_B in zip(reversed(self.layers), reversed(self.score_PB), strict=True):
            out.append(np.full(len(out[0]), -np.inf))
            np.logaddexp.at(out[-1], src, out[-2][dst] + score_B[bundle])
        return out[::-1]

    @property
    def possible(self) -> bool:
        return bool((self._farthest[-1][self.span.ends] > -np.inf).any())

    def best(self) -> np.ndarray:
        ends, bundles = self.span.ends, list[int]()
        state = ends[self._farthest[-1][ends].argmax()]
        for i, (src, dst, bundle) in reversed(list(enumerate(self.layers))):
            here = np.flatnonzero(dst == state)
            chosen = here[(self._farthest[i][src[here]] + self.best_PB[i][bundle[here]]).argmax()]
            bundles.append(int(bundle[chosen]))
            state = src[chosen]
        return np.array(bundles[::-1], dtype=np.int64)

    def draw(self, u_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state, bundles, rest_P = self.state, list[int](), np.empty(len(self.layers))
        for i, (src, dst, bundle) in enumerate(self.layers):
            here = np.flatnonzero(src == state)
            logs = self.score_PB[i][bundle[here]] + self._from[i + 1][dst[here]] - self._from[i][state]
            picked, rest_P[i] = pick(np.exp(logs), float(u_P[i]))
            bundles.append(int(bundle[here[picked]]))
            state = int(dst[here[picked]])
        return np.array(bundles, dtype=np.int64), rest_P

    def shares(self) -> np.ndarray:
        out_PB, to = np.zeros_like(self.score_PB), self._to(self.score_PB, np.logaddexp)
        for i, (src, dst, bundle) in enumerate(self.layers):
            logs = to[i][src] + self.score_PB[i][bundle] + self._from[i + 1][dst] - self._from[0][self.state]
            out_PB[i] = np.bincount(bundle, np.exp(logs), minlength=self.score_PB.shape[1])
        return out_PB


def pick(weights: np.ndarray, u: float) -> tuple[int, float]:
    """An index drawn by u in [0, 1), never one of weight 0, and the unused part of u, again uniform on [0, 1)."""
    if len(weights) == 1:
        return 0, u
    total = weights.cumsum(dtype=np.float64)
    at = u * float(total[-1])
    chosen = int(total.searchsorted(at, side="right"))
    if chosen == len(total):  # rounded up to the end
        chosen = int(total.searchsorted(total[-1]))
    weight = float(weights[chosen])
    return chosen, min(max((at - float(total[chosen]) + weight) / weight, 0.0), BELOW_ONE)
