"""Sets of JSON values as automata over their text: compact, members in the order of the schema, then all others.

A set with members or items is made an automaton of its own, and embedded wherever it occurs. A set that contains itself
is entered again at most `depth` times; values that nest deeper are not in the language. Where a schema constrains
nothing, values nest at most `any_depth` deep: every level more doubles the automaton.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial

from daguerre.sampling.constraints.arrays import ArrayText, items
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.nfa import Nfa
from daguerre.sampling.constraints.objects import Behind, Members, ObjectText, members
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.values import TRUE, Expr, Objects


class Writer:
    """Writes the values of a schema."""

    def __init__(self, schema: Schema, depth: int, any_depth: int, budget: Budget) -> None:
        self.schema, self.depth, self.any_depth, self.budget = schema, depth, any_depth, budget
        self._written: dict[tuple[Expr, frozenset[Expr], int], Dfa] = {}
        self._within: dict[Expr, frozenset[Expr]] = {}
        self._members: dict[Objects, Members] = {}
        self._arrays = ArrayText(schema, self.dfa)

    def with_depth(self, any_depth: int) -> Writer:
        """A writer of the same schema that lets values nest so deep where it asks for nothing."""
        other = Writer(self.schema, self.depth, any_depth, self.budget)
        other._within, other._members = self._within, self._members
        return other

    @property
    def is_open(self) -> bool:
        """Whether something that was written holds values of which nothing is asked."""
        return any(expr == TRUE for expr, _, _ in self._written)

    def dfa(self, expr: Expr) -> Dfa:
        """The minimal automaton of the JSON texts of an expression."""
        return self._automaton(expr, frozenset(), self.depth)

    def _put(self, nfa: Nfa, entry: int, expr: Expr, around: frozenset[Expr], left: int) -> int:
        """Write a set into `nfa` from `entry` on, and return the state it ends in; nothing leads there if it is empty.

        `around`: the sets around this one, of those that contain themselves; `left`: how often one of them may
        yet be entered again.
        """
        held = self.schema.values(expr)
        if held.objects or held.arrays:
            return nfa.embed(entry, self._automaton(expr, around, left))
        last = nfa.state()
        self._write(nfa, entry, expr, last, around, left)
        return last

    def _automaton(self, expr: Expr, around: frozenset[Expr], left: int) -> Dfa:
        reached = self._reached(expr)
        if expr == TRUE and expr not in around:
            left = self.any_depth
        around &= reached
        if not around and not any(inner in self._reached(inner) for inner in reached if inner != TRUE):
            left = left if expr == TRUE else 0  # nothing inside is entered again
        key = (expr, around, left)
        if key not in self._written:
            is_anything = expr == TRUE and not around
            self._written[key] = anything(left) if is_anything else self.written(expr, around, left)
        return self._written[key]

    def written(self, expr: Expr, around: frozenset[Expr], left: int) -> Dfa:
        """The automaton of `_automaton`, made anew."""
        nfa = new_nfa(self.budget)
        entry, last = nfa.state(), nfa.state()
        again = expr in around
        if not again or left > 0:
            inside = around | {expr} if expr in self._reached(expr) else around
            self._write(nfa, entry, expr, last, inside, left - again)
        return nfa.determinize(entry, last)

    def _reached(self, expr: Expr) -> frozenset[Expr]:
        """All sets of members and items inside, and inside those."""
        if expr not in self._within:
            seen: set[Expr] = set()
            waiting = [expr]
            while waiting:
                for inner in self._children(waiting.pop()):
                    self.budget.steps(0)
                    if inner not in seen:
                        seen.add(inner)
                        waiting.append(inner)
                self.schema.limits.check("parts", len(seen), "nests too many different parts")
                self.budget.steps(0)
            self._within[expr] = frozenset(seen)
        return self._within[expr]

    def _children(self, expr: Expr) -> Iterator[Expr]:
        held = self.schema.values(expr)
        for shape in held.objects:
            yield from self._ready(shape).exprs()
        for array in held.arrays:
            yield from items(array)

    def _ready(self, shape: Objects) -> Members:
        if shape not in self._members:
            self._members[shape] = members(self.schema, shape)
        return self._members[shape]

    def _write(self, nfa: Nfa, entry: int, expr: Expr, last: int, around: frozenset[Expr], left: int) -> None:
        held = self.schema.values(expr)
        words = ["null"] * held.null + [str(word).lower() for word in sorted(held.booleans)]
        for word in words:
            nfa.link(nfa.literal(entry, word.encode()), last)
        if not held.numbers.is_empty:
            nfa.link(nfa.embed(entry, held.numbers), last)
        if not held.strings.is_empty:
            nfa.link(nfa.quoted(entry, held.strings), last)
        put = partial(self._put, nfa, around=around, left=left)
        for array in held.arrays:
            self._arrays.write(nfa, array, put, entry, last)
        behind: Behind = {}
        for shape in held.objects:
            ObjectText(nfa, self._ready(shape), put, behind).write(entry, last)


@lru_cache(maxsize=32)
def anything(depth: int) -> Dfa:
    """All JSON texts whose values nest at most so deep: the same in every schema."""
    budget = Budget(seconds=math.inf)
    return Writer(read_schema(True, budget), 1, depth, budget).written(TRUE, frozenset(), depth)
