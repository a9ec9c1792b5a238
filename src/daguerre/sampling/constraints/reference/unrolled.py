"""An automaton laid out over the positions of a span: its possible states before each position, and the transitions
between them.

Only states that are reached from the state before the span, and from which the text after it completes, are laid out.
Tokens that are fixed within the span do not change the layout: they are weights like any others. So one layout serves
all steps of a span.

Letters: P positions, N nodes (a state before a position), T transitions (a pair of the automaton at a position), Q
states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daguerre.sampling.constraints.indices import ranges
from daguerre.sampling.constraints.tokens import StatePairs


@dataclass(frozen=True, eq=False)
class Transitions:
    """The transitions at one position, ordered by the node that they lead to. Arrays (T,) int64.

    here    the nodes before the position, as a slice of all nodes; `after` those that follow it
    src     the node that each transition leaves; `src_local` the same, counted from here.start
    dst     the node that it leads to; `dst_local` the same, counted from after.start
    bundle  the bundle of classes that takes it
    transitions   their place among the transitions of all positions
    runs    for each node of `after`, the first of the transitions that lead there
    """

    here: slice
    after: slice
    src: np.ndarray
    src_local: np.ndarray
    dst: np.ndarray
    dst_local: np.ndarray
    bundle: np.ndarray
    transitions: slice
    runs: np.ndarray

    def run(self, node: int) -> tuple[int, int]:
        """The first of the transitions that lead to a node of `after`, and the one after the last."""
        at = node - self.after.start
        return int(self.runs[at]), int(self.runs[at + 1]) if at + 1 < len(self.runs) else len(self.dst)


@dataclass(frozen=True, eq=False)
class Unrolled:
    """Layers of the positions.

    nodes   the nodes before each position, and after the last, as slices of all nodes
    states  (N,): the automaton's states, ascending within a position
    src, dst, code   of all transitions, position by position: the nodes, and the bundle + position * B
    """

    layers: tuple[Transitions, ...]
    nodes: tuple[slice, ...]
    states: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    code: np.ndarray

    def node(self, position: int, state: int) -> int | None:
        """The node of a state before a position; None where it has none."""
        nodes = self.nodes[position]
        at = nodes.start + int(np.searchsorted(self.states[nodes], state))
        return at if at < nodes.stop and self.states[at] == state else None


def unroll(pairs: StatePairs, state: int, length: int, last: bytes) -> Unrolled:
    """`length` positions from `state` on; `last`, a boolean (Q,), marks the states that may follow them."""
    number = len(pairs.first) - 1
    steps, frontier = [], np.array([state])
    for _ in range(length):
        chosen = ranges(pairs.first[frontier], pairs.first[frontier + 1])
        steps.append(chosen)
        frontier = _distinct(pairs.dst[chosen], number)
    ends = np.frombuffer(last, dtype=bool)
    states = [frontier[ends[frontier]]]
    alive = ends
    for i in range(length - 1, -1, -1):
        chosen = steps[i][alive[pairs.dst[steps[i]]]]
        steps[i] = chosen[np.argsort(pairs.dst[chosen], kind="stable")]
        states.append(_distinct(pairs.src[chosen], number))
        alive = np.zeros(number, dtype=bool)
        alive[states[-1]] = True
    return _numbered(pairs, states[::-1], steps)


def _distinct(states: np.ndarray, number: int) -> np.ndarray:
    seen = np.zeros(number, dtype=bool)
    seen[states] = True
    return np.flatnonzero(seen)


def _numbered(pairs: StatePairs, states: list[np.ndarray], steps: list[np.ndarray]) -> Unrolled:
    number = np.zeros(len(pairs.first) - 1, dtype=np.int64)
    nodes, transitions, layers = _slices(states), _slices(steps), []
    src, dst, code = (np.empty(sum(map(len, steps)), dtype=np.int64) for _ in range(3))
    for i, (held, chosen) in enumerate(zip(transitions, steps, strict=True)):
        here, after = nodes[i : i + 2]
        number[states[i]] = np.arange(len(states[i]))
        src_local = number[pairs.src[chosen]]
        number[states[i + 1]] = np.arange(len(states[i + 1]))
        dst_local = number[pairs.dst[chosen]]
        src[held], dst[held] = src_local + here.start, dst_local + after.start
        code[held] = pairs.bundle[chosen] + i * pairs.num_bundles
        runs = np.flatnonzero(np.diff(dst_local, prepend=-1))
        ends = src[held], src_local, dst[held], dst_local
        layers.append(Transitions(here, after, *ends, pairs.bundle[chosen], held, runs))
    return Unrolled(tuple(layers), nodes, np.concatenate(states), src, dst, code)


def _slices(parts: list[np.ndarray]) -> tuple[slice, ...]:
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return tuple(slice(end - len(part), end) for part, end in zip(parts, ends, strict=True))
