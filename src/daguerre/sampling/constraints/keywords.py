"""The keywords of JSON Schema: for each, the values that satisfy it and, under `not`, those that do not.

A function of the table `KEYWORDS` is given the whole schema, the object that the keyword is in, its place, and
whether it is negated. Keywords that mean something only together have one function.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from daguerre.errors import InputError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, subtract
from daguerre.sampling.constraints.disjoint import overlaps
from daguerre.sampling.constraints.documents import Json
from daguerre.sampling.constraints.evaluated import unevaluated_items, unevaluated_members
from daguerre.sampling.constraints.formats import FORMATS, WIDEST, format_dfa
from daguerre.sampling.constraints.limits import DEFAULT, Limits
from daguerre.sampling.constraints.numbers import INTEGER, PLAIN, above, below, multiples, numbers
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.schema import Handler, Keywords, Schema, handling
from daguerre.sampling.constraints.text import compact, lengths, literals
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
    Not,
    Objects,
    Or,
    Values,
    Wanted,
    every,
)

KINDS = {
    "null": "null",
    "boolean": "booleans",
    "integer": "numbers",
    "number": "numbers",
    "string": "strings",
    "array": "arrays",
    "object": "objects",
}


def _unless(negate: bool, found: Expr) -> Expr:
    return Not(found) if negate else found


def _below(whole: Schema, schema: Json, pointer: str, key: str) -> Expr:
    return whole.node(f"{pointer}/{key}") if key in schema else TRUE


# Any kind of value


def _type(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values:
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if schema.get("nullable") is True and whole.keywords.has("nullable", whole.draft(pointer)):
        types = [*types, "null"]
    kinds = {KINDS[name] for name in types}
    integers = "integer" in types and "number" not in types
    if not negate:
        found = whole.everything.only(*kinds)
        return replace(found, numbers=numbers(INTEGER)) if integers else found
    found = whole.everything.without(*kinds)
    if integers:
        integral = regex_dfa("-?[0-9]+(\\.0+)?", whole.budget)
        found = replace(found, numbers=subtract(numbers(PLAIN), integral, whole.budget))
    return found


def _const(whole: Schema, schema: Json, pointer: str, negate: bool) -> Expr:
    return _unless(negate, Const(compact(schema["const"])))


def _enum(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values | Expr:
    strings = [value for value in schema["enum"] if isinstance(value, str)]
    others = Or(tuple(Const(compact(value)) for value in schema["enum"] if not isinstance(value, str)))
    words = replace(NOTHING, strings=literals(strings, whole.budget))
    if negate:
        spare = replace(whole.everything, strings=subtract(whole.everything.strings, words.strings, whole.budget))
        return whole.all([spare, whole.values(Not(others))])
    return whole.any([whole.values(others), words])


# Combinations


def _nullable(whole: Schema, schema: Json, pointer: str, negate: bool) -> None:
    """OpenAPI's: it says how `type` is meant."""


def _ref(whole: Schema, schema: Json, pointer: str, negate: bool, keyword: str) -> Expr:
    find = {"$ref": "target", "$dynamicRef": "dynamic_target", "$recursiveRef": "recursive_target"}[keyword]
    place = getattr(whole.document, find)(schema[keyword], pointer)
    return _unless(negate, whole.node(place))


def _combined(whole: Schema, schema: Json, pointer: str, negate: bool, keyword: str) -> Expr:
    parts = whole.parts(schema, keyword, pointer)
    return _unless(negate, And(parts) if keyword == "allOf" else Or(parts))


def _not(whole: Schema, schema: Json, pointer: str, negate: bool) -> Expr:
    return _unless(not negate, whole.node(f"{pointer}/not"))


def _one_of(whole: Schema, schema: Json, pointer: str, negate: bool) -> Expr:
    """If the parts exclude one another, this is an anyOf; else one part holds, and all that overlap with it do not."""
    parts = whole.parts(schema, "oneOf", pointer)
    types = schema.get("type", list(KINDS))
    pairs = overlaps(whole, parts, [KINDS[name] for name in ([types] if isinstance(types, str) else types)])
    if negate:
        none = And(tuple(Not(part) for part in parts))
        return Or((none, *(And((parts[i], parts[j])) for i, j in pairs)))
    rivals: list[list[Expr]] = [[] for _ in parts]
    for i, j in pairs:
        rivals[i].append(Not(parts[j]))
        rivals[j].append(Not(parts[i]))
    return Or(tuple(every([part, *others]) for part, others in zip(parts, rivals, strict=True)))


