"""JSON Schema: from keywords to sets of values.

Every keyword of `KEYWORDS` has one method that gives the values that satisfy it and, under `not`, those that do not.
What is in neither `KEYWORDS` nor `ANNOTATIONS` is an UnsupportedError with its place, or is reported when lenient.

Drafts 4 to 2020-12 are read; where `$schema` names one up to draft 7, what stands beside a `$ref` is void, as it says
there. `format` is checked. Strings and patterns count characters, not UTF-16 units.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any
from urllib.parse import unquote

from daguerre.errors import InputError, UnsupportedError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, subtract
from daguerre.sampling.constraints.formats import FORMATS
from daguerre.sampling.constraints.nfa import Nfa, determinize
from daguerre.sampling.constraints.numbers import INTEGER, NUMBER, PLAIN, above, below, equal_to, multiples, numbers
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.utf8 import ANY
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
    every,
)

LONGEST = 1000
"""A maxLength above this many characters acts as this many."""
KINDS = {
    "null": "null",
    "boolean": "booleans",
    "integer": "numbers",
    "number": "numbers",
    "string": "strings",
    "array": "arrays",
    "object": "objects",
}
ANNOTATIONS = frozenset(
    "title description default examples deprecated readOnly writeOnly contentMediaType contentEncoding contentSchema "
    "$schema $id id $anchor $comment $defs definitions $vocabulary "
    "example comment readonly links".split()  # of OpenAPI, of hyper-schema, and in wide use; they ask for nothing
)
EXTENSIONS = ("x-", "_", "$$")
"""Names that begin so are an author's own."""


Json = Mapping[str, Any]


