"""Deterministic automata over bytes: minimization, intersection, difference, union.

State 0 is the start. Minimal automata of one language are equal: their states are in the order in which a search by
breadth, and by bytes, meets them. They are made by the compiled library (native/dfa.h) or, without it, as tables
(`reference.dfa`).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from daguerre.sampling.constraints import compiled
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compiled import Handle, LimitedCalls, address
from daguerre.sampling.constraints.indices import DEAD
from daguerre.sampling.constraints.reference import dfa as reference
from daguerre.sampling.constraints.reference.dfa import Table

BOTH, FIRST_ALONE, EITHER = 0, 1, 2
"""Which strings a product of two automata has; numbers of native/dfa.h."""
BYTES = 32
"""Of a set of bytes."""


class Dfa:
    """A language of byte strings, from a table or from the library."""

    def __init__(self, held: Table | Handle) -> None:
        self._handle = held if isinstance(held, Handle) else None
        if isinstance(held, Table):
            self.__dict__["table"] = held

    @cached_property
    def table(self) -> Table:
        """The transitions as arrays."""
        assert self._handle is not None
        return Table(*_table(self._handle))

    def pointer(self, call: LimitedCalls) -> int:
        """The minimal automaton of the language in the library."""
        if self._handle is None:
            self._handle = Handle(call.made, _minimal(call, self.table), "dfa_free")
        return self._handle.pointer

    def __len__(self) -> int:
        held = self._handle
        return len(self.table) if held is None else int(held.made.dfa_size(held.pointer))

    @cached_property
    def is_empty(self) -> bool:
        """Whether no string is in the language; for a minimal automaton."""
        held = self._handle
        return self.table.is_empty if held is None else bool(held.made.dfa_is_empty(held.pointer))

    def accepts(self, text: bytes) -> bool:
        held = self._handle
        return self.table.accepts(text) if held is None else bool(held.made.dfa_accepts(held.pointer, text, len(text)))

    def shortest(self) -> bytes:
        """A shortest string; the language must not be empty."""
        if self._handle is None:
            return self.table.shortest()
        call = LimitedCalls(self._handle.made)
        text = np.empty(call("dfa_shortest", self._handle.pointer, None), dtype=np.uint8)
        call("dfa_shortest", self._handle.pointer, address(text))
        return text.tobytes()

    def strings(self, most: int, budget: Budget) -> list[bytes] | None:
        """Every string of the language, in no order; None when there are more than `most`. For a minimal automaton."""
        if self._handle is None:
            return self.table.strings(most, budget)
        call, total = LimitedCalls(self._handle.made, budget), np.zeros(1, dtype=np.int64)
        held = self._handle.pointer, most
        number = call("dfa_strings", *held, None, None, address(total), call.limits)
        if number < 0:
            return None
        text, lengths = np.empty(int(total[0]), dtype=np.uint8), np.empty(number, dtype=np.int64)
        call("dfa_strings", *held, address(text), address(lengths), address(total), call.limits)
        return [part.tobytes() for part in np.split(text, np.cumsum(lengths)[:-1])] if number else []


def _minimal(call: LimitedCalls, table: Table) -> int:
    delta = np.ascontiguousarray(table.delta_QK, dtype=np.int32)
    column, accept = table.class_of_byte.astype(np.uint8), table.accept.astype(np.uint8)
    return int(call("dfa_minimal", address(delta), *delta.shape, address(column), address(accept), call.limits))


def _table(handle: Handle) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(delta_QK, class_of_byte, accept) of an automaton of the library; columns in the order of their first bytes."""
    made, pointer = handle.made, handle.pointer
    num_states, num_arcs = made.dfa_size(pointer), made.dfa_num_arcs(pointer)
    first, target = np.empty(num_states + 1, dtype=np.int64), np.empty(num_arcs, dtype=np.int32)
    sets, accept = np.empty((num_arcs, BYTES), dtype=np.uint8), np.empty(num_states, dtype=np.uint8)
    made.dfa_read(pointer, address(first), address(sets), address(target), address(accept))
    member = np.unpackbits(sets, axis=1, bitorder="little")
    column, lowest = _columns(member)
    delta_QK = np.full((num_states, len(lowest)), DEAD, dtype=np.int32)
    arc, k = np.nonzero(member[:, lowest])
    delta_QK[np.repeat(np.arange(num_states), np.diff(first))[arc], k] = target[arc]
    return delta_QK, column, accept.astype(bool)


def _columns(member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the column of each byte (256,), the first byte of each column) of sets of bytes (A, 256)."""
    number: dict[bytes, int] = {}
    packed = np.packbits(member, axis=0)
    column = np.array([number.setdefault(packed[:, byte].tobytes(), len(number)) for byte in range(256)])
    return column.astype(np.uint8), np.unique(column, return_index=True)[1]


def table_dfa(delta_QK: np.ndarray, class_of_byte: np.ndarray, accept: np.ndarray) -> Dfa:
    """The language of a table of next states."""
    return Dfa(Table(delta_QK, class_of_byte, accept))


def empty() -> Dfa:
    """The language without strings."""
    return Dfa(reference.empty())


def start_at(table: Table, start: int) -> Table:
    """The automaton with states `start` and 0 exchanged."""
    exchange = np.arange(len(table) + 1, dtype=np.int32)
    exchange[[0, start]] = exchange[[start, 0]]
    exchange[-1] = DEAD  # delta's -1 indexes the last
    states = exchange[:-1]
    return Table(exchange[table.delta_QK[states]], table.class_of_byte, table.accept[states])


def intersect(a: Dfa, b: Dfa, budget: Budget) -> Dfa:
    """Strings in both languages, minimal."""
    return a if a is b else _combined(a, b, BOTH, budget)


def subtract(a: Dfa, b: Dfa, budget: Budget) -> Dfa:
    """Strings of `a` that are not in `b`, minimal."""
    return empty() if a is b else _combined(a, b, FIRST_ALONE, budget)


def unite(a: Dfa, b: Dfa, budget: Budget) -> Dfa:
    """Strings in either language, minimal."""
    if a is b or b.is_empty:
        return a
    return b if a.is_empty else _combined(a, b, EITHER, budget)


def _combined(a: Dfa, b: Dfa, rule: int, budget: Budget) -> Dfa:
    made = compiled.library()
    if made is None:
        return Dfa(SLOW[rule](a.table, b.table, budget))
    call = LimitedCalls(made, budget)
    return Dfa(Handle(made, call("dfa_combine", a.pointer(call), b.pointer(call), rule, call.limits), "dfa_free"))


SLOW = {BOTH: reference.intersect, FIRST_ALONE: reference.subtract, EITHER: reference.unite}