def _if(whole: Schema, schema: Json, pointer: str, negate: bool) -> Expr:
    if "if" not in schema:  # then and else say nothing alone
        return FALSE if negate else TRUE
    test = whole.node(f"{pointer}/if")
    then, other = _below(whole, schema, pointer, "then"), _below(whole, schema, pointer, "else")
    if negate:
        then, other = Not(then), Not(other)
    return Or((every([test, then]), every([Not(test), other])))


# Numbers


def _bound(whole: Schema, schema: Json, pointer: str, negate: bool, keyword: str) -> Values | None:
    if isinstance(schema[keyword], bool):
        return None  # draft 4's exclusiveMinimum: it says how minimum is meant
    strict = keyword.startswith("exclusive") or schema.get("exclusive" + keyword.capitalize()) is True
    lower = keyword in ("minimum", "exclusiveMinimum")
    value = schema[keyword]
    compared = above if lower != negate else below
    return whole.numbers(compared(value, strict != negate, whole.budget, whole.limits), negate)


def _multiple_of(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values:
    found = multiples(schema["multipleOf"], whole.budget, whole.limits)
    return whole.numbers(subtract(numbers(PLAIN), found, whole.budget) if negate else found, negate)


# Strings


def _length(whole: Schema, schema: Json, pointer: str, negate: bool, keyword: str) -> Values:
    count = int(schema[keyword])
    if keyword == "minLength":
        return whole.strings(lengths(count, None, whole.budget), negate)
    longest = max(whole.limits.longest, _least_length(schema))
    if count > longest and not negate:
        if whole.is_loose:
            return whole.everything
        whole.capped.append(f"#{pointer}")
        count = longest
    return whole.strings(lengths(0, count, whole.budget), negate)


def _least_length(schema: Json) -> int:
    return int(schema.get("minLength", 0))


def _pattern(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values:
    return whole.strings(_search(whole, schema["pattern"], f"{pointer}/pattern"), negate)


def _search(whole: Schema, pattern: str, pointer: str) -> Dfa:
    """The strings that hold a match of a pattern."""
    if pattern not in whole.patterns:
        try:
            whole.patterns[pattern] = regex_dfa(pattern, whole.budget, search=True)
        except InputError as error:
            raise type(error)(f"at #{pointer}: {error}") from error
    return whole.patterns[pattern]


def _format(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values | None:
    name = schema["format"]
    if name not in FORMATS:
        whole.leave_out(f"format {name!r:.40}", pointer)
        return NOTHING if negate else None
    wide = negate != whole.is_loose  # what is not of a format is not of it by any reading
    return whole.strings(regex_dfa(WIDEST[name], whole.budget) if wide else format_dfa(name, whole.budget), negate)


# Arrays and objects


def _size(whole: Schema, schema: Json, pointer: str, negate: bool, keyword: str) -> Values:
    """minItems, maxItems, minProperties and maxProperties; the opposite of a bound is the other bound, moved by one."""
    count = int(schema[keyword])
    lower = keyword.startswith("min") != negate
    if negate:
        count += 1 if lower else -1
    kept = NOTHING if negate else whole.everything
    if keyword.endswith("Items"):
        arrays = Arrays(least=count) if lower else Arrays(most=count)
        return replace(kept, arrays=(arrays,) if count >= 0 else ())
    objects = Objects(least=count) if lower else Objects(most=count)
    return replace(kept, objects=(objects,) if count >= 0 else ())


# Arrays


def _items(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values | None:
    listed = "items" if isinstance(schema.get("items"), list) else "prefixItems"
    read = listed in schema and whole.keywords.has(listed, whole.draft(pointer))
    prefix = whole.parts(schema, listed, pointer) if read else ()
    rest_key = "additionalItems" if listed == "items" else "items"
    rest = _below(whole, schema, pointer, rest_key)
    if not negate:
        return whole.arrays(Arrays((ItemRule(prefix, rest),)))
    wrong = [whole.item_not(i, expr, 0) for i, expr in enumerate(prefix)]
    if whole.values(rest) is not whole.everything:
        wrong.append(Arrays(contains=(Wanted(Not(rest), start=len(prefix)),)))
    return replace(NOTHING, arrays=tuple(wrong))


def _contains(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values | None:
    """contains, with minContains and maxContains where the draft has them."""
    if "contains" not in schema:
        return NOTHING if negate else None
    wanted, draft, least, most = whole.node(f"{pointer}/contains"), whole.draft(pointer), 1, None
    if "minContains" in schema and whole.keywords.has("minContains", draft):
        least = int(schema["minContains"])
    if "maxContains" in schema and whole.keywords.has("maxContains", draft):
        most = int(schema["maxContains"])
    if not negate:
        return whole.arrays(Arrays(contains=(Wanted(wanted, least, most),)))
    wrong = [Arrays(contains=(Wanted(wanted, 0, least - 1),))] if least > 0 else []
    wrong += [Arrays(contains=(Wanted(wanted, most + 1, None),))] if most is not None else []
    return replace(NOTHING, arrays=tuple(wrong))


def _unique_items(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values | None:
    if not schema["uniqueItems"]:
        return NOTHING if negate else None
    if negate:
        if whole.is_loose:
            return replace(NOTHING, arrays=(Arrays(least=2),))
        raise whole.cannot_negate("uniqueItems", pointer)
    return whole.everything if whole.is_loose else whole.arrays(Arrays(unique=(f"#{pointer}",)))


# Objects


def _members(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values | None:
    names = whole.nodes(schema, "properties", pointer)
    patterns = [
        (_search(whole, pattern, f"{pointer}/patternProperties"), node)
        for pattern, node in whole.nodes(schema, "patternProperties", pointer)
    ]
    rest = _below(whole, schema, pointer, "additionalProperties")
    if not negate:
        return whole.objects(Objects((KeyRule(tuple(names), tuple(patterns), rest),)))
    wrong = [Objects((KeyRule(((name, Not(expr)),)),), (name,)) for name, expr in names]
    wrong += [Objects(some=((allowed, Not(node)),)) for allowed, node in patterns]
    if whole.values(rest) is not whole.everything:
        others = subtract(whole.everything.strings, literals([name for name, _ in names], whole.budget), whole.budget)
        for allowed, _ in patterns:
            others = subtract(others, allowed, whole.budget)
        wrong.append(Objects(some=((others, every([Not(rest)]) if rest != FALSE else TRUE),)))
    return replace(NOTHING, objects=tuple(wrong))


def _required(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values | Expr:
    names = schema["required"]
    if negate:
        lacking = tuple(Objects((KeyRule(((name, FALSE),)),)) for name in names)
        return replace(NOTHING, objects=lacking)
    return whole.objects(Objects(required=tuple(dict.fromkeys(names))))


def _property_names(whole: Schema, schema: Json, pointer: str, negate: bool) -> Values:
    names = whole.node(f"{pointer}/propertyNames")
    if negate:
        return replace(NOTHING, objects=(Objects(some=((whole.values(Not(names)).strings, TRUE),)),))
    others = subtract(whole.everything.strings, whole.values(names).strings, whole.budget)
    return whole.objects(Objects((KeyRule(patterns=((others, FALSE),)),)))


def _dependencies(whole: Schema, schema: Json, pointer: str, negate: bool, keyword: str) -> Expr:
    held = schema[keyword]
    rules = []
    for name, then in whole.nodes(schema, keyword, pointer):
        listed = [held[name]] if isinstance(held[name], str) else held[name]
        needs: Expr = And(tuple(map(Has, listed))) if isinstance(listed, list) else then
        rules.append(Or((Not(Has(name)), every([Has(name), needs]))))
    return _unless(negate, And(tuple(rules)))


ONE_OF_SEVERAL = {
    _ref: ("$ref", "$dynamicRef", "$recursiveRef"),
    _combined: ("allOf", "anyOf"),
    _bound: ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    _length: ("minLength", "maxLength"),
    _size: ("minItems", "maxItems", "minProperties", "maxProperties"),
    _dependencies: ("dependencies", "dependentSchemas", "dependentRequired"),
}
"""Handlers of several keywords, which are given the keyword too."""

HANDLERS: dict[str, Handler] = {
    "type": _type,
    "nullable": _nullable,
    "const": _const,
    "enum": _enum,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "then": _if,
    "else": _if,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "format": _format,
    "prefixItems": _items,
    "items": _items,
    "additionalItems": _items,
    "unevaluatedItems": unevaluated_items,
    "contains": _contains,
    "minContains": _contains,
    "maxContains": _contains,
    "uniqueItems": _unique_items,
    "properties": _members,
    "patternProperties": _members,
    "additionalProperties": _members,
    "unevaluatedProperties": unevaluated_members,
    "required": _required,
    "propertyNames": _property_names,
    **{name: partial(handler, keyword=name) for handler, names in ONE_OF_SEVERAL.items() for name in names},
}
SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems", "$recursiveRef"), 2019),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), 2020),
}
UNTIL = {"nullable": 0, "dependencies": 7, "additionalItems": 2019, "$recursiveRef": 2019}
KEYWORDS = Keywords(HANDLERS, SINCE, UNTIL)


def read_schema(
    document: object, budget: Budget, lenient: bool = False, strict: bool = False, limits: Limits = DEFAULT
) -> Schema:
    """A schema document as the values that it allows. UnsupportedError for what is known and cannot be honored, which a
    `lenient` reader leaves out; a `strict` one refuses keywords and formats of no draft, too.
    """
    return Schema(document, KEYWORDS, budget, handling(lenient, strict), limits)
