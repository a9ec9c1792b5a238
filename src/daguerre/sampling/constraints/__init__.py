"""Constraints: output that is always valid, whatever order positions are committed in.

A constraint is compiled to a `TokenAutomaton`; a `Programme` says what it allows on a row of positions.
"""

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compile import (
    compile_choices,
    compile_grammar,
    compile_regex,
    compile_schema,
    compile_tools,
)
from daguerre.sampling.constraints.limits import Limits
from daguerre.sampling.constraints.programme import Programme
from daguerre.sampling.constraints.tokens import TokenAutomaton

__all__ = [
    "Budget",
    "Limits",
    "Programme",
    "TokenAutomaton",
    "compile_choices",
    "compile_grammar",
    "compile_regex",
    "compile_schema",
    "compile_tools",
]
