"""unevaluatedProperties and unevaluatedItems: what no keyword beside them, nor in a schema that applies, has looked at.

Which schemas apply depends on the value. So there is a case for each set of alternatives that may hold, and in each
case it is known which names and items are evaluated. An anyOf needs no case for what does not hold: less would be
evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, product
from typing import TYPE_CHECKING

from daguerre.errors import UnsupportedError
from daguerre.sampling.constraints.documents import Json
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.text import escaped
from daguerre.sampling.constraints.values import TRUE, Arrays, Expr, Has, ItemRule, KeyRule, Not, Objects, Values

if TYPE_CHECKING:
    from daguerre.sampling.constraints.schema import Schema

OWN = ("unevaluatedProperties", "unevaluatedItems")
CASE = 500
"""About how many bytes a case takes: for the budget's memory."""


@dataclass(frozen=True)
class Case:
    """What is evaluated where some schemas hold: members by name and pattern, and so many first items."""

    holds: tuple[Expr, ...] = ()
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    all_members: bool = False
    num_items: int = 0
    all_items: bool = False

    def both(self, other: Case) -> Case:
        return Case(
            self.holds + other.holds,
            self.names + other.names,
            self.patterns + other.patterns,
            self.all_members or other.all_members,
            max(self.num_items, other.num_items),
            self.all_items or other.all_items,
        )


def unevaluated_members(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values:
    return _unevaluated(whole, schema, pointer, negate, "unevaluatedProperties")


def unevaluated_items(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values:
    return _unevaluated(whole, schema, pointer, negate, "unevaluatedItems")


def _unevaluated(whole: Schema, schema: Json, pointer: str, negate: bool, keyword: str) -> Values:
    if negate:
        raise whole.cannot_negate(keyword, pointer)
    rest, kind = whole.node(f"{pointer}/{keyword}"), "objects" if keyword == OWN[0] else "arrays"
    found = whole.everything.without(kind)
    for case in _cases(whole, pointer, frozenset(), keyword):
        held = whole.all(map(whole.values, case.holds))
        allowed = _members(whole, case, rest) if kind == "objects" else _items(whole, case, rest)
        found = whole.any([found, whole.all([held, allowed]).only(kind)])
    return found


def _members(whole: Schema, case: Case, rest: Expr) -> Values:
    if case.all_members:
        return whole.everything
    names = tuple((name, TRUE) for name in dict.fromkeys(case.names))
    patterns = tuple((regex_dfa(text, whole.budget, search=True), TRUE) for text in dict.fromkeys(case.patterns))
    return whole.objects(Objects((KeyRule(names, patterns, rest),)))


def _items(whole: Schema, case: Case, rest: Expr) -> Values:
    if case.all_items:
        return whole.everything
    return whole.arrays(Arrays((ItemRule((TRUE,) * case.num_items, rest),)))


def _cases(whole: Schema, pointer: str, passed: frozenset[str], asking: str) -> list[Case]:
    """The cases of the schema at a place. `passed`: the schemas around it; `asking`: the keyword that asks."""
    schema, draft = whole.resolve(pointer), whole.draft(pointer)
    if not isinstance(schema, dict):
        return [Case()]
    if pointer in passed:
        raise UnsupportedError(f"the schema at #{pointer} is its own part, beside an unevaluated keyword: write it out")
    counted = set(whole.counted(schema, pointer))
    if not passed:
        counted -= {asking}
    if "contains" in counted and draft != 2019 and asking == OWN[1]:
        raise UnsupportedError(f"contains at #{pointer} evaluates items, which is not supported: use items")

    def few(cases: Iterable[Case]) -> list[Case]:
        found = []
        for case in cases:
            found.append(case)
            whole.limits.check("cases", len(found), f"has too many sets of alternatives beside {asking}")
            whole.budget.hold(CASE + 8 * len(case.holds + case.names + case.patterns))
            whole.budget.steps(0)
        return found

    found = [_own(schema, counted)]
    for more in _applied(
        whole, schema, pointer, counted, lambda place: _cases(whole, place, passed | {pointer}, asking)
    ):
        found = few(a.both(b) for a, b in product(found, few(more)))
    return found


def _own(schema: Json, counted: set[str]) -> Case:
    """What the keywords of a schema itself evaluate."""
    listed: list[object] = next(
        (schema[key] for key in ("prefixItems", "items") if isinstance(schema.get(key), list)), []
    )
    every_item = ("additionalItems" in counted and isinstance(schema.get("items"), list)) or OWN[1] in counted
    return Case(
        (),
        tuple(schema["properties"]) if "properties" in counted else (),
        tuple(schema["patternProperties"]) if "patternProperties" in counted else (),
        not counted.isdisjoint(("additionalProperties", OWN[0])),
        len(listed),
        every_item or ("items" in counted and not isinstance(schema["items"], list)),
    )


def _applied(
    whole: Schema, schema: Json, pointer: str, counted: set[str], cases: Callable[[str], list[Case]]
) -> Iterator[Iterable[Case]]:
    """For each keyword that applies schemas to the same value, its cases; `cases`: those of a place."""
    document = whole.document
    finders = {
        "$ref": document.target,
        "$dynamicRef": document.dynamic_target,
        "$recursiveRef": document.recursive_target,
    }
    for key, find in finders.items():
        if key in counted:
            yield cases(find(schema[key], pointer))
    for i in range(len(schema["allOf"]) if "allOf" in counted else 0):
        yield cases(f"{pointer}/allOf/{i}")
    for key in ("anyOf", "oneOf"):
        if key in counted:
            places = [f"{pointer}/{key}/{i}" for i in range(len(schema[key]))]
            yield _chosen(whole, places, len(places) if key == "anyOf" else 1, cases)
    if "if" in counted:
        yield _tested(whole, schema, pointer, counted, cases)
    for key in ("dependentSchemas", "dependencies"):
        for name, then in schema[key].items() if key in counted else ():
            if not isinstance(then, list):
                found = cases(f"{pointer}/{key}/{escaped(name)}")
                yield [Case(), *(replace(case, holds=(*case.holds, Has(name))) for case in found)]


def _chosen(whole: Schema, places: Sequence[str], most: int, cases: Callable[[str], list[Case]]) -> Iterator[Case]:
    """The cases in which one to `most` of some alternatives hold."""
    each = [[replace(case, holds=(*case.holds, whole.node(place))) for case in cases(place)] for place in places]
    for size in range(1, most + 1):
        for chosen in combinations(each, size):
            for found in product(*chosen):
                yield reduce(Case.both, found)


def _tested(
    whole: Schema, schema: Json, pointer: str, counted: set[str], cases: Callable[[str], list[Case]]
) -> Iterator[Case]:
    test = whole.node(f"{pointer}/if")
    for key, holds in (("then", test), ("else", Not(test))):
        begun = cases(f"{pointer}/if") if key == "then" else [Case()]
        after = cases(f"{pointer}/{key}") if key in counted else [Case()]
        for a, b in product(begun, after):
            yield replace(a.both(b), holds=(holds, *a.holds, *b.holds))
