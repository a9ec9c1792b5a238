"""Nondeterministic automata over bytes, the form in which patterns and values are written out.

An automaton is written from left to right: every method takes the state that its part begins in, and returns the one
that it ends in. They are kept by the compiled library (native/nfa.h) or, without it, in lists (`reference.nfa`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compiled import Handle, LimitedCalls
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.utf8 import Range, Ranges, byte_sequences


class Nfa(ABC):
    """States with moves on sets of bytes, free moves, and moves that are free at the start or at the end of a text."""

    budget: Budget

    @abstractmethod
    def state(self) -> int:
        """A new state."""

    @abstractmethod
    def link(self, first: int, last: int) -> None:
        """A free move."""

    @abstractmethod
    def link_at(self, first: int, last: int, at_end: bool) -> None:
        """A move that is free at the end of the text, or at its start, alone."""

    @abstractmethod
    def literal(self, entry: int, text: bytes) -> int:
        """One text."""

    @abstractmethod
    def chars(self, entry: int, ranges: Ranges) -> int:
        """One character, in UTF-8."""

    @abstractmethod
    def embed(self, entry: int, dfa: Dfa) -> int:
        """The language of an automaton."""

    @abstractmethod
    def quoted(self, entry: int, dfa: Dfa) -> int:
        """The strings of an automaton as JSON writes them: quotes around, and escapes where they must be."""

    @abstractmethod
    def determinize(self, entry: int, last: int) -> Dfa:
        """The minimal automaton of the strings that lead from `entry` to `last`."""

    def one_of(self, entry: int, parts: Iterable[Callable[[int], int]]) -> int:
        """Any of the parts."""
        last = self.state()
        for part in parts:
            self.link(part(entry), last)
        return last

    def repeat(self, entry: int, part: Callable[[int], int], least: int, most: int | None) -> int:
        """A part `least` to `most` times, without end when `most` is None."""
        for _ in range(least):
            entry = part(entry)
        if most is None:
            loop = self.state()
            self.link(entry, loop)
            self.link(part(loop), loop)
            return loop
        last = self.state()
        for _ in range(most - least):
            self.link(entry, last)
            entry = part(entry)
        self.link(entry, last)
        return last


class CompiledNfa(Nfa):
    """An automaton that the library keeps."""

    def __init__(self, call: LimitedCalls) -> None:
        self._call, self.budget = call, call.budget
        self._handle = Handle(call.made, call("nfa_new", call.limits), "nfa_free")
        self._held = self._handle.pointer

    def state(self) -> int:
        return int(self._call("nfa_state", self._held))

    def link(self, first: int, last: int) -> None:
        self._call("nfa_link", self._held, first, last)

    def link_at(self, first: int, last: int, at_end: bool) -> None:
        self._call("nfa_conditional", self._held, first, last, at_end)

    def literal(self, entry: int, text: bytes) -> int:
        return int(self._call("nfa_literal", self._held, entry, text, len(text)))

    def chars(self, entry: int, ranges: Ranges) -> int:
        return int(self._call("nfa_pattern", self._held, entry, *_packed(ranges)))

    def embed(self, entry: int, dfa: Dfa) -> int:
        return int(self._call("nfa_embed", self._held, entry, dfa.pointer(self._call)))

    def quoted(self, entry: int, dfa: Dfa) -> int:
        return int(self._call("nfa_quoted", self._held, entry, dfa.pointer(self._call)))

    def determinize(self, entry: int, last: int) -> Dfa:
        call = self._call
        return Dfa(Handle(call.made, call("nfa_determinize", self._held, entry, last, call.limits), "dfa_free"))


def byte_set(parts: Iterable[Range]) -> int:
    """The bytes of some ranges, as a 256-bit number."""
    return sum(((1 << (high - low + 1)) - 1) << low for low, high in parts)


@lru_cache(maxsize=1024)
def char_moves(ranges: Ranges) -> tuple[int, list[tuple[int, int, int]]]:
    """(number of inner states, moves) of one character from state 0 to state 1; equal endings share their states."""
    inner: dict[tuple[Range, ...], int] = {(): 1}
    merged: dict[tuple[int, int], int] = {}
    for sequence in byte_sequences(ranges):
        source = 0
        for i, part in enumerate(sequence):
            ending = sequence[i + 1 :]
            target = inner.setdefault(ending, len(inner) + 1)
            merged[source, target] = merged.get((source, target), 0) | byte_set([part])
            source = target
    return len(inner) - 1, [(source, chosen, target) for (source, target), chosen in merged.items()]


@lru_cache(maxsize=1024)
def _packed(ranges: Ranges) -> tuple[int, bytes, bytes, int]:
    """(number of inner states, ends of the moves, their sets of bytes, how many) for `nfa_pattern`."""
    num_inner, moves = char_moves(ranges)
    ends = np.array([(source, target) for source, _, target in moves], dtype=np.int32)
    return num_inner, ends.tobytes(), b"".join(chosen.to_bytes(32, "little") for _, chosen, _ in moves), len(moves)
