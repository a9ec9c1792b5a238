"""Sets of JSON values as automata over their text: compact, members in the order of the schema, then all others.

Each set with members or items is a part, written once; where it occurs, it is called (see `linking`). A set that
contains itself is entered again at most `depth` times; values that nest deeper are not in the language. Where a schema
constrains nothing, values nest at most `any_depth` deep: every level more doubles the automaton.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache, partial

from daguerre.sampling.constraints.arrays import ArrayText, items
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, empty
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.linking import Links, call_of
from daguerre.sampling.constraints.nfa import Nfa
from daguerre.sampling.constraints.objects import Behind, Members, ObjectText, members
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.values import TRUE, Expr, Objects

ANYTHING, NOTHING = 0, 1
"""Parts: all values of which nothing is asked, and none."""
USE, ITEM = 600, 70
"""About how many bytes a use takes, and each set around it: for the budget's memory."""
Use = tuple[Expr, frozenset[Expr], int]
"""A set, those of the sets around it that contain themselves, and how often one of them may yet be entered again."""


class Writer:
    """Writes the values of a schema."""

    def __init__(self, schema: Schema, depth: int, budget: Budget) -> None:
        self.schema, self.depth, self.budget = schema, depth, budget
        self._links = Links([empty(), empty()], [ANYTHING], [[]])
        self._numbers: dict[Use, int] = {(TRUE, frozenset(), 0): 0}
        self._waiting: deque[Use] = deque()
        self._parts: dict[Expr, tuple[int, list[Expr]]] = {}
        self._inside: dict[Expr, tuple[Expr, ...]] = {}
        self._within: dict[Expr, frozenset[Expr]] = {}
        self._members: dict[Objects, Members] = {}
        self._arrays = ArrayText(schema, self._alone)

    def dfa(self, expr: Expr, any_depth: int) -> Dfa:
        """The minimal automaton of the JSON texts of an expression."""
        return self._linked(self._written(expr), any_depth)

    def deepest(self, expr: Expr, depths: Sequence[int], most: int) -> Dfa:
        """`dfa` of the last of some depths for which the automaton has at most so many states before what is alike in
        it is merged; of the first, if it has more for all.
        """
        root = self._written(expr)
        states, copies = self._links.sizes(root, self.budget)  # with ANYTHING still empty
        fit = [d for d in depths if states + copies * len(anything(d)) <= most]
        return self._linked(root, max(fit, default=depths[0]))

    def everything(self, depth: int) -> Dfa:
        """All values that nest at most so deep."""
        return self._links.linked(self._all_written((TRUE, frozenset(), depth)), self.budget)

    def _alone(self, expr: Expr) -> Dfa:
        """The automaton of a set with few values, made while others are being written."""
        other = Writer(self.schema, self.depth, self.budget)
        other._inside, other._within, other._members = self._inside, self._within, self._members
        return other.dfa(expr, 1)

    def _linked(self, root: int, any_depth: int) -> Dfa:
        return self._links.with_part(ANYTHING, anything(any_depth)).linked(root, self.budget)

    def _written(self, expr: Expr) -> int:
        return self._all_written(self._use(expr, frozenset(), self.depth))

    def _all_written(self, use: Use) -> int:
        """The number of a use, once all that it calls is written."""
        number = self._number(use)
        while self._waiting:
            self._write_use(*self._waiting.popleft())
        return number

    def _use(self, expr: Expr, around: frozenset[Expr], left: int) -> Use:
        reached = self._reached(expr)
        around &= reached
        is_flat = not around and not any(inner in self._reached(inner) for inner in reached if inner != TRUE)
        return expr, around, 0 if is_flat else left  # where nothing inside is entered again, `left` does not matter

    def _number(self, use: Use) -> int:
        if use not in self._numbers:
            self._numbers[use] = len(self._numbers)
            self._waiting.append(use)
            self.budget.steps(len(self._numbers))
            self.budget.hold(USE + ITEM * len(use[1]))
        return self._numbers[use]

    def _write_use(self, expr: Expr, around: frozenset[Expr], left: int) -> None:
        again = expr in around
        part, called = (NOTHING, []) if again and left == 0 else self._part(expr)
        inside = around | {expr} if expr in self._reached(expr) else around
        self.budget.hold(8 * len(called))
        self._links.part_of.append(part)
        self._links.calls.append([self._number(self._use(inner, inside, left - again)) for inner in called])

    def _part(self, expr: Expr) -> tuple[int, list[Expr]]:
        """(the number of the text of a set, the sets that it calls, by number)."""
        if expr not in self._parts:
            nfa, called = new_nfa(self.budget), dict[Expr, int]()
            entry, last = nfa.state(), nfa.state()
            self._write(nfa, entry, expr, last, called)
            self._links.parts.append(nfa.determinize(entry, last))
            self._parts[expr] = len(self._links.parts) - 1, list(called)
        return self._parts[expr]

    def _put(self, nfa: Nfa, called: dict[Expr, int], entry: int, expr: Expr) -> int:
        """Write a set into `nfa` from `entry` on, and return the state it ends in; nothing leads there if it is empty.

        Members and items that have some of their own are only called, by their number in `called`.
        """
        held = self.schema.values(expr)
        if held.objects or held.arrays:
            return nfa.literal(entry, call_of(called.setdefault(expr, len(called))))
        last = nfa.state()
        self._write(nfa, entry, expr, last, called)
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

    def _children(self, expr: Expr) -> tuple[Expr, ...]:
        """The sets of members and items."""
        if expr not in self._inside:
            held = self.schema.values(expr)
            found = [inner for shape in held.objects for inner in self._ready(shape).exprs()]
            found += [inner for array in held.arrays for inner in items(array)]
            self._inside[expr] = tuple(dict.fromkeys(found))
        return self._inside[expr]

    def _ready(self, shape: Objects) -> Members:
        if shape not in self._members:
            self._members[shape] = members(self.schema, shape)
        return self._members[shape]

    def _write(self, nfa: Nfa, entry: int, expr: Expr, last: int, called: dict[Expr, int]) -> None:
        held = self.schema.values(expr)
        words = ["null"] * held.null + [str(word).lower() for word in sorted(held.booleans)]
        for word in words:
            nfa.link(nfa.literal(entry, word.encode()), last)
        if not held.numbers.is_empty:
            nfa.link(nfa.embed(entry, held.numbers), last)
        if not held.strings.is_empty:
            nfa.link(nfa.quoted(entry, held.strings), last)
        put = partial(self._put, nfa, called)
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
