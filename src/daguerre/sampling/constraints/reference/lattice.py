"""Paths through an unrolled automaton, with probabilities in proportion to the products of their transitions' weights,
all in logarithms.

Letters: P positions from the first on, N nodes, T transitions at a position or in all, B bundles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daguerre.sampling.constraints.reference.unrolled import Unrolled

BELOW_ONE = float(np.nextafter(1.0, 0.0))


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of path weights over the transitions of all positions.

    onward  (T,): the share of the paths from a transition's first node that take it
    shares  (T,): the probability that a path takes the transition
    """

    onward: np.ndarray
    shares: np.ndarray


class Lattice:
    """Paths from a node before position `first`, on. score_PB are the logarithms of the bundles' weights; best_PB, if
    given, are other scores, by which the best path is chosen.
    """

    is_exact = True
    """As in `spans.Paths`."""

    def __init__(
        self,
        unrolled: Unrolled,
        first: int,
        node: int,
        score_PB: np.ndarray,
        best_PB: np.ndarray | None = None,
    ) -> None:
        self.unrolled, self.node = unrolled, node
        self.layers = unrolled.layers[first:]
        self.score_PB, self.best_PB = score_PB, best_PB
        begin = self.layers[0].transitions.start if self.layers else len(unrolled.code)
        self._code, self._skipped = unrolled.code[begin:] - first * score_PB.shape[1], begin

    def _of_transitions(self, values_PB: np.ndarray) -> np.ndarray:
        """(T,): the value of each transition's bundle, 0 before the first position."""
        out = np.zeros(len(self.unrolled.code))
        values_PB.take(self._code, out=out[self._skipped :], mode="clip")
        return out

    @cached_property
    def _farthest(self) -> tuple[np.ndarray, np.ndarray]:
        """Logarithms of the best path to each node (N,), and of the best that ends with each transition (T,)."""
        best_N = np.full(len(self.unrolled.states), -np.inf)
        best_N[self.node] = 0.0
        reach_T = self._of_transitions(self.score_PB if self.best_PB is None else self.best_PB)
        for layer in self.layers:
            held = reach_T[layer.transitions]
            held += best_N.take(layer.src)
            np.maximum.reduceat(held, layer.runs, out=best_N[layer.after])
        return best_N, reach_T

    @property
    def possible(self) -> bool:
        """Whether any path has a weight."""
        return bool((self._farthest[0][self.unrolled.nodes[-1]] > -np.inf).any())

    def best(self) -> np.ndarray:
        """The bundles (P,) of the most likely path; of several, an arbitrary but fixed one."""
        best_N, reach_T = self._farthest
        last = self.unrolled.nodes[-1]
        node, bundles = last.start + int(best_N[last].argmax()), []
        for layer in reversed(self.layers):
            start, stop = layer.run(node)
            transition = start + int(reach_T[layer.transitions][start:stop].argmax())
            bundles.append(layer.bundle[transition])
            node = int(layer.src[transition])
        return np.array(bundles[::-1], dtype=np.int64)

    def draw(self, u_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the bundles of a path (P,), the unused part of u_P): drawn exactly, position by position, u in [0, 1)."""
        node, bundles, rest_P, onward_T = self.node, [], np.empty(len(self.layers)), self.sums.onward
        for i, layer in enumerate(self.layers):
            (transitions,) = (layer.src == node).nonzero()
            picked, rest_P[i] = pick(onward_T[layer.transitions][transitions], float(u_P[i]))
            bundles.append(layer.bundle[transitions[picked]])
            node = int(layer.dst[transitions[picked]])
        return np.array(bundles, dtype=np.int64), rest_P

    def shares(self) -> np.ndarray:
        """(P, B): the probability that a path takes each bundle at each position."""
        shape = self.score_PB.shape
        return np.bincount(self._code, self.sums.shares[self._skipped :], minlength=shape[0] * shape[1]).reshape(shape)

    @cached_property
    def sums(self) -> Sums:
        """The sums over all paths."""
        before_N, behind_N = (np.full(len(self.unrolled.states), -np.inf) for _ in range(2))
        before_N[self.node] = 0.0
        behind_N[self.unrolled.nodes[-1]] = 0.0
        score_T = self._of_transitions(self.score_PB)
        for layer in self.layers:
            before_N[layer.after] = np.logaddexp.reduceat(before_N[layer.src] + score_T[layer.transitions], layer.runs)
        for layer in reversed(self.layers):
            np.logaddexp.at(behind_N, layer.src, behind_N[layer.dst] + score_T[layer.transitions])
        from_N = np.where(behind_N > -np.inf, behind_N, np.inf)
        onward_T = score_T + behind_N[self.unrolled.dst]
        shares_T = before_N[self.unrolled.src] + onward_T - behind_N[self.node]
        return Sums(np.exp(onward_T - from_N[self.unrolled.src]), np.exp(shares_T))


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