class Schema:
    """A schema document, and the values that its parts allow."""

    def __init__(self, document: object, budget: Budget, lenient: bool = False) -> None:
        self.document, self.budget, self.lenient = document, budget, lenient
        self.everything = Values(
            numbers(NUMBER), _lengths(0, None, budget), True, frozenset([False, True]), (Arrays(),), (Objects(),)
        )
        self.ignored: dict[str, None] = {}
        self._known: dict[Expr, Values] = {}
        self._working: set[Expr] = set()
        self._patterns: dict[str, Dfa] = {}
        root = document if isinstance(document, dict) else {}
        draft = str(root.get("$schema", ""))
        self.old = any(f"draft-0{n}" in draft for n in (3, 4, 6, 7))
        self.base = str(root.get("$id", root.get("id", ""))).rstrip("#")
        self.root = self._node("")

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
                return self._all(self.values(part) for part in parts)
            case Or(parts):
                return self._any(self.values(part) for part in parts)
            case Const(text):
                return self._constant(json.loads(text))
            case Has(name):
                return replace(NOTHING, objects=(Objects(required=(name,)),))
            case Node(pointer):
                return self._all(self._constraints(pointer, negate=False))
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
                return self._objects(Objects(rules=(KeyRule(names=((name, FALSE),)),)))
            case Node(pointer):
                return self._any(self._constraints(pointer, negate=True))
        raise AssertionError(expr)

    def _all(self, parts: Iterable[Values]) -> Values:
        return reduce(lambda a, b: a.both(b, self.everything, self.budget), parts, self.everything)

    def _any(self, parts: Iterable[Values]) -> Values:
        return reduce(lambda a, b: a.either(b, self.budget), parts, NOTHING)

    def never(self, expr: Expr, depth: int = 4) -> bool:
        """Whether no value can be in the set, as far as that shows within `depth` levels."""
        try:
            held = self.values(expr)
        except _LoopError:  # it is part of what is being worked out
            return False
        if depth == 0 or held.null or held.booleans or not (held.numbers.is_empty and held.strings.is_empty):
            return False
        return all(
            (o.most is not None and o.most < max(o.least, len(o.required)))
            or any(self.never(o.member(name), depth - 1) for name in o.required)
            for o in held.objects
        ) and all(
            (a.most is not None and a.most < a.least) or any(self.never(a.item(i), depth - 1) for i in range(a.least))
            for a in held.arrays
        )

    # A schema and where it stands

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

    def _target(self, ref: object, pointer: str) -> str:
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
        handlers = dict.fromkeys(KEYWORDS[keyword] for keyword in keywords if keyword in KEYWORDS)
        for keyword in keywords:
            if keyword not in KEYWORDS and keyword not in ANNOTATIONS and not keyword.startswith(EXTENSIONS):
                self._refuse(f"keyword {keyword!r}", pointer)
        for handler in handlers:
            found = handler(self, schema, pointer, negate)
            if found is not None:
                yield found if isinstance(found, Values) else self.values(found)

    def _refuse(self, what: str, pointer: str) -> None:
        """Report a keyword that is not supported when lenient, else raise."""
        if not self.lenient:
            raise UnsupportedError(
                f"the schema's {what} at #{pointer} is not supported: remove it, or compile with lenient=True, which "
                "ignores and reports it"
            )
        self.ignored[f"{what} at #{pointer}"] = None

    def _cannot_negate(self, keyword: str, pointer: str) -> UnsupportedError:
        return UnsupportedError(
            f"the schema's {keyword} at #{pointer} stands under a not, or an oneOf whose alternatives overlap, "
            "and its opposite is not supported: write what is allowed instead"
        )

    def _nodes(self, schema: Json, keyword: str, pointer: str) -> list[tuple[str, Expr]]:
        """The (key, subschema) below a keyword whose value is a list or a mapping of schemas."""
        held = schema.get(keyword, {})
        if not isinstance(held, dict | list):
            raise InputError(f"{keyword} at #{pointer} must hold schemas, not {held!r:.40}: correct the schema")
        keys = held if isinstance(held, dict) else map(str, range(len(held)))
        return [(key, self._node(f"{pointer}/{keyword}/{_escaped(key)}")) for key in keys]

    def _node(self, pointer: str) -> Expr:
        """The schema at a pointer, or where its $ref leads; one that asks for nothing is TRUE, false is FALSE."""
        passed: set[str] = set()
        while pointer not in passed:
            passed.add(pointer)
            schema = self.resolve(pointer)
            if isinstance(schema, bool):
                return TRUE if schema else FALSE
            if not isinstance(schema, dict):
                break
            asked = [key for key in schema if key not in ANNOTATIONS and not key.startswith(EXTENSIONS)]
            if not asked:
                return TRUE
            if "$ref" in asked and (self.old or len(asked) == 1):
                pointer = self._target(schema["$ref"], pointer)
        return Node(pointer)

    def _parts(self, schema: Json, keyword: str, pointer: str) -> tuple[Expr, ...]:
        return tuple(node for _, node in self._nodes(schema, keyword, pointer))

    def _number(self, schema: Json, keyword: str, pointer: str, count: bool = False) -> Any:
        value = schema[keyword]
        sound = isinstance(value, int | float) and not isinstance(value, bool)
        if not sound or (count and (value < 0 or value != int(value))):
            raise InputError(f"{keyword} at #{pointer} must be a {'count' if count else 'number'}, not {value!r:.40}")
        return int(value) if count else value

    def _numbers(self, dfa: Dfa, negate: bool) -> Values:
        """Values whose numbers are in `dfa`; with `negate`, those numbers alone."""
        return replace(NOTHING if negate else self.everything, numbers=dfa)

    def _strings(self, dfa: Dfa, negate: bool) -> Values:
        if negate:
            return replace(NOTHING, strings=subtract(self.everything.strings, dfa, self.budget))
        return replace(self.everything, strings=dfa)

    def _objects(self, *shapes: Objects) -> Values:
        return replace(self.everything, objects=shapes)

    def _arrays(self, *shapes: Arrays) -> Values:
        return replace(self.everything, arrays=shapes)

    # Any kind of value

    def _type(self, schema: Json, pointer: str, negate: bool) -> Values:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for name in types:
            if name not in KINDS:
                raise InputError(f"type at #{pointer} is {name!r:.40}: choose from {', '.join(KINDS)}")
        kinds = {KINDS[name] for name in types}
        integers = "integer" in types and "number" not in types
        if not negate:
            found = self.everything.only(*kinds)
            return replace(found, numbers=numbers(INTEGER)) if integers else found
        found = self.everything.without(*kinds)
        if integers:
            whole = regex_dfa("-?[0-9]+(\\.0+)?", self.budget)
            found = replace(found, numbers=subtract(numbers(PLAIN), whole, self.budget))
        return found

    def _const(self, schema: Json, pointer: str, negate: bool) -> Expr:
        found = Const(compact(schema["const"]))
        return Not(found) if negate else found

    def _enum(self, schema: Json, pointer: str, negate: bool) -> Values | Expr:
        if not isinstance(schema["enum"], list):
            raise InputError(f"enum at #{pointer} must be a list, not {schema['enum']!r:.40}: correct the schema")
        strings = [value for value in schema["enum"] if isinstance(value, str)]
        others = Or(tuple(Const(compact(value)) for value in schema["enum"] if not isinstance(value, str)))
        words = replace(NOTHING, strings=literals(strings, self.budget))
        if negate:
            spare = replace(self.everything, strings=subtract(self.everything.strings, words.strings, self.budget))
            return self._all([spare, self.values(Not(others))])
        return self._any([self.values(others), words])

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
                differ = [self._item_not(i, Const(compact(item)), size) for i, item in enumerate(value)]
                return self._arrays(*lengths, *differ)
        raise UnsupportedError(
            f"the schema excludes the object {compact(value):.40}, which is not supported: write what is allowed"
        )

    def _item_not(self, i: int, expr: Expr, least: int) -> Arrays:
        """Arrays of at least `least` items in which item i is not in the set."""
        return Arrays((ItemRule((TRUE,) * i + (Not(expr),)),), max(least, i + 1))

    # Combinations

    def _ref(self, schema: Json, pointer: str, negate: bool) -> Expr:
        found = self._node(self._target(schema["$ref"], pointer))
        return Not(found) if negate else found

    def _combined(self, schema: Json, pointer: str, negate: bool, keyword: str) -> Expr:
        parts = self._parts(schema, keyword, pointer)
        found = And(parts) if keyword == "allOf" else Or(parts)
        return Not(found) if negate else found

    def _not(self, schema: Json, pointer: str, negate: bool) -> Expr:
        found = self._node(f"{pointer}/not")
        return found if negate else Not(found)

    def _one_of(self, schema: Json, pointer: str, negate: bool) -> Expr:
        """Alternatives that exclude one another are an anyOf; of others, one holds and those that overlap with it do
        not.
        """
        parts = self._parts(schema, "oneOf", pointer)
        pairs = [(i, j) for i in range(len(parts)) for j in range(i) if not self.never(And((parts[i], parts[j])))]
        if negate:
            none = And(tuple(Not(part) for part in parts))
            return Or((none, *(And((parts[i], parts[j])) for i, j in pairs)))
        rivals = {i: [parts[a + b - i] for a, b in pairs if i in (a, b)] for i in range(len(parts))}
        return Or(tuple(every([part, *map(Not, rivals[i])]) for i, part in enumerate(parts)))

    def _if(self, schema: Json, pointer: str, negate: bool) -> Expr:
        if "if" not in schema:  # then and else say nothing alone
            return FALSE if negate else TRUE
        test = self._node(f"{pointer}/if")
        then, other = (self._node(f"{pointer}/{key}") if key in schema else TRUE for key in ("then", "else"))
        if negate:
            then, other = Not(then), Not(other)
        return Or((every([test, then]), every([Not(test), other])))

    # Numbers

    def _bound(self, schema: Json, pointer: str, negate: bool, keyword: str) -> Values | None:
        if isinstance(schema[keyword], bool):
            return None  # draft 4's exclusiveMinimum: it says how minimum is meant
        strict = keyword.startswith("exclusive") or schema.get("exclusive" + keyword.capitalize()) is True
        lower = keyword in ("minimum", "exclusiveMinimum")
        value = self._number(schema, keyword, pointer)
        return self._numbers((above if lower != negate else below)(value, strict != negate, self.budget), negate)

    def _multiple_of(self, schema: Json, pointer: str, negate: bool) -> Values:
        found = multiples(self._number(schema, "multipleOf", pointer), self.budget)
        return self._numbers(subtract(numbers(PLAIN), found, self.budget) if negate else found, negate)

    # Strings

    def _min_length(self, schema: Json, pointer: str, negate: bool) -> Values:
        least = self._number(schema, "minLength", pointer, count=True)
        return self._strings(_lengths(least, None, self.budget), negate)

    def _max_length(self, schema: Json, pointer: str, negate: bool) -> Values:
        most = self._number(schema, "maxLength", pointer, count=True)
        return self._strings(_lengths(0, most if negate else min(most, LONGEST), self.budget), negate)

    def _pattern(self, schema: Json, pointer: str, negate: bool) -> Values:
        return self._strings(self._search(schema["pattern"], f"{pointer}/pattern"), negate)

    def _search(self, pattern: object, pointer: str) -> Dfa:
        """The strings that hold a match of a pattern."""
        if not isinstance(pattern, str):
            raise InputError(f"the pattern at #{pointer} must be a string, not {pattern!r:.40}: correct the schema")
        if pattern not in self._patterns:
            try:
                self._patterns[pattern] = regex_dfa(pattern, self.budget, search=True)
            except InputError as error:
                raise type(error)(f"at #{pointer}: {error}") from error
        return self._patterns[pattern]

    def _format(self, schema: Json, pointer: str, negate: bool) -> Values | None:
        name = schema["format"]
        if name not in FORMATS:
            self._refuse(f"format {name!r:.40}", pointer)
            return None
        if negate:
            raise self._cannot_negate("format", pointer)
        return self._strings(regex_dfa(FORMATS[name], self.budget), negate)

    # Arrays

    def _items(self, schema: Json, pointer: str, negate: bool) -> Values | None:
        listed = "items" if isinstance(schema.get("items"), list) else "prefixItems"
        prefix = self._parts(schema, listed, pointer) if listed in schema else ()
        rest_key = "additionalItems" if listed == "items" else "items"
        rest: Expr = self._node(f"{pointer}/{rest_key}") if rest_key in schema else TRUE
        if not negate:
            return self._arrays(Arrays((ItemRule(prefix, rest),)))
        wrong = [self._item_not(i, expr, 0) for i, expr in enumerate(prefix)]
        if self.values(rest) is not self.everything:
            if prefix:
                raise self._cannot_negate(rest_key, pointer)
            wrong.append(Arrays(contains=(Not(rest),)))
        return replace(NOTHING, arrays=tuple(wrong))

    def _contains(self, schema: Json, pointer: str, negate: bool) -> Values:
        wanted = self._node(f"{pointer}/contains")
        if negate:
            return replace(NOTHING, arrays=(Arrays((ItemRule((), Not(wanted)),)),))
        return self._arrays(Arrays(contains=(wanted,)))

    def _min_items(self, schema: Json, pointer: str, negate: bool) -> Values:
        least = self._number(schema, "minItems", pointer, count=True)
        if negate:
            return replace(NOTHING, arrays=(Arrays(most=least - 1),) if least else ())
        return self._arrays(Arrays(least=least))

    def _max_items(self, schema: Json, pointer: str, negate: bool) -> Values:
        most = self._number(schema, "maxItems", pointer, count=True)
        return replace(NOTHING, arrays=(Arrays(least=most + 1),)) if negate else self._arrays(Arrays(most=most))

    def _unique_items(self, schema: Json, pointer: str, negate: bool) -> Values | None:
        if not isinstance(schema["uniqueItems"], bool):
            raise InputError(f"uniqueItems at #{pointer} must be true or false: correct the schema")
        if not schema["uniqueItems"]:
            return NOTHING if negate else None
        if negate:
            raise self._cannot_negate("uniqueItems", pointer)
        return self._arrays(Arrays(unique=True))

    # Objects

    def _members(self, schema: Json, pointer: str, negate: bool) -> Values | None:
        names = self._nodes(schema, "properties", pointer)
        patterns = [
            (self._search(pattern, f"{pointer}/patternProperties"), node)
            for pattern, node in self._nodes(schema, "patternProperties", pointer)
        ]
        rest: Expr = self._node(f"{pointer}/additionalProperties") if "additionalProperties" in schema else TRUE
        if not negate:
            return self._objects(Objects((KeyRule(tuple(names), tuple(patterns), rest),)))
        for keyword, expr in [("patternProperties", node) for _, node in patterns] + [("additionalProperties", rest)]:
            if self.values(expr) is not self.everything:
                raise self._cannot_negate(keyword, pointer)
        wrong = (Objects((KeyRule(((name, Not(expr)),)),), (name,)) for name, expr in names)
        return replace(NOTHING, objects=tuple(wrong))

    def _required(self, schema: Json, pointer: str, negate: bool) -> Values | Expr:
        names = schema["required"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"required at #{pointer} must be a list of names, not {names!r:.40}: correct the schema")
        if negate:
            lacking = tuple(Objects((KeyRule(((name, FALSE),)),)) for name in names)
            return replace(NOTHING, objects=lacking)
        return self._objects(Objects(required=tuple(dict.fromkeys(names))))

    def _min_properties(self, schema: Json, pointer: str, negate: bool) -> Values:
        least = self._number(schema, "minProperties", pointer, count=True)
        if negate:
            return replace(NOTHING, objects=(Objects(most=least - 1),) if least else ())
        return self._objects(Objects(least=least))

    def _max_properties(self, schema: Json, pointer: str, negate: bool) -> Values:
        most = self._number(schema, "maxProperties", pointer, count=True)
        return replace(NOTHING, objects=(Objects(least=most + 1),)) if negate else self._objects(Objects(most=most))

    def _property_names(self, schema: Json, pointer: str, negate: bool) -> Values:
        if negate:
            raise self._cannot_negate("propertyNames", pointer)
        allowed = self.values(self._node(f"{pointer}/propertyNames")).strings
        others = subtract(self.everything.strings, allowed, self.budget)
        return self._objects(Objects((KeyRule(patterns=((others, FALSE),)),)))

    def _dependencies(self, schema: Json, pointer: str, negate: bool, keyword: str) -> Expr:
        held = schema[keyword]
        if not isinstance(held, dict):
            raise InputError(f"{keyword} at #{pointer} must be an object, not {held!r:.40}: correct the schema")
        rules = []
        for name, then in self._nodes(schema, keyword, pointer):
            needs: Expr = And(tuple(map(Has, held[name]))) if isinstance(held[name], list) else then
            rules.append(Or((Not(Has(name)), every([Has(name), needs]))))
        return Not(And(tuple(rules))) if negate else And(tuple(rules))


