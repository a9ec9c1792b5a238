"""Sets of JSON values, closed under "and" and "or": what a schema means, before it is written as text.

An expression names a set; `schema.Schema.values` works it out as `Values`, one kind of value at a time. Members of
objects and items of arrays stay expressions, so a schema may refer to itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, empty, intersect, unite
from daguerre.sampling.constraints.limits import Limits


@dataclass(frozen=True)
class Node:
    """The schema at a JSON pointer of the document."""

    pointer: str


@dataclass(frozen=True)
class Const:
    """One value, given as compact JSON."""

    text: str


@dataclass(frozen=True)
class Has:
    """Objects with a member of this name."""

    name: str


@dataclass(frozen=True)
class Not:
    """Everything else."""

    part: Expr


@dataclass(frozen=True)
class And:
    """What is in all parts; without parts, everything."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True)
class Or:
    """What is in some part; without parts, nothing."""

    parts: tuple[Expr, ...]


Expr = Node | Const | Has | Not | And | Or
TRUE, FALSE = And(()), Or(())


def every(parts: Iterable[Expr]) -> Expr:
    """`And`, in one level and without repetition."""
    flat: dict[Expr, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if isinstance(part, And) else [part]))
    if FALSE in flat:
        return FALSE
    return next(iter(flat)) if len(flat) == 1 else And(tuple(flat))


@dataclass(frozen=True)
class KeyRule:
    """What one schema says of members: `names` by name, `patterns` by sets of names; `rest` of all that neither has."""

    names: tuple[tuple[str, Expr], ...] = ()
    patterns: tuple[tuple[Dfa, Expr], ...] = ()
    rest: Expr = TRUE

    def member(self, name: str) -> Expr:
        """What the member of that name must be."""
        found = [self._by_name[name]] if name in self._by_name else []
        found += [expr for names, expr in self.patterns if names.accepts(name.encode())]
        return every(found) if found else self.rest

    @cached_property
    def _by_name(self) -> dict[str, Expr]:
        return dict(self.names)


@dataclass(frozen=True)
class Objects:
    """Objects that keep every rule, have the required members, and `least` to `most` members in all; `some`: (a set of
    names, what one member of such a name must be), each for some member.
    """

    rules: tuple[KeyRule, ...] = ()
    required: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    some: tuple[tuple[Dfa, Expr], ...] = ()

    def names(self) -> list[str]:
        """The names that some rule or requirement mentions, in the order of the schema."""
        named = (name for rule in self.rules for name, _ in rule.names)
        return list(dict.fromkeys([*named, *self.required]))

    def member(self, name: str) -> Expr:
        return every(rule.member(name) for rule in self.rules)

    def both(self, other: Objects) -> Objects:
        rules = tuple(dict.fromkeys(self.rules + other.rules))
        required = tuple(dict.fromkeys(self.required + other.required))
        some = tuple(dict.fromkeys(self.some + other.some))
        return Objects(rules, required, max(self.least, other.least), _lesser(self.most, other.most), some)


@dataclass(frozen=True)
class ItemRule:
    """What one schema says of items: of the first ones each, and of the rest."""

    prefix: tuple[Expr, ...] = ()
    rest: Expr = TRUE

    def item(self, i: int) -> Expr:
        return self.prefix[i] if i < len(self.prefix) else self.rest


@dataclass(frozen=True)
class Wanted:
    """`least` to `most` items of a set, from index `start` on."""

    item: Expr
    least: int = 1
    most: int | None = None
    start: int = 0


@dataclass(frozen=True)
class Arrays:
    """Arrays that keep every rule and have what each of `contains` wants; no item comes twice where `unique` holds the
    places that say so.
    """

    rules: tuple[ItemRule, ...] = ()
    least: int = 0
    most: int | None = None
    contains: tuple[Wanted, ...] = ()
    unique: tuple[str, ...] = ()

    def item(self, i: int) -> Expr:
        return every(rule.item(i) for rule in self.rules)

    @property
    def num_prefix(self) -> int:
        """From this index on, all items are alike."""
        return max((len(rule.prefix) for rule in self.rules), default=0)

    def both(self, other: Arrays) -> Arrays:
        return Arrays(
            tuple(dict.fromkeys(self.rules + other.rules)),
            max(self.least, other.least),
            _lesser(self.most, other.most),
            tuple(dict.fromkeys(self.contains + other.contains)),
            tuple(dict.fromkeys(self.unique + other.unique)),
        )


def _lesser(a: int | None, b: int | None) -> int | None:
    return min((x for x in (a, b) if x is not None), default=None)


@dataclass(frozen=True)
class Values:
    """A set of values by kind. Numbers are given by their text, strings by their UTF-8 bytes without quotes."""

    numbers: Dfa
    strings: Dfa
    null: bool = False
    booleans: frozenset[bool] = frozenset()
    arrays: tuple[Arrays, ...] = ()
    objects: tuple[Objects, ...] = ()

    def only(self, *kinds: str) -> Values:
        """The values of some kinds: the names of fields."""
        return replace(NOTHING, **{kind: getattr(self, kind) for kind in kinds})

    def without(self, *kinds: str) -> Values:
        """The values of the other kinds."""
        return replace(self, **{kind: getattr(NOTHING, kind) for kind in kinds})

    def both(self, other: Values, everything: Values, budget: Budget, limits: Limits) -> Values:
        """What is in this set and the other; `everything` is the set of all values."""
        if self is everything:
            return other
        if other is everything:
            return self
        return Values(
            _both(self.numbers, other.numbers, everything.numbers, budget),
            _both(self.strings, other.strings, everything.strings, budget),
            self.null and other.null,
            self.booleans & other.booleans,
            _few((a.both(b) for a in self.arrays for b in other.arrays), budget, limits),
            _few((a.both(b) for a in self.objects for b in other.objects), budget, limits),
        )

    def either(self, other: Values, budget: Budget, limits: Limits) -> Values:
        """What is in this set or the other."""
        return Values(
            unite(self.numbers, other.numbers, budget),
            unite(self.strings, other.strings, budget),
            self.null or other.null,
            self.booleans | other.booleans,
            _few(self.arrays + other.arrays, budget, limits),
            _few(self.objects + other.objects, budget, limits),
        )


NOTHING = Values(empty(), empty())


def _both(a: Dfa, b: Dfa, everything: Dfa, budget: Budget) -> Dfa:
    if a is everything or b is everything:
        return b if a is everything else a
    return intersect(a, b, budget)


Shape = TypeVar("Shape", Arrays, Objects)


def _few(shapes: Iterable[Shape], budget: Budget, limits: Limits) -> tuple[Shape, ...]:
    found: dict[Shape, None] = {}
    for number, shape in enumerate(shapes):
        found[shape] = None
        limits.check("alternatives", len(found), "combines its alternatives in too many ways")
        if number % 256 == 255:
            budget.steps(0)
    return tuple(found)
