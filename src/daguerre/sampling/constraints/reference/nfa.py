"""Nondeterministic automata over bytes in lists, and the subset construction.

The slow reference of native/nfa.h, and its stand-in where that cannot be compiled. A set of bytes is a 256-bit number.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.indices import DEAD, distinct_columns
from daguerre.sampling.constraints.nfa import Nfa, char_moves
from daguerre.sampling.constraints.reference.dfa import Table, minimize
from daguerre.sampling.constraints.utf8 import Ranges

ESCAPES = {byte: f"\\u{byte:04x}".encode() for byte in range(0x20)} | {
    ord(plain): ("\\" + short).encode() for plain, short in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)
}
"""The escapes of characters that a JSON string cannot have unescaped."""
ESCAPED = sum(1 << byte for byte in ESCAPES)


class SlowNfa(Nfa):
    """An automaton in lists."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.moves: list[list[tuple[int, int]]] = []
        self.free: list[list[int]] = []
        self.at_start: dict[int, int] = {}
        self.at_end: dict[int, int] = {}
        self._escapes: dict[tuple[int, int], int] = {}

    def state(self) -> int:
        self.moves.append([])
        self.free.append([])
        if len(self.moves) % 1024 == 0:
            self.budget.steps(len(self.moves))
        return len(self.moves) - 1

    def link(self, first: int, last: int) -> None:
        self.free[first].append(last)

    def link_at(self, first: int, last: int, at_end: bool) -> None:
        (self.at_end if at_end else self.at_start)[first] = last

    def literal(self, entry: int, text: bytes) -> int:
        for byte in text:
            target = self.state()
            self.moves[entry].append((1 << byte, target))
            entry = target
        return entry

    def chars(self, entry: int, ranges: Ranges) -> int:
        num_inner, moves = char_moves(ranges)
        states = [entry, self.state(), *(self.state() for _ in range(num_inner))]
        for source, chosen, target in moves:
            self.moves[states[source]].append((chosen, states[target]))
        return states[1]

    def embed(self, entry: int, dfa: Dfa) -> int:
        states = [self.state() for _ in range(len(dfa))]
        self.link(entry, states[0])
        for state, arcs in zip(states, dfa.table.arcs, strict=True):
            self.moves[state] += [(chosen, states[target]) for chosen, target in arcs]
        return self._joined(states, dfa)

    def quoted(self, entry: int, dfa: Dfa) -> int:
        states = [self.state() for _ in range(len(dfa))]
        self.moves[entry].append((1 << ord('"'), states[0]))
        for state, arcs in zip(states, dfa.table.arcs, strict=True):
            for chosen, target in arcs:
                if chosen & ~ESCAPED:
                    self.moves[state].append((chosen & ~ESCAPED, states[target]))
                if chosen & ESCAPED:
                    self.moves[state].append((1 << ord("\\"), self._escape(chosen & ESCAPED, states[target])))
        return self.literal(self._joined(states, dfa), b'"')

    def determinize(self, entry: int, last: int) -> Dfa:
        return Dfa(determinize(self, entry, last))

    def _joined(self, states: list[int], dfa: Dfa) -> int:
        last = self.state()
        for state in np.flatnonzero(dfa.table.accept).tolist():
            self.link(states[state], last)
        return last

    def _escape(self, chosen: int, target: int) -> int:
        """The state after a backslash from which each of the bytes leads to `target`."""
        if (chosen, target) not in self._escapes:
            first = self.state()
            for byte, text in ESCAPES.items():
                if chosen >> byte & 1:
                    self.link(self.literal(first, text[1:]), target)
            self._escapes[chosen, target] = first
        return self._escapes[chosen, target]


def determinize(nfa: SlowNfa, entry: int, last: int) -> Table:
    """The minimal automaton of the strings that lead from `entry` to `last`."""
    masks = sorted({chosen for moves in nfa.moves for chosen, _ in moves})
    if not masks:
        masks = [0]
    bits = np.array([np.frombuffer(m.to_bytes(32, "little"), dtype=np.uint8) for m in masks])
    member = np.unpackbits(bits, axis=1, bitorder="little")
    first, class_of_byte = distinct_columns(member)
    classes = {m: np.flatnonzero(row).tolist() for m, row in zip(masks, member[:, first], strict=True)}
    subsets = _Subsets(nfa, last, classes)
    return minimize(subsets.table(entry, len(first), class_of_byte.astype(np.uint8)))


class _Subsets:
    """The subset construction. A subset holds only states that move on a byte, or that can end. classes: of bytes, in
    each set of bytes.
    """

    def __init__(self, nfa: SlowNfa, last: int, classes: dict[int, list[int]]) -> None:
        self.nfa, self.last, self.classes = nfa, last, classes
        self.closures: dict[int, frozenset[int]] = {}

    def table(self, entry: int, num_classes: int, class_of_byte: np.ndarray) -> Table:
        """The automaton from a state on."""
        number = {self.kept(self.closed(entry, self.nfa.at_start)): 0}
        subsets, rows = list(number), list[list[int]]()
        for i, subset in enumerate(subsets):  # which grows
            rows.append([DEAD] * num_classes)
            for k, reached in self.successors(subset).items():
                following = frozenset(reached)
                if following not in number:
                    number[following] = len(number)
                    subsets.append(following)
                rows[-1][k] = number[following]
            if i % 256 == 0:
                self.nfa.budget.states(len(number))
        accept = np.array([self.ends(subset) for subset in subsets])
        return Table(np.array(rows, dtype=np.int32), class_of_byte, accept)

    def successors(self, subset: frozenset[int]) -> dict[int, set[int]]:
        """The states that each class of bytes leads to."""
        found = defaultdict[int, set[int]](set)
        for state in subset:
            for chosen, target in self.nfa.moves[state]:
                for k in self.classes[chosen]:
                    found[k] |= self.closure(target)
        return found

    def closure(self, state: int) -> frozenset[int]:
        found = self.closures.get(state)
        if found is None:
            found = self.closures[state] = self.kept(self.closed(state, {}))
        return found

    def kept(self, states: set[int]) -> frozenset[int]:
        return frozenset(s for s in states if self.nfa.moves[s] or s in self.nfa.at_end or s == self.last)

    def closed(self, state: int, conditional: dict[int, int]) -> set[int]:
        """All states reached by free moves, and by those that are free here."""
        seen, stack = {state}, [state]
        while stack:
            here = stack.pop()
            nearby = [*self.nfa.free[here], conditional[here]] if here in conditional else self.nfa.free[here]
            for target in nearby:
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        return seen

    def ends(self, subset: frozenset[int]) -> bool:
        if self.last in subset:
            return True
        held = [s for s in subset if s in self.nfa.at_end]
        return any(self.last in self.closed(s, self.nfa.at_end) for s in held)
