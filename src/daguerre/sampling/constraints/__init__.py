"""Constraints: output that is always valid, whatever order positions are committed in.

A constraint is compiled to a `TokenAutomaton`; a `Programme` says what it allows on a row of positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daguerre.lazily import names_from

if TYPE_CHECKING:
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

__getattr__ = names_from(
    __name__,
    {
        "Budget": "daguerre.sampling.constraints.budget",
        "Limits": "daguerre.sampling.constraints.limits",
        "Programme": "daguerre.sampling.constraints.programme",
        "TokenAutomaton": "daguerre.sampling.constraints.tokens",
        **dict.fromkeys(
            ("compile_choices", "compile_grammar", "compile_regex", "compile_schema", "compile_tools"),
            "daguerre.sampling.constraints.compile",
        ),
    },
)

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
