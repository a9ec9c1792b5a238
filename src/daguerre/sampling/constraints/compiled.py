"""The compiled library of automata (source: the folder `native`) and its C interface.

It is compiled like the native backend, at first use. Where it cannot be, the modules of `reference` compute the same.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any
from weakref import finalize

import numpy as np

from daguerre.errors import UnsupportedError
from daguerre.models.backends.library import compiled
from daguerre.models.prebuilt import CONSTRAINTS
from daguerre.models.processor import compiler_flags
from daguerre.sampling.constraints.budget import Budget

Pointer, Int, Long, Text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
Float = ctypes.c_double
KINDS = ("float", "double")
PLACES = (Pointer,) * 5
Error = ctypes.POINTER(Int)


class TransitionsStruct(ctypes.Structure):
    """The pairs of states of a token automaton."""

    _fields_ = [*((name, Pointer) for name in ("first", "dst", "bundle")), ("states", Long), ("bundles", Long)]


class TilesStruct(ctypes.Structure):
    """A vocabulary in tiles: see native/weights.h."""

    _fields_ = [
        *((name, Pointer) for name in "place end segment cls first of_class".split()),
        *((name, Long) for name in "size classes vocabulary".split()),
    ]


class ClassesStruct(ctypes.Structure):
    """The tokens of a vocabulary by class: see native/likeliest.h."""

    _fields_ = [*((name, Pointer) for name in "of_token order first".split()), ("classes", Long), ("vocabulary", Long)]


class DrawsStruct(ctypes.Structure):
    """Draws of tokens: see native/weights.h."""

    _fields_ = [
        *((name, Pointer) for name in "tokens row begin end first_part num_parts u parts starts".split()),
        *((name, Long) for name in "size vocabulary all_parts".split()),
    ]


class UsesStruct(ctypes.Structure):
    """Which automata are used, and what they call."""

    _fields_ = [*((name, Pointer) for name in ("part", "first", "calls")), ("root", Int)]


class LimitsStruct(ctypes.Structure):
    """What is left of a budget."""

    _fields_ = [
        *((name, Long) for name in "states steps edges bytes".split()),
        ("until", ctypes.c_double),
        ("left", Pointer),
    ]


FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "memory_held": (Long, ()),
    "nfa_new": (Pointer, (Pointer, Error)),
    "nfa_free": (None, (Pointer,)),
    "nfa_state": (Int, (Pointer, Error)),
    "nfa_link": (None, (Pointer, Int, Int, Error)),
    "nfa_conditional": (None, (Pointer, Int, Int, Int, Error)),
    "nfa_literal": (Int, (Pointer, Int, Text, Long, Error)),
    "nfa_pattern": (Int, (Pointer, Int, Int, Text, Text, Long, Error)),
    "nfa_embed": (Int, (Pointer, Int, Pointer, Error)),
    "nfa_quoted": (Int, (Pointer, Int, Pointer, Error)),
    "nfa_determinize": (Pointer, (Pointer, Int, Int, Pointer, Error)),
    "dfa_minimal": (Pointer, (Pointer, Long, Long, Pointer, Pointer, Pointer, Error)),
    "dfa_free": (None, (Pointer,)),
    "dfa_size": (Long, (Pointer,)),
    "dfa_num_arcs": (Long, (Pointer,)),
    "dfa_read": (None, (Pointer,) * 5),
    "dfa_accepts": (Int, (Pointer, Text, Long)),
    "dfa_is_empty": (Int, (Pointer,)),
    "dfa_strings": (Long, (Pointer, Long, *(Pointer,) * 4, Error)),
    "dfa_shortest": (Long, (Pointer, Pointer, Error)),
    "dfa_combine": (Pointer, (Pointer, Pointer, Int, Pointer, Error)),
    "link_sizes": (None, (Pointer, Long, Pointer, Pointer, Pointer, Error)),
    "link_parts": (Pointer, (Pointer, Long, Pointer, Pointer, Error)),
    "vocabulary_new": (Pointer, (Pointer, Pointer, Pointer, Int)),
    "vocabulary_free": (None, (Pointer,)),
    "lift_new": (Pointer, (Pointer, Pointer, Pointer, Error)),
    "lift_free": (None, (Pointer,)),
    "lift_sizes": (None, (Pointer, Pointer)),
    "lift_read": (None, (Pointer,) * 8),
    "span_new": (Pointer, (Pointer, Int, Long, Pointer, Error)),
    "span_free": (None, (Pointer,)),
    "span_has": (Int, (Pointer, Long, Int)),
    "span_forced": (Int, (*(Pointer,) * 5, Error)),
    "span_best": (Int, (Pointer, Long, Int, Pointer, Pointer, Error)),
    "complete": (None, (Pointer, Pointer, Pointer, Long, Pointer)),
    "paths_new": (Pointer, (Pointer, Long, Int, Pointer, Int, Error)),
    "paths_free": (None, (Pointer,)),
    "paths_possible": (Int, (Pointer,)),
    "paths_draw": (None, (*(Pointer,) * 4, Error)),
    "paths_shares": (None, (Pointer, Pointer, Error)),
    **dict.fromkeys(("sum_lists", "best_of_lists"), (None, (Pointer, Long, Long, Pointer, Pointer, Long, Pointer))),
    "draw_members": (None, (Pointer, Long, Long, *(Pointer,) * 6)),
    **{f"weigh_{kind}": (None, (Pointer, Long, Pointer, Pointer, Long, *PLACES, Int)) for kind in KINDS},
    **{f"first_{kind}": (None, (Pointer, Long, Long, Pointer, Long, *(Pointer,) * 3, Int)) for kind in KINDS},
    **{f"draw_{kind}": (None, (Pointer, Pointer, Float, Pointer, Pointer, Int)) for kind in KINDS},
    **{
        f"likeliest_{kind}": (
            Pointer,
            (Pointer, Long, *(Pointer,) * 2, Float, Pointer, Float, Float, *(Pointer,) * 2, Int),
        )
        for kind in KINDS
    },
    "kept_free": (None, (Pointer,)),
    "kept_draw": (None, (*(Pointer,) * 4, Long, Pointer)),
    "kept_tokens": (None, (Pointer, Long, Pointer)),
}
"""Each function of the library: what it returns, and its arguments."""


@lru_cache(maxsize=1)
def library() -> Any | None:
    """The library; None where it cannot be compiled."""
    try:
        return compiled(CONSTRAINTS, compiler_flags(), _declared)
    except UnsupportedError:
        return None


def _declared(made: Any) -> Any:
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(made, name)
        function.restype, function.argtypes = result, arguments
    return made


class Handle:
    """An object of the library, freed with this one by the function `free`."""

    def __init__(self, made: Any, pointer: int | None, free: str) -> None:
        if pointer is None:
            raise MemoryError
        self.made, self.pointer = made, pointer
        finalize(self, getattr(made, free), pointer)


class LimitedCalls:
    """Calls functions that a budget limits, and raises the error that they report."""

    def __init__(self, made: Any, budget: Budget | None = None) -> None:
        self.made, self.budget = made, budget or Budget()
        self._began = self.budget.memory.counted_by(made.memory_held)
        self._error = Int()
        self.error = ctypes.byref(self._error)

    @property
    def limits(self) -> Any:
        """What is left of the budget. Memory is limited in what this thread holds in all."""
        budget = self.budget
        left = budget.cancellation.address
        most = self._began + budget.max_bytes - budget.memory.held
        return ctypes.byref(
            LimitsStruct(budget.max_states, budget.max_steps, budget.max_edges, most, budget.until, left)
        )

    def __call__(self, name: str, *arguments: object) -> Any:
        found = getattr(self.made, name)(*arguments, self.error)
        if self._error.value:
            self.budget.exceeded(self._error.value)
        return found


def address(array: np.ndarray) -> int:
    """Where an array begins; it must be contiguous, and must outlive the call."""
    assert array.flags.c_contiguous
    return array.ctypes.data
