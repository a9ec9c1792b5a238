"""What each keyword's value has to be, whatever the draft: checked before a keyword is read.

The schemas inside a value are checked when they are read themselves. Annotations hold anything: they ask for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from daguerre.errors import InputError
from daguerre.sampling.constraints.documents import Json

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


@dataclass(frozen=True)
class ValueKind:
    """In words, and how to tell."""

    words: str
    holds: Callable[[object], bool]


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and value >= 0 and value == int(value)


def _maps(value: object, holds: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(map(holds, value.values()))


def _is_type(value: object) -> bool:
    return all(isinstance(one, str) and one in TYPES for one in (value if isinstance(value, list) else [value]))


def _needs(value: object) -> bool:
    return isinstance(value, str) or _are_names(value) or _is_schema(value)


FLAG = ValueKind("true or false", lambda value: isinstance(value, bool))
TEXT = ValueKind("a string", lambda value: isinstance(value, str))
NUMBER, COUNT = ValueKind("a number", _is_number), ValueKind("a count", _is_count)
SCHEMA = ValueKind("a schema, which is an object or a boolean", _is_schema)
SCHEMAS = ValueKind("a list of schemas", lambda value: isinstance(value, list))
NAMED = ValueKind("an object that holds schemas by name", lambda value: isinstance(value, dict))
NAMES = ValueKind("a list of names", _are_names)
BOUND = ValueKind("a number or, in draft 4, a boolean", lambda value: isinstance(value, bool) or _is_number(value))

KINDS: dict[str, ValueKind] = {
    "type": ValueKind(f"one of {', '.join(TYPES)}, or a list of these", _is_type),
    "const": ValueKind("a value", lambda value: True),
    "enum": ValueKind("a list", lambda value: isinstance(value, list)),
    "items": ValueKind("a schema or a list of schemas", lambda value: isinstance(value, list) or _is_schema(value)),
    "dependencies": ValueKind("an object that holds lists of names, or schemas", lambda value: _maps(value, _needs)),
    "dependentRequired": ValueKind("an object that holds lists of names", lambda value: _maps(value, _are_names)),
    "required": NAMES,
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), BOUND),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), NUMBER),
    **dict.fromkeys(("nullable", "uniqueItems"), FLAG),
    **dict.fromkeys(("pattern", "format", "$ref", "$dynamicRef", "$recursiveRef"), TEXT),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), SCHEMAS),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), NAMED),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), COUNT),
    **dict.fromkeys(("minContains", "maxContains"), COUNT),
    **dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames", "additionalItems"), SCHEMA),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"), SCHEMA),
}


def check_kinds(schema: Json, counted: Iterable[str], pointer: str) -> None:
    """InputError if the value of a counted keyword has a wrong type: it names the first such keyword and its place."""
    for keyword in counted:
        kind, value = KINDS[keyword], schema[keyword]
        if not kind.holds(value):
            raise InputError(f"{keyword} at #{pointer} must be {kind.words}, not {value!r:.40}: correct the schema")
