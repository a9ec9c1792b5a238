"""JSON Schema: from keywords to sets of values.

A keyword that is in neither `keywords.KEYWORDS` nor `ANNOTATIONS` is an UnsupportedError with its place, or is reported
when lenient.

Drafts 4 to 2020-12 are read; where `$schema` names one up to draft 7, what is beside a `$ref` is ignored, as it says
there. `format` is checked. Strings and patterns count characters, not UTF-16 units.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any
from urllib.parse import unquote

from daguerre.errors import InputError, UnsupportedError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, subtract
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
    "$schema $id id $anchor $comment $defs definitions $vocabulary "
    "example comment readonly links".split()  # of OpenAPI, of hyper-schema, and in wide use; they ask for nothing
)
EXTENSIONS = ("x-", "_", "$$")
"""Names that begin with these are extensions of an author."""


Json = Mapping[str, Any]
Handler = Callable[["Schema", Json, str, bool], Values | Expr | None]
"""From the whole schema, the object that has a keyword, its place, and whether to negate, to the values that satisfy
the keyword; None where it says nothing.
"""


class Schema:
    """A schema document, and the values that its parts allow. `keywords` is the table `keywords.KEYWORDS`."""

    def __init__(
        self, document: object, keywords: Mapping[str, Handler], budget: Budget, lenient: bool = False
    ) -> None:
        self.document, self.keywords, self.budget, self.lenient = document, keywords, budget, lenient
        self.everything = Values(
            numbers(NUMBER), lengths(0, None, budget), True, frozenset([False, True]), (Arrays(),), (Objects(),)
        )
        self.ignored: dict[str, None] = {}
        self._known: dict[Expr, Values] = {}
        self._working: set[Expr] = set()
        self.patterns: dict[str, Dfa] = {}
        root = document if isinstance(document, dict) else {}
        draft = str(root.get("$schema", ""))
        self.old = any(f"draft-0{n}" in draft for n in (3, 4, 6, 7))
        self.base = str(root.get("$id", root.get("id", ""))).rstrip("#")
        self.root = self.node("")

    def values(self, expr: Expr) -> Values:
        """The values of an expression."""
        if expr not in self._known:
            if expr in self._working:
                raise _LoopError("a $ref of the schema leads back to itself with no object or array between: change it")
            self._working.add(expr)
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
        return reduce(lambda a, b: a.both(b, self.everything, self.budget), parts, self.everything)

    def any(self, parts: Iterable[Values]) -> Values:
        return reduce(lambda a, b: a.either(b, self.budget), parts, NOTHING)

    def never(self, expr: Expr, depth: int = 4) -> bool:
        """Whether no value can be in the set, as far as that shows within `depth` levels."""
        try:
            held = self.values(expr)
        except _LoopError:  # its values are being computed
            return False
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
        found = self.document
        for raw in pointer.split("/")[1:]:
            key = raw.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise InputError(f"the schema has nothing at #{pointer}, which a $ref points to: correct it")
        return found

    def target(self, ref: object, pointer: str) -> str:
        if isinstance(ref, str):
            local = ref.removeprefix(self.base) if self.base else ref
            if local in ("", "#") or local.startswith("#/"):
                return unquote(local[1:])
            for place, schema in _schemas(self.document, ""):
                if local.startswith("#") and local in ("#" + str(schema.get("$anchor")), schema.get("id")):
                    return place
        raise UnsupportedError(f"the $ref {ref!r} at #{pointer} leads outside the schema: copy its target into $defs")

    def _constraints(self, pointer: str, negate: bool) -> Iterator[Values]:
        """For each keyword at a pointer, the values that satisfy it (or, with `negate`, that do not)."""
        schema = self.resolve(pointer)
        if isinstance(schema, bool):
            if schema == negate:
                yield self.everything if negate else NOTHING
            return
        if not isinstance(schema, dict):
            raise InputError(f"at #{pointer} a schema is expected, an object or a boolean, not {schema!r:.40}")
        keywords = ["$ref"] if self.old and "$ref" in schema else list(schema)
        handlers = dict.fromkeys(self.keywords[keyword] for keyword in keywords if keyword in self.keywords)
        for keyword in keywords:
            if keyword not in self.keywords and keyword not in ANNOTATIONS and not keyword.startswith(EXTENSIONS):
                self.refuse(f"keyword {keyword!r}", pointer)
        for handler in handlers:
            found = handler(self, schema, pointer, negate)
            if found is not None:
                yield found if isinstance(found, Values) else self.values(found)

    def refuse(self, what: str, pointer: str) -> None:
        """Report a keyword that is not supported when lenient, else raise."""
        if not self.lenient:
            raise UnsupportedError(
                f"the schema's {what} at #{pointer} is not supported: remove it, or compile with lenient=True, which "
                "ignores and reports it"
            )
        self.ignored[f"{what} at #{pointer}"] = None

    def cannot_negate(self, keyword: str, pointer: str) -> UnsupportedError:
        return UnsupportedError(
            f"the schema's {keyword} at #{pointer} stands under a not, or an oneOf whose alternatives overlap, "
            "and its opposite is not supported: write what is allowed instead"
        )

    def nodes(self, schema: Json, keyword: str, pointer: str) -> list[tuple[str, Expr]]:
        """The (key, subschema) below a keyword whose value is a list or a mapping of schemas."""
        held = schema.get(keyword, {})
        if not isinstance(held, dict | list):
            raise InputError(f"{keyword} at #{pointer} must hold schemas, not {held!r:.40}: correct the schema")
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
            constraining = [key for key in schema if key not in ANNOTATIONS and not key.startswith(EXTENSIONS)]
            if not constraining:
                return TRUE
            if "$ref" in constraining and (self.old or len(constraining) == 1):
                pointer = self.target(schema["$ref"], pointer)
        return Node(pointer)

    def parts(self, schema: Json, keyword: str, pointer: str) -> tuple[Expr, ...]:
        return tuple(node for _, node in self.nodes(schema, keyword, pointer))

    def number(self, schema: Json, keyword: str, pointer: str, count: bool = False) -> Any:
        value = schema[keyword]
        sound = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not sound or (count and (value < 0 or value != int(value))):
            raise InputError(f"{keyword} at #{pointer} must be a {'count' if count else 'number'}, not {value!r:.40}")
        return int(value) if count else value

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
                plain = subtract(numbers(PLAIN), equal_to(value, self.budget), self.budget)
                return replace(self.everything, numbers=plain)
            case str():
                word = literals([value], self.budget)
                return replace(self.everything, strings=subtract(self.everything.strings, word, self.budget))
            case list():
                size = len(value)
                lengths = [Arrays(least=size + 1)] + ([Arrays(most=size - 1)] if size else [])
                differ = [self.item_not(i, Const(compact(item)), size) for i, item in enumerate(value)]
                return self.arrays(*lengths, *differ)
        raise UnsupportedError(
            f"the schema excludes the object {compact(value):.40}, which is not supported: write what is allowed"
        )

    def item_not(self, i: int, expr: Expr, least: int) -> Arrays:
        """Arrays of at least `least` items in which item i is not in the set."""
        return Arrays((ItemRule((TRUE,) * i + (Not(expr),)),), max(least, i + 1))


class _LoopError(InputError):
    """The values of an expression depend on themselves."""


def _schemas(part: object, pointer: str) -> Iterator[tuple[str, Json]]:
    """Every object in the document with its place."""
    if isinstance(part, dict):
        yield pointer, part
        for key, value in part.items():
            yield from _schemas(value, f"{pointer}/{escaped(key)}")
    elif isinstance(part, list):
        for i, value in enumerate(part):
            yield from _schemas(value, f"{pointer}/{i}")
