"""Automata that call one another, as one automaton.

The parts of a value are written once each, and call one another: a call stands for the text of the part. So each part
is made small while it is alone, and all that is written out is made small once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from daguerre.sampling.constraints import compiled
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compiled import Call, Handle, Pointer, address
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.reference import linking as reference


def call_of(part: int) -> bytes:
    """What stands for the text of a part: a byte that no text has, and the number of the part."""
    return bytes([reference.CALL]) + part.to_bytes(reference.DIGITS, "big")


def sizes(parts: Sequence[Dfa], root: int, budget: Budget) -> tuple[int, int]:
    """(states of a part with all that it calls, copies of part 0 among them), before what is alike is merged."""
    made = compiled.library()
    if made is None:
        frames = reference.Frames([part.table for part in parts], root, budget)
        return frames.num_states, frames.copies(0)
    found, call = np.zeros(2, dtype=np.int64), Call(made, budget)
    call("link_sizes", _pointers(parts, call), len(parts), root, address(found), call.limits)
    return int(found[0]), int(found[1])


def linked(parts: Sequence[Dfa], root: int, budget: Budget) -> Dfa:
    """The minimal automaton of a part, with the text of another part in place of each call."""
    made = compiled.library()
    if made is None:
        return Dfa(reference.Frames([part.table for part in parts], root, budget).linked())
    call = Call(made, budget)
    pointer = call("link_parts", _pointers(parts, call), len(parts), root, call.limits)
    return Dfa(Handle(made, pointer, "dfa_free"))


def _pointers(parts: Sequence[Dfa], call: Call) -> ctypes.Array[ctypes.c_void_p]:
    return (Pointer * len(parts))(*(part.pointer(call) for part in parts))
