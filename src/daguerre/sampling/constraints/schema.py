"""JSON Schema: from keywords to sets of values.

Drafts 4 to 2020-12 are read. Where `$schema` names a draft, a keyword of another one says nothing, and up to draft 7
nor does what is beside a `$ref`; without a draft every keyword counts, and those of OpenAPI. A keyword of no draft, and
a format of none, is an annotation: it asks for nothing, and is reported. What is known and cannot be honored is an
UnsupportedError with its place. `format` is checked. Strings and patterns count characters, not UTF-16 units.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from daguerre.errors import InputError, UnsupportedError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, subtract
from daguerre.sampling.constraints.documents import Json, SchemaDocument, ignores_siblings
from daguerre.sampling.constraints.kinds import check_kinds
from daguerre.sampling.constraints.limits import DEFAULT, Limits
from daguerre.sampling.constraints.numbers import NUMBER, PLAIN, equal_to, numbers
from daguerre.sampling.constraints.text import compact, escaped, lengths, literals
from daguerre.sampling.constraints.values import (
    FALSE,
    NOTHING,
    TRUE,
    And,
    Arrays,
    Const,
    Expr,
    Has,
    ItemRule,
    KeyRule,
    Node,
    Not,
    Objects,
    Or,
    Values,
)

ANNOTATIONS = frozenset(
    "title description default examples deprecated readOnly writeOnly contentMediaType contentEncoding contentSchema "
    "$schema $id id $anchor $dynamicAnchor $recursiveAnchor $comment $defs definitions $vocabulary "
    # of OpenAPI, of hyper-schema, and in wide use; they ask for nothing
    "example comment readonly links discriminator xml externalDocs".split()
)
EXTENSIONS = ("x-", "_", "$$")
"""Names that begin with these are extensions of an author."""

VALUES = 2_000
"""About how many bytes the values of one expression take: for the budget's memory."""

Unknown = Literal["strict", "annotate", "lenient"]
"""What happens to what is not enforced. strict: nothing is left out; annotate: keywords and formats of no draft are
reported; lenient: so is what is known and not supported.
"""

Handler = Callable[["Schema", Json, str, bool], Values | Expr | None]
"""From the whole schema, the object that has a keyword, its place, and whether to negate, to the values that satisfy
the keyword; None where it says nothing.
"""


def handling(lenient: bool, strict: bool) -> Unknown:
    """The way of two switches. InputError when both are on."""
    if lenient and strict:
        raise InputError("strict refuses what lenient leaves out: leave out one of the two")
    return "lenient" if lenient else "strict" if strict else "annotate"


@dataclass(frozen=True)
class Keywords:
    """The keywords that a schema is read by.

    handlers   by keyword
    since      the first draft that has a keyword, where that is not draft 4
    until      the last draft that has it; 0: none has, it is OpenAPI's
    """

    handlers: Mapping[str, Handler]
    since: Mapping[str, int]
    until: Mapping[str, int]

    def has(self, keyword: str, draft: int | None) -> bool:
        """Whether a draft has a keyword; where none is named, whether any has."""
        if keyword not in self.handlers or draft is None:
            return keyword in self.handlers
        return self.since.get(keyword, 0) <= draft <= self.until.get(keyword, draft)


