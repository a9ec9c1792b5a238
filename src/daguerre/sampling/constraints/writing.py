"""Sets of JSON values as automata over their text: compact, members in the order of the schema, then all others.

A set is written once for each place where it nests differently. A set that contains itself is entered again at most
`depth` times; values that nest deeper are not in the language. "Any value" nests at most ANY_DEPTH deep.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

from daguerre.errors import UnsupportedError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, empty, intersect, subtract
from daguerre.sampling.constraints.nfa import Nfa, determinize
from daguerre.sampling.constraints.schema import Schema, literals
from daguerre.sampling.constraints.values import FALSE, TRUE, Arrays, Expr, Objects, every

ANY_DEPTH = 2
MAX_KEY_SETS = 32
MAX_UNIQUE = 7
MAX_CONTAINS = 3
MAX_EXPRESSIONS = 5_000


class Writer:
    """Writes the values of a schema."""

    def __init__(self, schema: Schema, depth: int, budget: Budget) -> None:
        self.schema, self.depth, self.budget = schema, depth, budget
        self._written: dict[tuple[Expr, frozenset[Expr], int], Dfa] = {}
        self._within: dict[Expr, frozenset[Expr]] = {}

    def dfa(self, expr: Expr) -> Dfa:
        """The minimal automaton of the JSON texts of an expression."""
        return self._dfa(expr, frozenset(), self.depth)

    def _dfa(self, expr: Expr, around: frozenset[Expr], left: int) -> Dfa:
        """`around`: the sets that this one stands in and may lead back to; `left`: how often that may yet happen."""
        if expr == FALSE:
            return empty()
        if expr == TRUE and expr not in around:
            left = min(left, ANY_DEPTH)
        around &= self._reached(expr)
        key = (expr, around, left)
        if key not in self._written:
            if expr in around and left == 0:
                self._written[key] = empty()
            else:
                self._written[key] = self._write(expr, around | {expr}, left - (expr in around))
        return self._written[key]

    def _reached(self, expr: Expr) -> frozenset[Expr]:
        """All sets of members and items inside, and inside those."""
        if expr not in self._within:
            seen: set[Expr] = set()
            waiting = [expr]
            while waiting:
                for inner in self._children(waiting.pop()):
                    if inner not in seen:
                        seen.add(inner)
                        waiting.append(inner)
                if len(seen) > MAX_EXPRESSIONS:
                    raise UnsupportedError("the schema combines its parts in too many ways: write fewer of them")
                self.budget.steps(0)
            self._within[expr] = frozenset(seen)
        return self._within[expr]

    def _children(self, expr: Expr) -> Iterator[Expr]:
        held = self.schema.values(expr)
        for shape in held.objects:
            yield from map(shape.member, shape.names())
            yield from (member for _, member in self._others(shape))
        for array in held.arrays:
            for i in range(array.num_prefix + 1):
                yield array.item(i)
                yield from (every([array.item(i), wanted]) for wanted in array.contains)

    def _write(self, expr: Expr, around: frozenset[Expr], left: int) -> Dfa:
        held = self.schema.values(expr)
        nfa = Nfa(self.budget)
        entry, last = nfa.state(), nfa.state()
        words = ["null"] * held.null + [str(word).lower() for word in sorted(held.booleans)]
        for word in words:
            nfa.link(nfa.literal(entry, word.encode()), last)
        if not held.numbers.is_empty:
            nfa.link(nfa.embed(entry, held.numbers), last)
        if not held.strings.is_empty:
            nfa.link(nfa.quoted(entry, held.strings), last)
        for array in held.arrays:
            self._array(nfa, array, partial(self._dfa, around=around, left=left), entry, last)
        for shape in held.objects:
            self._object(nfa, shape, partial(self._dfa, around=around, left=left), entry, last)
        return determinize(nfa, entry, last)

    def _others(self, shape: Objects) -> list[tuple[Dfa, Expr]]:
        """Disjoint sets of names that the schema does not mention, each with what such a member must be."""
        if any(rule.rest == FALSE and not rule.patterns for rule in shape.rules):
            return []
        parts = [subtract(self.schema.everything.strings, literals(shape.names(), self.budget), self.budget)]
        for names in dict.fromkeys(names for rule in shape.rules for names, _ in rule.patterns):
            split = [[intersect(part, names, self.budget), subtract(part, names, self.budget)] for part in parts]
            parts = [part for pair in split for part in pair if not part.is_empty]
            if len(parts) > MAX_KEY_SETS:
                raise UnsupportedError("the schema's patternProperties overlap in too many ways: write fewer of them")
        found = [(part, shape.member(part.shortest().decode())) for part in parts]
        return [(part, member) for part, member in found if member != FALSE]

    def _object(self, nfa: Nfa, shape: Objects, dfa_of: DfaOf, entry: int, last: int) -> None:
        """Write the objects of a shape, with a state for each number of members so far, as far as that matters."""
        slots = [(name, dfa_of(shape.member(name)), name in shape.required) for name in shape.names()]
        if any(required and member.is_empty for _, member, required in slots):
            return
        slots = [slot for slot in slots if not slot[1].is_empty]
        others = [(names, dfa_of(member)) for names, member in self._others(shape)]
        others = [(names, member) for names, member in others if not member.is_empty]
        most = None if shape.most is None or (not others and shape.most >= len(slots)) else shape.most
        least = shape.least if shape.least > sum(required for _, _, required in slots) else 0
        if least > 1 and others:  # a name might come twice, and count once
            raise UnsupportedError(
                f"the schema's minProperties {shape.least} counts members that it does not name, which is not "
                "supported: use required, or additionalProperties: false"
            )
        top = max(least, 1) if most is None else most
        at = {0: nfa.literal(entry, b"{")}
        for name, member, required in slots:
            arrive = {count: nfa.state() for count in sorted({_more(c, top, most) for c in at} - {top + 1})}
            key = literals([name], self.budget)
            for count, state in at.items():
                if (more := _more(count, top, most)) in arrive:
                    nfa.link(_key(nfa, state, count, key), arrive[more])
            passed = {} if required else at
            ends = {count: nfa.embed(state, member) for count, state in arrive.items()}
            at = {count: nfa.state() for count in sorted({*ends, *passed})}
            for count, state in [*ends.items(), *passed.items()]:
                nfa.link(state, at[count])
        for count in range(top + 1) if others else ():
            more = _more(count, top, most)
            if count in at and more <= top:
                target = at.setdefault(more, nfa.state())
                for names, member in others:
                    nfa.link(nfa.embed(_key(nfa, at[count], count, names), member), target)
        for count, state in at.items():
            if count >= least:
                nfa.link(nfa.literal(state, b"}"), last)

    def _array(self, nfa: Nfa, shape: Arrays, dfa_of: DfaOf, entry: int, last: int) -> None:
        """Write the arrays of a shape, with a state for each (number of items, what is seen of those wanted or used)."""
        if (shape.contains and shape.unique) or len(shape.contains) > MAX_CONTAINS:
            raise UnsupportedError("the schema's contains is not supported with uniqueItems or many others: remove it")
        arms_of = self._unique_arms if shape.unique else self._arms
        top = max(shape.least, shape.num_prefix, 1) if shape.most is None else shape.most
        start: tuple[int, frozenset[str]] = (0, frozenset())
        states = {start: nfa.literal(entry, b"[")}
        waiting = [start]
        while waiting:
            count, seen = waiting.pop()
            state = states[count, seen]
            if count >= shape.least and (shape.unique or len(seen) == len(shape.contains)):
                nfa.link(nfa.literal(state, b"]"), last)
            more = _more(count, top, shape.most)
            for member, seen_then in arms_of(shape, dfa_of, count, seen) if more <= top else ():
                if not member.is_empty:
                    if (more, seen_then) not in states:
                        states[more, seen_then] = nfa.state()
                        waiting.append((more, seen_then))
                    begin = nfa.literal(state, b"," * (count > 0))
                    nfa.link(nfa.embed(begin, member), states[more, seen_then])

    def _arms(self, shape: Arrays, dfa_of: DfaOf, i: int, seen: frozenset[str]) -> Iterator[Arm]:
        """(an item, what is then seen): with every choice of wanted items that it is at once."""
        wanted = {str(k): expr for k, expr in enumerate(shape.contains) if str(k) not in seen}
        for size in range(len(wanted) + 1):
            for chosen in combinations(wanted, size):
                yield dfa_of(every([shape.item(i), *(wanted[k] for k in chosen)])), seen | set(chosen)

    def _unique_arms(self, shape: Arrays, dfa_of: DfaOf, i: int, seen: frozenset[str]) -> Iterator[Arm]:
        """(an item, what is then seen): one of few values, none of those already seen."""
        texts = dfa_of(shape.item(i)).strings(MAX_UNIQUE)
        if texts is None:
            raise UnsupportedError(
                f"the schema's uniqueItems is supported for items of at most {MAX_UNIQUE} values: list them in an enum"
            )
        for text in sorted(texts):
            value = repr(json.loads(text, parse_float=_number))
            if value not in seen:
                yield literals([text], self.budget), seen | {value}


DfaOf = Callable[[Expr], Dfa]
Arm = tuple[Dfa, frozenset[str]]


def _more(count: int, top: int, most: int | None) -> int:
    """One more than `count`; where nothing limits it, `top` stands for itself and all above."""
    return min(count + 1, top) if most is None else count + 1


def _key(nfa: Nfa, state: int, count: int, names: Dfa) -> int:
    """A member's name up to its value, after `count` members."""
    return nfa.literal(nfa.quoted(nfa.literal(state, b"," * (count > 0)), names), b":")


def _number(text: str) -> float | int:
    """Equal for equal numbers, whatever their text."""
    value = float(text)
    return int(value) if value.is_integer() else value
