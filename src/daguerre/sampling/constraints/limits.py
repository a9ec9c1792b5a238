"""How much of a schema is written out: limits that an error names, and that a caller can raise."""

from __future__ import annotations

from dataclasses import dataclass, fields

from daguerre.errors import InputError, UnsupportedError
from daguerre.kinds import Whole, check_fields


@dataclass(frozen=True)
class Limits:
    """Limits of reading a schema; `budget.Budget` has those of the automaton.

    alternatives   ways to combine the alternatives of anyOf, oneOf, if and not
    unique_sets    sets of items that may be used up under uniqueItems: 2^n for n values and arrays of any length
    wanted         of contains and of excluded members, that are looked for in one array or object
    name_sets      sets of names that overlapping patternProperties make
    parts          different parts that a schema nests
    longest        a maxLength above this many characters acts as this many, or as the minLength beside it
    cases          sets of alternatives that may hold beside unevaluatedProperties or unevaluatedItems
    exponent       of ten, either way, of a number that others are compared with
    remainders     states that multipleOf needs: for each remainder, before the point and at each digit behind it
    """

    alternatives: int = 2_000
    unique_sets: int = 1_024
    wanted: int = 4
    name_sets: int = 64
    parts: int = 100_000
    longest: int = 1_000
    cases: int = 256
    exponent: int = 100
    remainders: int = 20_000

    def __post_init__(self) -> None:
        check_fields(self, dict.fromkeys((one.name for one in fields(self)), Whole(low=1)))

    def check(self, name: str, number: int, what: str) -> None:
        """UnsupportedError that names the limit when a number is above it."""
        if number > getattr(self, name):
            raise UnsupportedError(
                f"the schema {what}, above {getattr(self, name):,}: write it simpler, or compile with "
                f"limits=Limits({name}=...)"
            )


DEFAULT = Limits()


def contradiction(capped: list[str], limits: Limits) -> InputError:
    """The error where no text is left; `capped`: the places of maxLength that acted as `longest`."""
    if capped:
        return InputError(
            f"the schema allows no text in which strings have at most {limits.longest:,} characters, as maxLength at "
            f"{capped[0]} is read: compile with limits=Limits(longest=...)"
        )
    return InputError("the constraint allows no text at all: it contradicts itself; loosen it")
