"""Automata that call one another, as one automaton.

Each part of a value is written once, and made small while it is alone; all that is written out is made small once.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from daguerre.sampling.constraints import compiled
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compiled import Handle, LimitedCalls, Pointer, UsesStruct, address
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.reference import linking as reference


def call_of(number: int) -> bytes:
    """What stands for a text that is called: a byte that no text has, and a number that the use of a part explains."""
    return bytes([reference.CALL]) + number.to_bytes(reference.DIGITS, "big")


@dataclass
class Links:
    """Parts, and their uses.

    parts    automata with calls
    part_of  the part of each use
    calls    of each use, the use that each number of a call in its part is of
    """

    parts: list[Dfa] = field(default_factory=list)
    part_of: list[int] = field(default_factory=list)
    calls: list[list[int]] = field(default_factory=list)

    def with_part(self, number: int, part: Dfa) -> Links:
        """A copy with another part of this number."""
        return replace(self, parts=[*self.parts[:number], part, *self.parts[number + 1 :]])

    def sizes(self, root: int, budget: Budget) -> tuple[int, int]:
        """(states of a use with all that it calls, copies of use 0 among them), before what is alike is merged."""
        made = compiled.library()
        if made is None:
            frames = self._frames(root, budget)
            return frames.num_states, frames.copies(0)
        found = np.zeros(2, dtype=np.int64)
        self._call(made, "link_sizes", root, budget, address(found))
        return int(found[0]), int(found[1])

    def linked(self, root: int, budget: Budget) -> Dfa:
        """The minimal automaton of a use, with the text that is called in place of each call."""
        made = compiled.library()
        if made is None:
            return Dfa(self._frames(root, budget).linked())
        return Dfa(Handle(made, self._call(made, "link_parts", root, budget), "dfa_free"))

    def _frames(self, root: int, budget: Budget) -> reference.Frames:
        return reference.Frames([part.table for part in self.parts], self.part_of, self.calls, root, budget)

    def _call(self, made: Any, name: str, root: int, budget: Budget, *more: int) -> Any:
        call = LimitedCalls(made, budget)
        parts = (Pointer * len(self.parts))(*(part.pointer(call) for part in self.parts))
        part_of = np.array(self.part_of, dtype=np.int32)
        first = np.cumsum([0, *map(len, self.calls)], dtype=np.int64)
        calls = np.array(list(chain.from_iterable(self.calls)), dtype=np.int32)
        uses = UsesStruct(address(part_of), address(first), address(calls), root)
        return call(name, parts, len(self.parts), ctypes.byref(uses), *more, call.limits)
