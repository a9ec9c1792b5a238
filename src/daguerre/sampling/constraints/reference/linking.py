"""The slow reference of native/linking.h."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.reference.dfa import Table
from daguerre.sampling.constraints.reference.nfa import SlowNfa, determinize

CALL, DIGITS = 0xFF, 3
"""The byte that begins a call, and how many bytes its number has."""


class Frames:
    """A frame is a copy of a part, for each use of it and each state that is called back to."""

    def __init__(
        self, parts: Sequence[Table], part_of: Sequence[int], calls: Sequence[Sequence[int]], root: int, budget: Budget
    ) -> None:
        self.parts, self.part_of, self.calls, self.nfa = parts, part_of, calls, SlowNfa(budget)
        self.begins: dict[tuple[int, int], int] = {}
        self.waiting: list[tuple[int, int, dict[int, int]]] = []
        self.last = self.nfa.state()
        self.entry = self._begin(root, self.last)
        while self.waiting:
            self._write(*self.waiting.pop())

    @property
    def num_states(self) -> int:
        return len(self.nfa.moves)

    def copies(self, use: int) -> int:
        return sum(held == use for held, _ in self.begins)

    def linked(self) -> Table:
        return determinize(self.nfa, self.entry, self.last)

    def _begin(self, use: int, back: int) -> int:
        if (use, back) not in self.begins:
            states = {q: self.nfa.state() for q in _kept(self.parts[self.part_of[use]])}
            self.begins[use, back] = states[0]
            self.waiting.append((use, back, states))
        return self.begins[use, back]

    def _write(self, use: int, back: int, states: dict[int, int]) -> None:
        table = self.parts[self.part_of[use]]
        for q, state in states.items():
            self.nfa.moves[state] += [(chosen, states[to]) for chosen, to in table.arcs[q] if not chosen >> CALL & 1]
            if table.accept[q]:
                self.nfa.link(state, back)
            for number, behind in _calls(table, q):
                self.nfa.link(state, self._begin(self.calls[use][number], states[behind]))


def _kept(table: Table) -> list[int]:
    """The states that do not only spell out calls, from the start on."""
    found = {0: None}
    waiting = [0]
    while waiting:
        q = waiting.pop()
        then = [to for chosen, to in table.arcs[q] if not chosen >> CALL & 1]
        for to in then + [behind for _, behind in _calls(table, q)]:
            if to not in found:
                found[to] = None
                waiting.append(to)
    return list(found)


def _calls(table: Table, state: int) -> Iterator[tuple[int, int]]:
    """(number, the state behind) of each call from a state."""
    reached = [(0, to) for chosen, to in table.arcs[state] if chosen >> CALL & 1]
    for _ in range(DIGITS):
        reached = [
            (number << 8 | byte, to)
            for number, held in reached
            for chosen, to in table.arcs[held]
            for byte in range(256)
            if chosen >> byte & 1
        ]
    yield from reached
