"""Paths through an unrolled automaton, with probabilities in proportion to the products of their transitions' weights.

Sums over paths are sums of plain weights, rescaled to about one every few positions. Float64 loses what is far below
the largest sum before the same position; where that may be a noticeable share of all paths (`SMALLEST`), everything is
summed again in logarithms (`exact`), which is the slow reference.

Letters: P positions from the first on, N nodes, T transitions at a position or in all, B bundles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daguerre.sampling.constraints.reference.unrolled import Unrolled

RESCALE = 8
"""Sums are rescaled to one after this many positions."""
BELOW_ONE = float(np.nextafter(1.0, 0.0))
SMALLEST = 1e-200
"""A number loses at most 1e-307; the paths that contain it then lose at most that times the largest sums that it is
multiplied by. Where this is negligible compared with SMALLEST of all paths, nothing is lost."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of path weights, each position with a separate scale.

    before  (N,): of all paths to a node
    onward  (T,), of all positions: of all paths from a transition's first node that take it
    shares  (T,): the probability that a path takes the transition
    """

    before: np.ndarray
    onward: np.ndarray
    shares: np.ndarray


class Lattice:
    """Paths from a node before position `first`, on. The bundles have the weights weight_PB; `score` computes their
    logarithms, where the weights underflow.

    best_PB, if given, are other scores, by which the best path is chosen.
    """

    def __init__(
        self,
        unrolled: Unrolled,
        first: int,
        node: int,
        weight_PB: np.ndarray,
        score: Callable[[], np.ndarray],
        best_PB: np.ndarray | None = None,
    ) -> None:
        self.unrolled, self.node = unrolled, node
        self.layers = unrolled.layers[first:]
        self.weight_PB, self.score, self.best_PB = weight_PB, score, best_PB
        begin = self.layers[0].transitions.start if self.layers else len(unrolled.code)
        self._code, self._skipped = unrolled.code[begin:] - first * weight_PB.shape[1], begin

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
        reach_T = self._of_transitions(self.score() if self.best_PB is None else self.best_PB)
        for layer in self.layers:
            held = reach_T[layer.transitions]
            held += best_N.take(layer.src)
            np.maximum.reduceat(held, layer.runs, out=best_N[layer.after])
        return best_N, reach_T

    @property
    def possible(self) -> bool:
        """Whether any path has a weight."""
        last = self.unrolled.nodes[-1]
        return self._scaled is not None or bool((self._farthest[0][last] > -np.inf).any())

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
        shape = self.weight_PB.shape
        return np.bincount(self._code, self.sums.shares[self._skipped :], minlength=shape[0] * shape[1]).reshape(shape)

    @cached_property
    def sums(self) -> Sums:
        return self.exact() if self._scaled is None else self._scaled

    @property
    def is_exact(self) -> bool:
        """Whether float64 could not hold the weights, so that logarithms were used."""
        return self._scaled is None

    @cached_property
    def _scaled(self) -> Sums | None:
        """The sums, None where float64 may have lost something."""
        before_N, behind_N = (np.zeros(len(self.unrolled.states)) for _ in range(2))
        before_N[self.node] = 1.0
        behind_N[self.unrolled.nodes[-1]] = 1.0
        top_P1 = self.weight_PB.max(axis=1, keepdims=True)
        weight_T = self._of_transitions(self.weight_PB / np.where(top_P1 > 0, top_P1, 1.0))
        onward_T, last = weight_T.copy(), len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            held = before_N.take(layer.src)
            held *= weight_T[layer.transitions]
            sums = np.add.reduceat(held, layer.runs, out=before_N[layer.after])
            if i % RESCALE == RESCALE - 1:
                sums /= sums.max() or 1.0
            layer = self.layers[last - i]
            held = onward_T[layer.transitions]
            held *= behind_N.take(layer.dst)
            sums = np.bincount(layer.src_local, held, minlength=layer.here.stop - layer.here.start)
            behind_N[layer.here] = sums / (sums.max() or 1.0) if i % RESCALE == RESCALE - 1 else sums
        if not self.layers:
            return Sums(before_N, onward_T, onward_T)
        shares_T = onward_T * before_N.take(self.unrolled.src)
        begins = [layer.transitions.start for layer in self.layers]
        all_P = np.add.reduceat(shares_T, begins)
        nodes = [*(layer.here.start for layer in self.layers), self.unrolled.nodes[-1].start]
        before_P, behind_P = np.maximum.reduceat(before_N, nodes)[:-1], np.maximum.reduceat(behind_N, nodes)[1:]
        most_P = np.maximum(np.maximum(before_P, behind_P), before_P * behind_P)
        if (all_P <= SMALLEST * most_P).any():
            return None
        shares_T[self._skipped :] /= all_P.repeat(np.diff([*begins, len(shares_T)]))
        return Sums(before_N, onward_T, shares_T)

    def exact(self) -> Sums:
        """`sums`, all in logarithms."""
        before_N, behind_N = (np.full(len(self.unrolled.states), -np.inf) for _ in range(2))
        before_N[self.node] = 0.0
        behind_N[self.unrolled.nodes[-1]] = 0.0
        score_T = self._of_transitions(self.score())
        for layer in self.layers:
            before_N[layer.after] = np.logaddexp.reduceat(before_N[layer.src] + score_T[layer.transitions], layer.runs)
        for layer in reversed(self.layers):
            np.logaddexp.at(behind_N, layer.src, behind_N[layer.dst] + score_T[layer.transitions])
        from_N = np.where(behind_N > -np.inf, behind_N, np.inf)
        onward_T = score_T + behind_N[self.unrolled.dst]
        shares_T = before_N[self.unrolled.src] + onward_T - behind_N[self.node]
        return Sums(np.exp(before_N), np.exp(onward_T - from_N[self.unrolled.src]), np.exp(shares_T))


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
