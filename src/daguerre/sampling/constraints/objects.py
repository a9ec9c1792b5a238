"""Objects as text: named members in the order of the schema, then all others.

Keys are read along a trie of the names that may still come, so the automaton has a state for each byte of each name,
and not for each pair of names. How many members there are, and which of the wanted ones, is a part of the state as far
as it matters. No automaton can remember names that the schema does not mention: such a name may come twice, and
minProperties counts such members only while the classes of their names ascend. There are as many classes as it needs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Protocol

import numpy as np

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, intersect, subtract, table_dfa
from daguerre.sampling.constraints.nfa import Nfa
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.text import compact, literals
from daguerre.sampling.constraints.values import FALSE, TRUE, Expr, Not, Objects, every

FEW_NAMES = 16
"""So many names that a pattern allows are treated like names of the schema."""
CLASSES = 5
"""There are never fewer classes of names."""
ENTRY, NODE = 400, 600
"""About how many bytes an entry of a table below takes, and a node of a trie: for the budget's memory."""


class Put(Protocol):
    """Writes a set of values from a state on, and returns the state that it ends in."""

    def __call__(self, entry: int, /, expr: Expr) -> int: ...


@dataclass(frozen=True)
class Member:
    """What a member must be, and which of the wanted members (`Objects.some`) it may be."""

    expr: Expr
    may_be: tuple[int, ...] = ()

    def arms(self, some: tuple[tuple[Dfa, Expr], ...], seen: frozenset[int]) -> Iterator[tuple[Expr, frozenset[int]]]:
        """(what it is, what is then seen): once for each set of the wanted ones that it is, the others excluded."""
        wanted = [k for k in self.may_be if k not in seen]
        for size in range(len(wanted) + 1):
            for chosen in combinations(wanted, size):
                kinds = (some[k][1] if k in chosen else _other(some[k][1]) for k in wanted)
                yield every([self.expr, *kinds]), seen | set(chosen)


def _other(expr: Expr) -> Expr:
    return expr.part if isinstance(expr, Not) else FALSE if expr == TRUE else Not(expr)


