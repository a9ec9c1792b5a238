"""Deterministic automata over bytes as tables, in NumPy: minimization, intersection, difference, union.

The slow reference of native/dfa.h, and its stand-in where that cannot be compiled.

Letters: Q states, K classes of bytes that act alike. State 0 is the start, DEAD means no transition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.indices import DEAD, distinct_columns, ranges, reach
from daguerre.sampling.random import splitmix


@dataclass(frozen=True, eq=False)
class Table:
    """A language of byte strings, `delta_QK` int32 holds the next state or DEAD, `class_of_byte` (256,) the columns."""

    delta_QK: np.ndarray  # noqa: N815
    class_of_byte: np.ndarray
    accept: np.ndarray

    def __len__(self) -> int:
        return len(self.accept)

    @property
    def is_empty(self) -> bool:
        """Whether no string is in the language; for a minimal automaton."""
        return not self.accept.any()

    def run(self, text: bytes, state: int = 0) -> int:
        """The state after `text`, or DEAD."""
        for byte in text:
            if state == DEAD:
                break
            state = int(self.delta_QK[state, self.class_of_byte[byte]])
        return state

    def accepts(self, text: bytes) -> bool:
        state = self.run(text)
        return state != DEAD and bool(self.accept[state])

    @cached_property
    def arcs(self) -> list[list[tuple[int, int]]]:
        """For each state its (set of bytes as a 256-bit number, next state), one for each next state."""
        sets = [0] * self.delta_QK.shape[1]
        for byte, k in enumerate(self.class_of_byte.tolist()):
            sets[k] |= 1 << byte
        out = []
        for row in self.delta_QK.tolist():
            merged: dict[int, int] = {}
            for k, target in enumerate(row):
                if target != DEAD:
                    merged[target] = merged.get(target, 0) | sets[k]
            out.append([(chosen, target) for target, chosen in merged.items()])
        return out

    def shortest(self) -> bytes:
        """A shortest string; the language must not be empty."""
        waiting, seen = [(0, b"")], {0}
        for state, text in waiting:  # which grows
            if self.accept[state]:
                return text
            for chosen, target in self.arcs[state]:
                if target not in seen:
                    seen.add(target)
                    waiting.append((target, text + bytes([(chosen & -chosen).bit_length() - 1])))
        raise AssertionError

    def strings(self, most: int, budget: Budget) -> list[bytes] | None:
        """Every string of the language, in no order; None when there are more than `most`. For a minimal automaton."""
        found: list[bytes] = []
        waiting: list[tuple[int, bytes]] = [(0, b"")]
        while waiting:
            state, text = waiting.pop()
            budget.steps(0)
            if len(text) > len(self):
                return None  # a loop
            if self.accept[state]:
                found.append(text)
            for chosen, target in self.arcs[state]:
                while chosen:
                    lowest = chosen & -chosen
                    waiting.append((target, text + bytes([lowest.bit_length() - 1])))
                    chosen ^= lowest
            if len(found) > most or len(waiting) > 256 * most:
                return None
        return found


def empty() -> Table:
    """The language without strings."""
    return Table(np.full((1, 1), DEAD, dtype=np.int32), np.zeros(256, dtype=np.uint8), np.zeros(1, dtype=bool))


def minimize(dfa: Table) -> Table:
    """The smallest automaton of the same language; bytes that act alike share a column."""
    dfa = _trim(dfa)
    if dfa.is_empty:
        return empty()
    columns, number_of = distinct_columns(dfa.delta_QK)
    delta_QK = np.ascontiguousarray(dfa.delta_QK[:, columns])
    block = _blocks(delta_QK, dfa.accept)
    _, member = np.unique(block, return_index=True)
    small = np.where(delta_QK[member] == DEAD, DEAD, block[delta_QK[member]]).astype(np.int32)
    assert (
        np.where(delta_QK == DEAD, DEAD, block[delta_QK]) == small[block]
    ).all()  # no two hashes were equal by chance
    merged = Table(small, number_of[dfa.class_of_byte].astype(np.uint8), dfa.accept[member])
    return in_order(merged, int(block[0]))


def in_order(dfa: Table, start: int) -> Table:
    """The automaton that begins in state `start`: its states in the order in which a search by breadth, and by bytes,
    meets them, and its columns, which differ, in the order of their first bytes.
    """
    first, column = distinct_columns(dfa.delta_QK[:, dfa.class_of_byte])
    delta_QK = dfa.delta_QK[:, dfa.class_of_byte[first]]
    number = {start: 0}
    order = [start]
    for state in order:
        for target in delta_QK[state].tolist():
            if target != DEAD and target not in number:
                number[target] = len(order)
                order.append(target)
    renumbered = np.full(len(dfa) + 1, DEAD, dtype=np.int32)  # delta's -1 indexes the last
    renumbered[order] = np.arange(len(order))
    return Table(renumbered[delta_QK[order]], column.astype(np.uint8), dfa.accept[order])


def _trim(dfa: Table) -> Table:
    """Without the states that no string of the language visits; the start stays."""
    src, column = np.nonzero(dfa.delta_QK != DEAD)
    dst = dfa.delta_QK[src, column]
    start = np.zeros(len(dfa), dtype=bool)
    start[0] = True
    useful = reach(src, dst, start) & reach(dst, src, dfa.accept)
    if useful.all():
        return dfa
    if not useful[0]:
        return empty()
    number = np.full(len(dfa) + 1, DEAD, dtype=np.int32)
    number[:-1][useful] = np.arange(useful.sum(), dtype=np.int32)
    return Table(number[dfa.delta_QK[useful]], dfa.class_of_byte, dfa.accept[useful])


def _blocks(delta_QK: np.ndarray, accept: np.ndarray) -> np.ndarray:
    """A number for each state, equal for states with the same future.

    Partition refinement: a state's signature is a sum of 64-bit hashes of (column, block of the next state). When some
    states get a new block number, only their predecessors are looked at again: they now differ from the rest of their
    block, which keeps its number.
    """
    num_states, num_columns = delta_QK.shape
    src, column = np.nonzero(delta_QK != DEAD)
    dst = delta_QK[src, column]
    order = np.argsort(dst, kind="stable")
    sources = src[order]
    first = np.searchsorted(dst[order], np.arange(num_states + 1))
    block = accept.astype(np.int64)
    size = np.bincount(block, minlength=2)
    columns = np.arange(num_columns, dtype=np.uint64)
    touched = np.arange(num_states)
    while len(touched):
        rows = delta_QK[touched]
        after = np.where(rows == DEAD, DEAD, block[rows]) + 1
        signature = splitmix(after.astype(np.uint64) * np.uint64(num_columns) + columns).sum(axis=1, dtype=np.uint64)
        key = splitmix(signature ^ splitmix(block[touched].astype(np.uint64)))
        _, at, group, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        home = block[touched[at]]
        rest = size.copy()
        np.subtract.at(rest, home, count)
        keeps = np.zeros(len(at), dtype=bool)  # where a whole block was touched, its largest part keeps the number
        by_size = np.lexsort((-count, home))
        heads = by_size[np.unique(home[by_size], return_index=True)[1]]
        keeps[heads[rest[home[heads]] == 0]] = True
        fresh = np.flatnonzero(~keeps)
        number = home.copy()
        number[fresh] = len(size) + np.arange(len(fresh))
        np.subtract.at(size, home[fresh], count[fresh])
        size = np.concatenate([size, count[fresh]])
        moved = touched[~keeps[group]]
        block[touched] = number[group]
        touched = np.unique(sources[ranges(first[moved], first[moved + 1])])
    return np.unique(block, return_inverse=True)[1]


def intersect(a: Table, b: Table, budget: Budget) -> Table:
    """Strings in both languages, minimal."""
    return a if a is b else _combine(a, b, budget, np.logical_and, both=True)


def subtract(a: Table, b: Table, budget: Budget) -> Table:
    """Strings of `a` that are not in `b`, minimal."""
    return empty() if a is b else _combine(a, b, budget, lambda x, y: x & ~y, both=False)


def unite(a: Table, b: Table, budget: Budget) -> Table:
    """Strings in either language, minimal."""
    if a is b or b.is_empty:
        return a
    return b if a.is_empty else _combine(a, b, budget, np.logical_or, both=None)


def _combine(
    a: Table, b: Table, budget: Budget, rule: Callable[[np.ndarray, np.ndarray], np.ndarray], both: bool | None
) -> Table:
    """The product automaton. A pair is followed while both parts live (both), the first (False), or either (None)."""
    width = len(b) + 1
    first, number_of = distinct_columns(a.class_of_byte[None, :], b.class_of_byte[None, :])
    next_a = _completed(a)[:, a.class_of_byte[first]]
    next_b = _completed(b)[:, b.class_of_byte[first]]
    number: dict[int, int] = {0: 0}
    pairs, rows = [np.zeros(1, dtype=np.int64)], []
    while len(pairs[-1]):
        left, right = np.divmod(pairs[-1], width)
        to_a, to_b = next_a[left], next_b[right]
        dead_a, dead_b = to_a == len(a), to_b == len(b)
        dead = dead_a | dead_b if both else dead_a & dead_b if both is None else dead_a
        codes = np.where(dead, np.int64(DEAD), to_a * width + to_b)
        distinct, at = np.unique(codes, return_inverse=True)
        known = [DEAD if code == DEAD else number.setdefault(code, len(number)) for code in distinct.tolist()]
        rows.append(np.array(known, dtype=np.int32)[at].reshape(codes.shape))
        fresh = distinct[np.array(known) >= sum(map(len, pairs))]
        pairs.append(fresh)
        budget.states(len(number))
    left, right = np.divmod(np.concatenate(pairs), width)
    accept = rule(np.append(a.accept, False)[left], np.append(b.accept, False)[right])
    return minimize(Table(np.concatenate(rows), number_of.astype(np.uint8), accept))


def _completed(dfa: Table) -> np.ndarray:
    """Transitions (Q+1, K) in which DEAD is state Q."""
    full = np.vstack([dfa.delta_QK, np.full((1, dfa.delta_QK.shape[1]), DEAD)]).astype(np.int64)
    full[full == DEAD] = len(dfa)
    return full
