"""Sets of JSON values as automata over their text: compact, members in the order of the schema, then all others.

A set is written once for each place where it nests differently. A set that contains itself is entered again at most
`depth` times; values that nest deeper are not in the language. Where a schema constrains nothing, values nest at most
`any_depth` deep: every level more doubles the automaton.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Protocol

from daguerre.errors import UnsupportedError
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, intersect, subtract
from daguerre.sampling.constraints.nfa import Nfa
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.text import literals
from daguerre.sampling.constraints.values import FALSE, TRUE, Arrays, Const, Expr, Objects, every

MAX_KEY_SETS = 32
MAX_UNIQUE = 7
MAX_CONTAINS = 3
MAX_EXPRESSIONS = 5_000


class Writer:
    """Writes the values of a schema."""

    def __init__(self, schema: Schema, depth: int, any_depth: int, budget: Budget) -> None:
        self.schema, self.depth, self.any_depth, self.budget = schema, depth, any_depth, budget
        self._written: dict[tuple[Expr, frozenset[Expr], int], Dfa] = {}
        self._within: dict[Expr, frozenset[Expr]] = {}

    def dfa(self, expr: Expr) -> Dfa:
        """The minimal automaton of the JSON texts of an expression."""
        nfa = new_nfa(self.budget)
        entry = nfa.state()
        return nfa.determinize(entry, self._put(nfa, entry, expr, frozenset(), self.depth))

    def _put(self, nfa: Nfa, entry: int, expr: Expr, around: frozenset[Expr], left: int) -> int:
        """Write a set into `nfa` from `entry` on, and return the state it ends in; nothing leads there if it is empty.

        `around`: the sets around this one, of those that contain themselves; `left`: how often one of them may
        yet be entered again.
        """
        if expr in self._reached(expr):
            return nfa.embed(entry, self._recursive(expr, around, left))
        last = nfa.state()
        self._write(nfa, entry, expr, last, around, left)
        return last

    def _recursive(self, expr: Expr, around: frozenset[Expr], left: int) -> Dfa:
        """The automaton of a set that contains itself."""
        if expr == TRUE and expr not in around:
            left = self.any_depth
        around &= self._reached(expr)
        key = (expr, around, left)
        if key not in self._written:
            nfa = new_nfa(self.budget)
            entry, last = nfa.state(), nfa.state()
            if expr not in around or left > 0:
                self._write(nfa, entry, expr, last, around | {expr}, left - (expr in around))
            self._written[key] = nfa.determinize(entry, last)
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
            self._array(nfa, array, put, entry, last)
        for shape in held.objects:
            self._object(nfa, shape, put, entry, last)

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

    def _object(self, nfa: Nfa, shape: Objects, put: Put, entry: int, last: int) -> None:
        """Write the objects of a shape, with a state for each number of members so far, as far as that matters."""
        names, others = shape.names(), self._others(shape)
        most = None if shape.most is None or (not others and shape.most >= len(names)) else shape.most
        least = shape.least if shape.least > len(shape.required) else 0
        if least > 1 and others:  # a name might come twice, and count once
            raise UnsupportedError(
                f"the schema's minProperties {shape.least} counts members that it does not name, which is not "
                "supported: use required, or additionalProperties: false"
            )
        top = max(least, 1) if most is None else most
        at = {0: nfa.literal(entry, b"{")}
        for name in names:
            arrive = self._keys(nfa, at, literals([name], self.budget), top, most)
            ends = {count: put(state, expr=shape.member(name)) for count, state in arrive.items()}
            passed = {} if name in shape.required else at
            at = {count: nfa.state() for count in sorted({*ends, *passed})}
            for count, state in [*ends.items(), *passed.items()]:
                nfa.link(state, at[count])
        if others:
            at |= {count: nfa.state() for count in range(min(at), top + 1) if count not in at}
        for keys, member in others:
            for count, state in self._keys(nfa, at, keys, top, most).items():
                nfa.link(put(state, expr=member), at[count])
        for count, state in at.items():
            if count >= least:
                nfa.link(nfa.literal(state, b"}"), last)

    def _keys(self, nfa: Nfa, at: dict[int, int], names: Dfa, top: int, most: int | None) -> dict[int, int]:
        """Write a name up to its value, after each number of members; return a state for each number after that."""
        arrive: dict[int, int] = {}
        for count, state in at.items():
            if (more := _more(count, top, most)) <= top:
                if more not in arrive:
                    arrive[more] = nfa.state()
                key = nfa.quoted(nfa.literal(state, b"," * (count > 0)), names)
                nfa.link(nfa.literal(key, b":"), arrive[more])
        return arrive

    def _array(self, nfa: Nfa, shape: Arrays, put: Put, entry: int, last: int) -> None:
        """Write the arrays of a shape, with a state for each (number of items, what is seen of wanted or used ones)."""
        if (shape.contains and shape.unique) or len(shape.contains) > MAX_CONTAINS:
            raise UnsupportedError("the schema's contains is not supported with uniqueItems or many others: remove it")
        arms_of = self._unique_arms if shape.unique else self._arms
        top = max(shape.least, shape.num_prefix, 1) if shape.most is None else shape.most
        start: tuple[int, frozenset[str]] = (0, frozenset())
        states = {start: nfa.literal(entry, b"[")}
        begins: dict[tuple[int, frozenset[str], Expr], int] = {}
        waiting = [start]
        while waiting:
            count, seen = waiting.pop()
            state = states[count, seen]
            if count >= shape.least and (shape.unique or len(seen) == len(shape.contains)):
                nfa.link(nfa.literal(state, b"]"), last)
            more = _more(count, top, shape.most)
            for member, seen_then in arms_of(shape, count, seen) if more <= top else ():
                if (more, seen_then) not in states:
                    states[more, seen_then] = nfa.state()
                    waiting.append((more, seen_then))
                if (more, seen_then, member) not in begins:
                    begin = begins[more, seen_then, member] = nfa.state()
                    nfa.link(put(begin, expr=member), states[more, seen_then])
                nfa.link(nfa.literal(state, b"," * (count > 0)), begins[more, seen_then, member])

    def _arms(self, shape: Arrays, i: int, seen: frozenset[str]) -> Iterator[Arm]:
        """(an item, what is then seen): once for each set of the wanted items that it matches."""
        wanted = {str(k): expr for k, expr in enumerate(shape.contains) if str(k) not in seen}
        for size in range(len(wanted) + 1):
            for chosen in combinations(wanted, size):
                yield every([shape.item(i), *(wanted[k] for k in chosen)]), seen | set(chosen)

    def _unique_arms(self, shape: Arrays, i: int, seen: frozenset[str]) -> Iterator[Arm]:
        """(an item, what is then seen): one of few values, none of those already seen."""
        texts = self.dfa(shape.item(i)).strings(MAX_UNIQUE)
        if texts is None:
            raise UnsupportedError(
                f"the schema's uniqueItems is supported for items of at most {MAX_UNIQUE} values: list them in an enum"
            )
        for text in sorted(texts):
            value = repr(json.loads(text, parse_float=_number))
            if value not in seen:
                yield Const(text.decode()), seen | {value}


Arm = tuple[Expr, frozenset[str]]


class Put(Protocol):
    """`Writer._put`, with all but these arguments bound."""

    def __call__(self, entry: int, /, expr: Expr) -> int: ...


def _more(count: int, top: int, most: int | None) -> int:
    """One more than `count`; where nothing limits it, `top` means itself and all above."""
    return min(count + 1, top) if most is None else count + 1


def _number(text: str) -> float | int:
    """Equal for equal numbers, whatever their text."""
    value = float(text)
    return int(value) if value.is_integer() else value
