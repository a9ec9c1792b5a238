"""Where patterns and values are written out, by the compiled library where there is one."""

from __future__ import annotations

from daguerre.sampling.constraints import compiled
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.nfa import CompiledNfa, Nfa
from daguerre.sampling.constraints.reference.nfa import SlowNfa


def new_nfa(budget: Budget) -> Nfa:
    """An automaton without states."""
    made = compiled.library()
    return SlowNfa(budget) if made is None else CompiledNfa(compiled.LimitedCalls(made, budget))
