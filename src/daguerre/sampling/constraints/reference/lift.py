"""What tokens do to the states of an automaton, in NumPy; the slow reference of native/lift.h, and its stand-in.

Letters: Q states, E edges.
"""

from __future__ import annotations

import numpy as np

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.indices import DEAD, NONE, distinct_columns, ranges, reach
from daguerre.sampling.constraints.reference.dfa import Table
from daguerre.sampling.random import splitmix

Edges = tuple[np.ndarray, np.ndarray, np.ndarray]
"""src, dst, cls (E,) of transitions."""
Arrays = tuple[np.ndarray, np.ndarray, Edges]
"""accept (Q,), class_of_token (V,) and the transitions of a token automaton."""


def lift(dfa: Table, text: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, budget: Budget) -> Arrays:
    """The automaton over tokens, each `text` from its offset on, of a minimal automaton over bytes."""
    functions = _Functions(dfa, budget)
    function_of = np.where(lengths > 0, 0, NONE)
    alive = np.flatnonzero(lengths)
    for i in range(int(lengths.max(initial=0))):
        after = functions.after(function_of[alive], text[offsets[alive] + i])
        function_of[alive] = after
        alive = alive[(after != NONE) & (lengths[alive] > i + 1)]
    used, class_of_token = np.unique(function_of, return_inverse=True)
    dead = int(used[0] == NONE)
    edges = [functions.edges[f] for f in used[dead:].tolist()]
    src, dst = (np.concatenate([edge[i] for edge in edges] or [np.zeros(0, np.int32)]) for i in (0, 1))
    cls = np.repeat(np.arange(len(edges), dtype=np.int32), [len(edge[0]) for edge in edges])
    return dfa.accept, (class_of_token - dead).astype(np.int32), (src, dst, cls)


class _Functions:
    """What texts do to states: function f takes src to dst for every pair of `edges[f]`, and all else to DEAD."""

    def __init__(self, dfa: Table, budget: Budget) -> None:
        columns, number_of = distinct_columns(dfa.delta_QK)
        self.delta_QK, self.class_of_byte = dfa.delta_QK[:, columns], number_of[dfa.class_of_byte]
        states = np.arange(len(dfa), dtype=np.int32)
        self.budget, self.size = budget, len(dfa)
        self.edges: list[tuple[np.ndarray, np.ndarray]] = [(states, states)]
        self._number: dict[tuple[bytes, bytes], int] = {}
        self._after: dict[int, int] = {}

    def after(self, functions: np.ndarray, text: np.ndarray) -> np.ndarray:
        """The functions of texts that are one byte longer, NONE for what leads nowhere."""
        width = self.delta_QK.shape[1]
        steps, at = np.unique(functions * width + self.class_of_byte[text], return_inverse=True)
        return np.array([self._extended(step, *divmod(step, width)) for step in steps.tolist()], dtype=np.int64)[at]

    def _extended(self, step: int, function: int, column: int) -> int:
        if step not in self._after:
            src, dst = self.edges[function]
            target = self.delta_QK[dst, column]
            live = target != DEAD
            self._after[step] = self._numbered(src[live], target[live]) if live.any() else NONE
        return self._after[step]

    def _numbered(self, src: np.ndarray, dst: np.ndarray) -> int:
        key = src.tobytes(), dst.tobytes()
        if key not in self._number:
            self._number[key] = len(self.edges)
            self.edges.append((src, dst))
            self.size += len(src)
            self.budget.edges(self.size)
        return self._number[key]


def useful(accept: np.ndarray, class_of_token: np.ndarray, edges: Edges) -> Arrays:
    """Without the states that no text in these tokens visits, and with classes numbered by their first tokens; no state
    is left when there are no texts.
    """
    src, dst, cls = edges
    start = np.zeros(len(accept), dtype=bool)
    start[0] = True
    kept = reach(src, dst, start) & reach(dst, src, accept)
    kept &= kept[0]
    state = np.cumsum(kept, dtype=np.int32) - 1
    edge = kept[src] & kept[dst]
    src, dst, cls = state[src[edge]], state[dst[edge]], cls[edge]
    used = np.isin(class_of_token, cls)
    classes, first = np.unique(class_of_token[used], return_index=True)
    number = np.full(int(class_of_token.max(initial=NONE)) + 2, NONE, dtype=np.int32)  # the last is that of NONE
    number[classes[np.argsort(first)]] = np.arange(len(classes))
    return accept[kept], number[class_of_token], (src, dst, number[cls])


def pairs(num_states: int, src: np.ndarray, dst: np.ndarray, cls: np.ndarray) -> tuple[np.ndarray, ...]:
    """The arrays of `tokens.StatePairs` of some transitions."""
    order = np.lexsort((cls, dst, src))
    codes, cls = src[order].astype(np.int64) * num_states + dst[order], cls[order]
    begins = np.flatnonzero(np.diff(codes, prepend=-1))
    ends = np.append(begins[1:], len(codes))[: len(begins)]
    hashes = splitmix(cls.astype(np.uint64))
    sums = np.add.reduceat(hashes, begins) if len(begins) else hashes
    _, member, bundle = np.unique(sums, return_index=True, return_inverse=True)
    by_first = np.argsort(member)
    member, bundle = member[by_first], np.argsort(by_first)[bundle]
    classes = cls[ranges(begins[member], ends[member])]
    starts = np.concatenate([[0], np.cumsum(ends[member] - begins[member])])
    assert np.array_equal(classes[ranges(starts[bundle], starts[bundle + 1])], cls)  # no two hashes equal by chance
    source, target = np.divmod(codes[begins], max(1, num_states))
    first = np.searchsorted(source, np.arange(num_states + 1))
    return first, target.astype(np.int32), bundle.astype(np.int32), starts, classes.astype(np.int32)
