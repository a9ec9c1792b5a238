"""Sets of JSON values as automata over their text: compact, members in the order of the schema, then all others.

Each set with members or items is a part, written once; where it occurs, it is called (see `linking`). A set that
contains itself is entered again at most `depth` times; values that nest deeper are not in the language. Where a schema
constrains nothing, values nest at most `any_depth` deep: every level more doubles the automaton.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

from daguerre.sampling.constraints.arrays import ArrayText, items
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, empty
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.linking import call_of, linked, sizes
from daguerre.sampling.constraints.nfa import Nfa
from daguerre.sampling.constraints.objects import Behind, Members, ObjectText, members
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.values import TRUE, Expr, Objects

ANYTHING = 0
"""The part that is all values of which nothing is asked."""
Key = tuple[Expr, frozenset[Expr], int]
"""A part: a set, the sets around it, of those that contain themselves, and how often one may yet be entered again."""


class Writer:
    """Writes the values of a schema."""

    def __init__(self, schema: Schema, depth: int, budget: Budget) -> None:
        self.schema, self.depth, self.budget = schema, depth, budget
        self._parts: list[Dfa] = [empty()]
        self._numbers: dict[Key, int] = {(TRUE, frozenset(), 0): ANYTHING}
        self._waiting: list[Key] = []
        self._within: dict[Expr, frozenset[Expr]] = {}
        self._members: dict[Objects, Members] = {}
        self._arrays = ArrayText(schema, self._alone)

    def dfa(self, expr: Expr, any_depth: int) -> Dfa:
        """The minimal automaton of the JSON texts of an expression."""
        return linked(*self._written(self._key(expr, frozenset(), self.depth), any_depth), self.budget)

    def deepest(self, expr: Expr, depths: Sequence[int], most: int) -> Dfa:
        """`dfa` of the last of some depths for which the automaton has at most so many states before what is alike in
        it is merged; of the first, if it has more for all.
        """
        parts, root = self._written(self._key(expr, frozenset(), self.depth), depths[0])
        states, copies = sizes(parts, root, self.budget)
        fit = [d for d in depths if states + copies * (len(anything(d)) - len(anything(depths[0]))) <= most]
        return self.dfa(expr, max(fit, default=depths[0]) if copies else depths[0])

    def everything(self, depth: int) -> Dfa:
        """All values that nest at most so deep."""
        return linked(*self._written((TRUE, frozenset(), depth), 0), self.budget)

    def _alone(self, expr: Expr) -> Dfa:
        """The automaton of a set with few values, made while others are being written."""
        other = Writer(self.schema, self.depth, self.budget)
        other._within, other._members = self._within, self._members
        return other.dfa(expr, 1)

    def _key(self, expr: Expr, around: frozenset[Expr], left: int) -> Key:
        reached = self._reached(expr)
        around &= reached
        is_flat = not around and not any(inner in self._reached(inner) for inner in reached if inner != TRUE)
        return expr, around, 0 if is_flat else left  # where nothing inside is entered again, `left` does not matter

    def _number(self, key: Key) -> int:
        """The number of a part that is written now or later."""
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._waiting.append(key)
        return self._numbers[key]

    def _written(self, key: Key, any_depth: int) -> tuple[list[Dfa], int]:
        """(all parts, the number of this one), once everything that it calls is written."""
        root = self._number(key)
        while self._waiting:
            self._parts.append(self._part(*self._waiting.pop(0)))
        return [anything(any_depth) if any_depth else empty(), *self._parts[1:]], root

    def _part(self, expr: Expr, around: frozenset[Expr], left: int) -> Dfa:
        nfa = new_nfa(self.budget)
        entry, last = nfa.state(), nfa.state()
        again = expr in around
        if not again or left > 0:
            inside = around | {expr} if expr in self._reached(expr) else around
            self._write(nfa, entry, expr, last, inside, left - again)
        return nfa.determinize(entry, last)

    def _put(self, nfa: Nfa, entry: int, expr: Expr, around: frozenset[Expr], left: int) -> int:
        """Write a set into `nfa` from `entry` on, and return the state it ends in; nothing leads there if it is empty.

        `around` and `left` as in `Key`.
        """
        held = self.schema.values(expr)
        if held.objects or held.arrays:
            return nfa.literal(entry, call_of(self._number(self._key(expr, around, left))))
        last = nfa.state()
        self._write(nfa, entry, expr, last, around, left)
        return last

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
    return Writer(read_schema(True, budget), 1, budget).everything(depth)