@dataclass(frozen=True, eq=False)
class Members:
    """A shape made ready for writing: names in order, each with its member, and disjoint sets of all other names."""

    shape: Objects
    budget: Budget
    named: dict[str, Member]
    others: list[tuple[Dfa, Member]]
    impossible: bool = False

    def exprs(self) -> Iterator[Expr]:
        """What members may be."""
        for member in [*self.named.values(), *(member for _, member in self.others)]:
            for expr, _ in member.arms(self.shape.some, frozenset()):
                yield expr

    @cached_property
    def most(self) -> int | None:
        """maxProperties, where it can be exceeded."""
        most = self.shape.most
        return None if most is None or (not self.others and most >= len(self.named)) else most

    @cached_property
    def least(self) -> int:
        """minProperties, where required members do not reach it."""
        return self.shape.least if self.shape.least > len(self.shape.required) else 0

    @cached_property
    def classes(self) -> int:
        """How many classes of names there are."""
        found = max(CLASSES, self.least - len(self.named))
        self.budget.steps(found**4 // 2)  # about so many are written
        self.budget.hold(4 * found**3)
        return found

    @cached_property
    def trie(self) -> Key:
        root = Key()
        for index, name in enumerate(self.named):
            root.add(compact(name).encode() + b":", index, self.budget)
        return root

    @cached_property
    def last_before(self) -> list[int]:
        """For each index, the first required member from there on: none behind it may come before it."""
        names = list(self.named)
        found = [len(names)] * (len(names) + 1)
        for i in reversed(range(len(names))):
            found[i] = i if names[i] in self.shape.required else found[i + 1]
        return found


@dataclass(eq=False)
class Key:
    """A node of a trie: the bytes that follow, and the sorted indices of the names below."""

    after: dict[int, Key] = field(default_factory=dict)
    names: list[int] = field(default_factory=list)

    def add(self, text: bytes, index: int, budget: Budget) -> None:
        node = self
        node.names.append(index)
        for byte in text:
            if byte not in node.after:
                budget.hold(NODE)
                node.after[byte] = Key()
            node = node.after[byte]
            node.names.append(index)
        budget.hold(8 * len(text))


def members(schema: Schema, shape: Objects) -> Members:
    """How the objects of a shape are written."""
    schema.limits.check("wanted", len(shape.some), f"asks for {len(shape.some)} kinds of members of one object")
    named = {}
    for name in shape.names():
        named[name] = _member(shape, name)
        schema.budget.hold(ENTRY)
        schema.budget.steps(0)
    impossible = any(named[name].expr == FALSE for name in shape.required)
    others: list[tuple[Dfa, Member]] = []
    for names in _other_names(schema, shape):
        few = names.strings(FEW_NAMES, schema.budget)
        if few is None:
            others.append((names, _member(shape, names.shortest().decode())))
        else:
            named |= {name: _member(shape, name) for name in sorted(text.decode() for text in few)}
    possible = {name: member for name, member in named.items() if member.expr != FALSE}
    return Members(shape, schema.budget, possible, [(names, m) for names, m in others if m.expr != FALSE], impossible)


def _member(shape: Objects, name: str) -> Member:
    may_be = [k for k, (names, _) in enumerate(shape.some) if names.accepts(name.encode())]
    return Member(shape.member(name), tuple(may_be))


def _other_names(schema: Schema, shape: Objects) -> list[Dfa]:
    """Disjoint sets of names that the schema does not mention, in each of which all are treated alike."""
    if any(rule.rest == FALSE and not rule.patterns for rule in shape.rules):
        return []
    sets = dict.fromkeys(
        [names for rule in shape.rules for names, _ in rule.patterns] + [names for names, _ in shape.some]
    )
    key = (frozenset(shape.names()), *sets)
    if key not in schema.other_names:
        schema.other_names[key] = _split(schema, shape, list(sets))
    return schema.other_names[key]


def _split(schema: Schema, shape: Objects, sets: list[Dfa]) -> list[Dfa]:
    parts = [subtract(schema.everything.strings, literals(shape.names(), schema.budget), schema.budget)]
    for names in sets:
        split = [[intersect(part, names, schema.budget), subtract(part, names, schema.budget)] for part in parts]
        parts = [part for pair in split for part in pair if not part.is_empty]
        schema.limits.check("name_sets", len(parts), "has patternProperties that overlap in too many ways")
    return parts


@dataclass(frozen=True)
class Held:
    """What an object holds so far: members, as far as that is counted; different ones; wanted ones; the class of the
    last name that was counted as different; classes of names that may not come again.
    """

    num: int = 0
    different: int = 0
    seen: frozenset[int] = frozenset()
    last: int = -1
    barred: frozenset[int] = frozenset()


Behind = dict[tuple[object, Held], int]
"""States behind the named members, which shapes with equal members behind them share."""


class ObjectText:
    """Writes the objects of one shape into an automaton. `behind` is shared by shapes that end in the same state."""

    def __init__(self, nfa: Nfa, ready: Members, put: Put, behind: Behind) -> None:
        self.nfa, self.ready, self.put, self.some = nfa, ready, put, ready.shape.some
        self.members = list(ready.named.values())
        self.before: dict[tuple[int, Held], int] = {}  # before the members from an index on
        others = tuple((id(names), member) for names, member in ready.others)
        self.classes, self.behind = [_class(k, ready.classes) for k in range(ready.classes)], behind
        self.alike = (others, ready.least, ready.most, ready.shape.some, ready.classes)
        self.keys: dict[tuple[Key, int, int, Held], int] = {}
        self.begins: dict[tuple[int, Held, Expr], int] = {}  # of members, by index; -1: of names not in the schema
        self.waiting: list[tuple[int, Held]] = []
        self.held = 0

    def _hold(self) -> None:
        """Count one more entry of these tables."""
        self.held += ENTRY
        self.nfa.budget.hold(ENTRY)

    def write(self, entry: int, last: int) -> None:
        if self.ready.impossible:
            return
        self.last = last
        self.nfa.link(self.nfa.literal(entry, b"{"), self._before(0, Held()))
        while self.waiting:
            index, held = self.waiting.pop()
            if index < 0:
                self._write_others(held)
            else:
                self._write_named(index, held)
        self.nfa.budget.hold(-self.held)

    def _before(self, index: int, held: Held) -> int:
        if (index, held) not in self.before:
            self._hold()
            self.before[index, held] = self.nfa.state()
            self.waiting.append((index, held))
        return self.before[index, held]

    def _behind(self, held: Held) -> int:
        if (self.alike, held) not in self.behind:
            self.behind[self.alike, held] = self.nfa.state()
            self.waiting.append((-1, held))
        return self.behind[self.alike, held]

    def _counted(self, held: Held) -> int | None:
        """The number of members after one more; None where there may be none."""
        if self.ready.most is None:
            return 1
        return held.num + 1 if held.num < self.ready.most else None

    def _write_named(self, index: int, held: Held) -> None:
        state, required = self.before[index, held], self.ready.last_before[index]
        if required == len(self.members):
            self.nfa.link(state, self._behind(held))
        num = self._counted(held)
        if num is not None and index < len(self.members):
            different = min(held.different + 1, self.ready.least)
            last = held.last if different < self.ready.least else -1
            then = Held(num, different, held.seen, last, held.barred)
            comma = self.nfa.literal(state, b"," * (held.num > 0))
            self.nfa.link(comma, self._key(self.ready.trie, index, required, then))

    def _key(self, node: Key, low: int, high: int, held: Held) -> int:
        """The state in which what is left of a name is one below `node`, of an index from `low` to `high`."""
        mark = (node, bisect_left(node.names, low), bisect_right(node.names, high), held)
        if mark in self.keys:
            return self.keys[mark]
        self._hold()
        state = self.keys[mark] = self.nfa.state()
        text = b""
        while True:  # as long as one byte alone may follow
            after = [(byte, child) for byte, child in node.after.items() if _has(child, low, high)]
            if len(after) != 1:
                break
            text += bytes([after[0][0]])
            node = after[0][1]
        end = self.nfa.literal(state, text)
        for byte, child in after:
            self.nfa.link(self.nfa.literal(end, bytes([byte])), self._key(child, low, high, held))
        if not node.after:
            self._value(end, node.names[0], held)
        return state

    def _value(self, state: int, index: int, held: Held) -> None:
        for expr, seen in self.members[index].arms(self.some, held.seen):
            then = replace(held, seen=seen)
            mark = (index, then, expr)
            if mark not in self.begins:
                self._hold()
                begin = self.begins[mark] = self.nfa.state()
                self.nfa.link(self.put(begin, expr=expr), self._before(index + 1, then))
            self.nfa.link(state, self.begins[mark])

    def _write_others(self, held: Held) -> None:
        state = self.behind[self.alike, held]
        if held.different >= self.ready.least and len(held.seen) == len(self.some):
            self.nfa.link(self.nfa.literal(state, b"}"), self.last)
        num = self._counted(held)
        if num is None or not self.ready.others:
            return
        comma = self.nfa.literal(state, b"," * (held.num > 0))
        for names, member in self.ready.others:
            for k in held.barred:
                names = subtract(names, self.classes[k], self.nfa.budget)
            wanted = any(k not in held.seen for k in member.may_be)
            for chosen, different, last in self._counts(names, held):
                for k in range(len(self.classes)) if wanted else (-1,):
                    part = chosen if k < 0 else intersect(chosen, self.classes[k], self.nfa.budget)
                    for expr, seen in member.arms(self.some, held.seen):
                        # what a member was wanted for must not be lost to a later one of the same name
                        barred = held.barred if seen == held.seen else held.barred | {k}
                        self._write_other(comma, part, expr, Held(num, different, seen, last, barred))

    def _write_other(self, comma: int, names: Dfa, expr: Expr, then: Held) -> None:
        """Write a member of any of some names."""
        if names.is_empty:
            return
        mark = (-1, then, expr)
        if mark not in self.begins:
            self._hold()
            begin = self.begins[mark] = self.nfa.state()
            self.nfa.link(self.put(begin, expr=expr), self._behind(then))
        self.nfa.link(self.nfa.literal(self.nfa.quoted(comma, names), b":"), self.begins[mark])

    def _counts(self, names: Dfa, held: Held) -> Iterator[tuple[Dfa, int, int]]:
        """(names, how many members are then different, the last class), for each way to count one of some names."""
        least = self.ready.least
        if held.different == least or (held.last < 0 and held.different + 1 == least):
            yield names, least, -1
            return
        for k, names_of_class in enumerate(self.classes):
            chosen = intersect(names, names_of_class, self.nfa.budget)
            if k < held.last and least == 2:  # the only name before it is of another class
                yield chosen, least, -1
            elif k <= held.last:
                yield chosen, held.different, held.last
            elif held.different + 1 == least:
                yield chosen, least, -1
            else:
                yield chosen, held.different + 1, k


def _has(node: Key, low: int, high: int) -> bool:
    return bisect_left(node.names, low) < bisect_right(node.names, high)


def class_of(name: str, classes: int) -> int:
    """The class of a name: a number that names rarely share, and that a small automaton can compute."""
    found = 0
    for byte in name.encode():
        found = (3 * found + byte) % classes
    return found


@lru_cache(maxsize=64)
def _class(k: int, classes: int) -> Dfa:
    """The names of a class."""
    state, byte = np.arange(classes), np.arange(256)
    delta_QK = (3 * state[:, None] + byte[:classes]) % classes
    column = byte % classes if classes < 256 else byte
    return table_dfa(delta_QK.astype(np.int32), column.astype(np.uint8), state == k)