class _LoopError(InputError):
    """An expression is needed to work itself out."""


Handler = Callable[[Schema, Json, str, bool], Values | Expr | None]
KEYWORDS: dict[str, Handler] = {
    "type": Schema._type,
    "const": Schema._const,
    "enum": Schema._enum,
    "$ref": Schema._ref,
    "allOf": partial(Schema._combined, keyword="allOf"),
    "anyOf": partial(Schema._combined, keyword="anyOf"),
    "oneOf": Schema._one_of,
    "not": Schema._not,
    "if": Schema._if,
    "then": Schema._if,
    "else": Schema._if,
    "minimum": partial(Schema._bound, keyword="minimum"),
    "maximum": partial(Schema._bound, keyword="maximum"),
    "exclusiveMinimum": partial(Schema._bound, keyword="exclusiveMinimum"),
    "exclusiveMaximum": partial(Schema._bound, keyword="exclusiveMaximum"),
    "multipleOf": Schema._multiple_of,
    "minLength": Schema._min_length,
    "maxLength": Schema._max_length,
    "pattern": Schema._pattern,
    "format": Schema._format,
    "prefixItems": Schema._items,
    "items": Schema._items,
    "additionalItems": Schema._items,
    "contains": Schema._contains,
    "minItems": Schema._min_items,
    "maxItems": Schema._max_items,
    "uniqueItems": Schema._unique_items,
    "properties": Schema._members,
    "patternProperties": Schema._members,
    "additionalProperties": Schema._members,
    "required": Schema._required,
    "minProperties": Schema._min_properties,
    "maxProperties": Schema._max_properties,
    "propertyNames": Schema._property_names,
    "dependencies": partial(Schema._dependencies, keyword="dependencies"),
    "dependentSchemas": partial(Schema._dependencies, keyword="dependentSchemas"),
    "dependentRequired": partial(Schema._dependencies, keyword="dependentRequired"),
}


def compact(value: object) -> str:
    """JSON without spaces, as the automata write it."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the schema holds a value that JSON does not have: {error}; remove it") from error


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _schemas(part: object, pointer: str) -> Iterator[tuple[str, Json]]:
    """Every object in the document with its place."""
    if isinstance(part, dict):
        yield pointer, part
        for key, value in part.items():
            yield from _schemas(value, f"{pointer}/{_escaped(key)}")
    elif isinstance(part, list):
        for i, value in enumerate(part):
            yield from _schemas(value, f"{pointer}/{i}")


def _lengths(least: int, most: int | None, budget: Budget) -> Dfa:
    """Strings of some numbers of characters."""
    nfa = Nfa(budget)
    entry = nfa.state()
    last = nfa.repeat(entry, lambda state: nfa.chars(state, ANY), least, most)
    return determinize(nfa, entry, last)


def literals(texts: Iterable[str | bytes], budget: Budget) -> Dfa:
    """The language of a few texts."""
    nfa = Nfa(budget)
    entry, last = nfa.state(), nfa.state()
    for text in texts:
        nfa.link(nfa.literal(entry, text if isinstance(text, bytes) else text.encode()), last)
    return determinize(nfa, entry, last)