class Schema:
    """A schema document, and the values that its parts allow.

    loose   the sets are as wide as any reading of them, not as narrow: for telling whether two have nothing in common
    """

    def __init__(
        self,
        document: object,
        keywords: Keywords,
        budget: Budget,
        unknown: Unknown = "annotate",
        limits: Limits = DEFAULT,
        loose: bool = False,
    ) -> None:
        self.document = SchemaDocument(document)
        self.keywords, self.budget, self.unknown, self.limits, self.is_loose = keywords, budget, unknown, limits, loose
        self.everything = Values(
            numbers(NUMBER), lengths(0, None, budget), True, frozenset([False, True]), (Arrays(),), (Objects(),)
        )
        self.ignored: dict[str, None] = {}
        self.capped: list[str] = []
        self._known: dict[Expr, Values] = {}
        self._working: set[Expr] = set()
        self._checked: set[str] = set()
        self.patterns: dict[str, Dfa] = {}
        self.other_names: dict[tuple[object, ...], list[Dfa]] = {}
        self.root = self.node("")

    @cached_property
    def loose(self) -> Schema:
        """A second reading of the schema, as wide as it may be."""
        unknown: Unknown = "lenient" if self.unknown == "lenient" else "annotate"
        return Schema(self.document.content, self.keywords, self.budget, unknown, self.limits, loose=True)

    def values(self, expr: Expr) -> Values:
        """The values of an expression."""
        if expr not in self._known:
            if expr in self._working:
                raise LoopError("a $ref of the schema leads back to itself with no object or array between: change it")
            self._working.add(expr)
            self.budget.hold(VALUES)
            try:
                self._known[expr] = self._opposite(expr.part) if isinstance(expr, Not) else self._values(expr)
            finally:
                self._working.discard(expr)
        return self._known[expr]

    def _values(self, expr: Expr) -> Values:
        match expr:
            case And(parts):
                return self.all(self.values(part) for part in parts)
            case Or(parts):
                return self.any(self.values(part) for part in parts)
            case Const(text):
                return self._constant(json.loads(text))
            case Has(name):
                return replace(NOTHING, objects=(Objects(required=(name,)),))
            case Node(pointer):
                return self.all(self._constraints(pointer, negate=False))
        raise AssertionError(expr)

    def _opposite(self, expr: Expr) -> Values:
        match expr:
            case And(parts):
                return self.values(Or(tuple(Not(part) for part in parts)))
            case Or(parts):
                return self.values(And(tuple(Not(part) for part in parts)))
            case Not(part):
                return self.values(part)
            case Const(text):
                return self._other_than(json.loads(text))
            case Has(name):
                return self.objects(Objects(rules=(KeyRule(names=((name, FALSE),)),)))
            case Node(pointer):
                return self.any(self._constraints(pointer, negate=True))
        raise AssertionError(expr)

    def all(self, parts: Iterable[Values]) -> Values:
        found = self.everything
        for part in parts:
            found = self._possible(found.both(part, self.everything, self.budget, self.limits))
            self.budget.steps(0)
        return found

    def any(self, parts: Iterable[Values]) -> Values:
        found = NOTHING
        for part in parts:
            found = found.either(part, self.budget, self.limits)
            self.budget.steps(0)
        return found

    def _possible(self, held: Values) -> Values:
        """The values without shapes of objects that plainly have none: they would multiply."""
        if len(held.objects) < 2:
            return held
        return replace(held, objects=tuple(shape for shape in held.objects if not self._never_object(shape, 2)))

    def never(self, expr: Expr, depth: int = 4) -> bool:
        """Whether no value can be in the set, as far as that shows within `depth` levels."""
        self.budget.steps(0)
        try:
            held = self.values(expr)
        except (LoopError, UnsupportedError):  # its values are being computed, or what they are is not known
            return False
        return self.never_values(held, depth)

    def never_values(self, held: Values, depth: int = 4) -> bool:
        """Whether a set of values is empty, as far as that shows within `depth` levels."""
        if depth == 0 or held.null or held.booleans or not (held.numbers.is_empty and held.strings.is_empty):
            return False
        return all(self._never_object(shape, depth) for shape in held.objects) and all(
            self._never_array(shape, depth) for shape in held.arrays
        )

    def _never_object(self, shape: Objects, depth: int) -> bool:
        if shape.most is not None and shape.most < max(shape.least, len(shape.required)):
            return True
        return any(self.never(shape.member(name), depth - 1) for name in shape.required)

    def _never_array(self, shape: Arrays, depth: int) -> bool:
        if shape.most is not None and shape.most < shape.least:
            return True
        return any(self.never(shape.item(i), depth - 1) for i in range(min(shape.least, shape.num_prefix + 1)))

    # A schema and its place

    def resolve(self, pointer: str) -> object:
        """The part of the document at a JSON pointer. InputError when there is none."""
        return self.document.resolve(pointer)

    def draft(self, pointer: str) -> int | None:
        return self.document.resource(pointer)[1]

    def read(self, schema: Json, pointer: str) -> list[str]:
        """The keywords of a schema that count: all, or `$ref` alone."""
        return ["$ref"] if "$ref" in schema and ignores_siblings(self.draft(pointer)) else list(schema)

    def counted(self, schema: Json, pointer: str) -> list[str]:
        """The keywords of a schema that its draft has. InputError when the value of one is of the wrong kind."""
        draft = self.draft(pointer)
        found = [keyword for keyword in self.read(schema, pointer) if self.keywords.has(keyword, draft)]
        if pointer not in self._checked:
            check_kinds(schema, found, pointer)
            self._checked.add(pointer)
        return found

    def _constraints(self, pointer: str, negate: bool) -> Iterator[Values]:
        """For each keyword at a pointer, the values that satisfy it (or, with `negate`, that do not)."""
        schema = self.resolve(pointer)
        if isinstance(schema, bool):
            if schema == negate:
                yield self.everything if negate else NOTHING
            return
        if not isinstance(schema, dict):
            raise InputError(f"at #{pointer} a schema is expected, an object or a boolean, not {schema!r:.40}")
        counted = self.counted(schema, pointer)
        for handler in dict.fromkeys(self.keywords.handlers[keyword] for keyword in counted):
            found = handler(self, schema, pointer, negate)
            if found is not None:
                yield found if isinstance(found, Values) else self.values(found)

    def _report(self, read: Iterable[str], counted: Sequence[str], pointer: str) -> None:
        for keyword in read:
            if keyword not in counted and keyword not in ANNOTATIONS and not keyword.startswith(EXTENSIONS):
                self.leave_out(f"keyword {keyword!r:.60}", pointer)

    def leave_out(self, what: str, pointer: str) -> None:
        """Report what is of no draft, which is an annotation; UnsupportedError when strict."""
        if self.unknown == "strict":
            raise UnsupportedError(
                f"the schema's {what} at #{pointer} is of no draft that applies here: remove it, or compile without "
                "strict, which ignores and reports it"
            )
        self.ignored[f"{what} at #{pointer}"] = None

    def refuse(self, what: str, why: str) -> None:
        """Report what is known, given with its place, and not supported when lenient, else raise."""
        if self.unknown != "lenient":
            raise UnsupportedError(
                f"the schema's {what} {why}: remove it, or compile with lenient=True, which ignores and reports it"
            )
        self.ignored[what] = None

    def cannot_negate(self, keyword: str, pointer: str) -> UnsupportedError:
        return UnsupportedError(
            f"the schema's {keyword} at #{pointer} stands under a not, or an oneOf whose alternatives overlap, "
            "and its opposite is not supported: write what is allowed instead"
        )

    def nodes(self, schema: Json, keyword: str, pointer: str) -> list[tuple[str, Expr]]:
        """The (key, subschema) below a keyword whose value is a list or a mapping of schemas."""
        held = schema.get(keyword, {})
        keys = held if isinstance(held, dict) else map(str, range(len(held)))
        return [(key, self.node(f"{pointer}/{keyword}/{escaped(key)}")) for key in keys]

    def node(self, pointer: str) -> Expr:
        """The schema at a pointer, or where its $ref leads; one that constrains nothing is TRUE, false is FALSE."""
        passed: set[str] = set()
        while pointer not in passed:
            passed.add(pointer)
            schema = self.resolve(pointer)
            if isinstance(schema, bool):
                return TRUE if schema else FALSE
            if not isinstance(schema, dict):
                break
            counted = self.counted(schema, pointer)
            self._report(self.read(schema, pointer), counted, pointer)
            if not counted:
                return TRUE
            if counted == ["$ref"]:
                pointer = self.document.target(schema["$ref"], pointer)
        return Node(pointer)

    def parts(self, schema: Json, keyword: str, pointer: str) -> tuple[Expr, ...]:
        return tuple(node for _, node in self.nodes(schema, keyword, pointer))

    def numbers(self, dfa: Dfa, negate: bool) -> Values:
        """Values whose numbers are in `dfa`; with `negate`, those numbers alone."""
        return replace(NOTHING if negate else self.everything, numbers=dfa)

    def strings(self, dfa: Dfa, negate: bool) -> Values:
        if negate:
            return replace(NOTHING, strings=subtract(self.everything.strings, dfa, self.budget))
        return replace(self.everything, strings=dfa)

    def objects(self, *shapes: Objects) -> Values:
        return replace(self.everything, objects=shapes)

    def arrays(self, *shapes: Arrays) -> Values:
        return replace(self.everything, arrays=shapes)

    def _constant(self, value: Any) -> Values:
        match value:
            case None:
                return replace(NOTHING, null=True)
            case bool():
                return replace(NOTHING, booleans=frozenset([value]))
            case int() | float():
                texts = {compact(value), str(int(value)) if value == int(value) else compact(value)}
                return replace(NOTHING, numbers=literals(sorted(texts), self.budget))
            case str():
                return replace(NOTHING, strings=literals([value], self.budget))
            case list():
                items = tuple(Const(compact(item)) for item in value)
                return replace(NOTHING, arrays=(Arrays((ItemRule(items, FALSE),), len(items), len(items)),))
        members = tuple((name, Const(compact(member))) for name, member in value.items())
        return replace(NOTHING, objects=(Objects((KeyRule(members, (), FALSE),), tuple(value)),))

    def _other_than(self, value: Any) -> Values:
        match value:
            case None:
                return self.everything.without("null")
            case bool():
                return replace(self.everything, booleans=frozenset([not value]))
            case int() | float():
                plain = subtract(numbers(PLAIN), equal_to(value, self.budget, self.limits), self.budget)
                return replace(self.everything, numbers=plain)
            case str():
                word = literals([value], self.budget)
                return replace(self.everything, strings=subtract(self.everything.strings, word, self.budget))
            case list():
                size = len(value)
                lengths = [Arrays(least=size + 1)] + ([Arrays(most=size - 1)] if size else [])
                differ = [self.item_not(i, Const(compact(item)), size) for i, item in enumerate(value)]
                return self.arrays(*lengths, *differ)
        return self._other_object(value)

    def _other_object(self, value: Json) -> Values:
        """All values but one object: a member is missing, another one, or one too many."""
        others = subtract(self.everything.strings, literals(value, self.budget), self.budget)
        shapes = [Objects(rules=(KeyRule(names=((name, FALSE),)),)) for name in value]
        for name, member in value.items():
            differs = KeyRule(names=((name, Not(Const(compact(member)))),))
            shapes.append(Objects(rules=(differs,), required=(name,)))
        return self.objects(*shapes, Objects(some=((others, TRUE),)))

    def item_not(self, i: int, expr: Expr, least: int) -> Arrays:
        """Arrays of at least `least` items in which item i, from 0, is not in the set."""
        return Arrays((ItemRule((TRUE,) * i + (Not(expr),)),), max(least, i + 1))


class LoopError(InputError):
    """The values of an expression depend on themselves."""
