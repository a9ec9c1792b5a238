"""What a schema's automaton accepts, against an independent validator, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compile import compile_schema, schema_dfa
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.text import compact
from random_texts import random_texts

Written = Callable[[Schema, Any], list[str]]

CLOSED = {"additionalProperties": False}
NUMBERS = [0, 1, -1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 15, 30, 99, 100, 101, 1000, -5, -10, -11]
FRACTIONS = [0.5, -0.5, 0.25, 1.5, 2.5, 0.05, 9.99, 10.01, 0.1, -9.5, 99.75]
SCALARS: list[Any] = [
    None,
    True,
    False,
    *NUMBERS,
    *FRACTIONS,
    "",
    "a",
    "ab",
    "abc",
    "é",
    "日本",
    'q"\\\n\x01',
    "a1",
    "1",
]
VALUES: list[Any] = [
    *SCALARS,
    *([x] for x in (1, "a", None)),
    [],
    [1, 2],
    [1, 1],
    [2, 1, 3],
    ["a", 1],
    ["a", "b"],
    ["a", "a"],
    [[1], []],
    {},
    {"a": 1},
    {"a": "x"},
    {"b": 1},
    {"a": 1, "b": 2},
    {"a": 1, "b": "x"},
    {"a": None, "c": True},
    {"a": 1, "b": 2, "c": 3},
    {"zz": 1},
    {"a": 1, "zz": {"y": 1}},
    {"a": {"a": 1}},
    {"x-1": "y"},
]
SCHEMAS: list[Any] = [
    True,
    {},
    {"type": "integer"},
    {"type": ["string", "null"]},
    {"type": "number", "minimum": 5},
    {"type": "number", "maximum": 9.99},
    {"exclusiveMinimum": -0.5, "exclusiveMaximum": 10},
    {"type": "integer", "minimum": -10, "maximum": 99},
    {"multipleOf": 5},
    {"multipleOf": 0.25},
    {"type": "number", "not": {"multipleOf": 3}},
    {"not": {"type": "integer"}},
    {"not": {"type": "number", "minimum": 3}},
    {"minLength": 2},
    {"type": "string", "maxLength": 1},
    {"pattern": "^[a-z]"},
    {"type": "string", "pattern": "[0-9]$", "minLength": 2},
    {"not": {"pattern": "a"}},
    {"enum": [1, "a", None, [1, 2], {"a": 1}]},
    {"const": {"a": 1, "b": "x"}},
    {"const": 5},
    {"not": {"const": 5}},
    {"not": {"enum": ["a", 1, True]}},
    {"not": {"const": [1, 2]}},
    {"type": "array", "items": {"type": "integer"}},
    {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    {"type": "array", "minItems": 1, "maxItems": 2},
    {"type": "array", "contains": {"type": "string"}},
    {"not": {"contains": {"const": 1}}},
    {"not": {"items": {"type": "integer"}}},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True},
    {"properties": {"a": {"type": "integer"}}},
    {"properties": {"b": {}, "a": {"type": "integer"}}, "required": ["a"], **CLOSED},
    {"required": ["a", "c"]},
    {"not": {"required": ["a"]}},
    {"properties": {"a": False}},
    {"type": "object", "not": {"properties": {"a": {"type": "integer"}}}},
    {"type": "object", "minProperties": 1},
    {"maxProperties": 1},
    {"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, **CLOSED},
    {"patternProperties": {"^[ab]$": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
    {"patternProperties": {"^x-": {"type": "string"}}, "properties": {"a": {}}, **CLOSED},
    {"propertyNames": {"pattern": "^[a-c]$"}},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"properties": {"b": {"type": "integer"}}}}},
    {"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {"maximum": 1}}, "required": ["a"]}]},
    {"anyOf": [{"type": "integer", "minimum": 10}, {"type": "string", "maxLength": 1}]},
    {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 10}]},
    {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]},
    {"if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"type": "string"}},
    {
        "$defs": {"tree": {"type": "object", "properties": {"a": {"$ref": "#/$defs/tree"}}, **CLOSED}},
        "$ref": "#/$defs/tree",
    },
    {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}, **CLOSED, "type": "object"},
]


def automaton(schema: Any, **options: Any) -> Dfa:
    return schema_dfa(schema, Budget(), **options)[0]


def test_what_is_accepted_is_what_is_valid_and_whatever_is_generated_is(
    written: Written, subtests: pytest.Subtests
) -> None:
    for schema in SCHEMAS:
        with subtests.test(compact(schema)):
            dfa, held = automaton(schema), read_schema(schema, Budget())
            validator = jsonschema.Draft202012Validator(schema)
            found = set()
            for value in VALUES:
                valid = validator.is_valid(value)
                assert any(dfa.accepts(text.encode()) for text in written(held, value)) == valid, value
                found.add(valid)
            assert True in found
            for text in random_texts(dfa, 25):
                validator.validate(json.loads(text))


def test_a_whole_number_is_written_without_a_fraction_where_an_integer_is_asked_for() -> None:
    assert automaton({"type": "number"}).accepts(b"5.0")
    assert not automaton({"type": "integer"}).accepts(b"5.0") and not automaton({"not": {"const": 5}}).accepts(b"5.0")


def test_members_come_in_the_order_of_the_schema_and_unnamed_ones_last() -> None:
    dfa = automaton({"properties": {"b": {}, "a": {}}, "required": ["b"], "type": "object"})

    assert dfa.accepts(b'{"b":1,"a":2,"zz":3,"c":4}')
    assert not dfa.accepts(b'{"a":2,"b":1}') and not dfa.accepts(b'{"zz":3,"b":1}')
    assert not dfa.accepts(b'{"b":1,"b":2}')


def test_a_schema_that_contains_itself_does_so_to_its_depth() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}, **CLOSED}

    for depth in (1, 3):
        dfa = automaton(schema, depth=depth)
        assert dfa.accepts(b'{"a":' * depth + b"{}" + b"}" * depth)
        assert not dfa.accepts(b'{"a":' * (depth + 1) + b"{}" + b"}" * (depth + 1))


def test_draft_4_is_read_as_it_was_meant() -> None:
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 5, "exclusiveMinimum": True}
    void = {**old, "definitions": {"s": {"type": "string"}}, "$ref": "#/definitions/s"}
    listed = {"items": [{"type": "integer"}], "additionalItems": False}

    assert automaton(old).accepts(b"6") and not automaton(old).accepts(b"5")
    assert automaton(void).accepts(b'"x"') and not automaton(void).accepts(b"6")
    assert automaton(listed).accepts(b"[1]") and not automaton(listed).accepts(b"[1,2]")


def test_formats_are_checked() -> None:
    for name, good, bad in (
        ("date", "2024-02-29", "2023-02-29"),
        ("date-time", "2024-01-01T23:59:59Z", "2024-01-01"),
        ("time", "08:30:00+01:00", "25:00:00Z"),
        ("email", "a.b@example.org", "example.org"),
        ("ipv4", "127.0.0.1", "256.0.0.1"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("uri", "https://example.org/a?b=c#d", "not a uri"),
        ("hostname", "example.org", "-.org"),
    ):
        dfa = automaton({"type": "string", "format": name})
        assert dfa.accepts(f'"{good}"'.encode()) and not dfa.accepts(f'"{bad}"'.encode())


UNSUPPORTED: list[tuple[Any, str]] = [
    ({"$ref": "other.json"}, "'other.json' at # leads outside"),
    (
        {"properties": {"a/b": {"type": "array", "uniqueItems": True}}},
        "uniqueItems at #/properties/a~1b is supported",
    ),
    ({"not": {"uniqueItems": True}}, "uniqueItems at #/not stands under a not"),
    ({"not": {"unevaluatedProperties": False}}, "unevaluatedProperties at #/not stands under a not"),
    ({"pattern": "(a)\\1"}, "at #/pattern: the pattern .* a back-reference"),
]


def test_what_is_not_supported_is_named_with_its_place(subtests: pytest.Subtests) -> None:
    for schema, complaint in UNSUPPORTED:
        with subtests.test(complaint, schema=schema):
            with pytest.raises(InputError, match=complaint) as caught:
                automaton(schema)
            assert isinstance(caught.value, UnsupportedError) or "pattern" in complaint


BROKEN: list[tuple[Any, str]] = [
    ({"type": "int"}, "type at # must be one of null, boolean, .* not 'int'"),
    ({"required": True}, "required at # must be a list"),
    ({"minLength": -1}, "minLength at # must be a count"),
    ({"properties": {"a": 3}}, "at #/properties/a a schema is expected"),
    ({"$ref": "#/$defs/a"}, "nothing at #/\\$defs/a"),
    ({"$ref": "#"}, "leads back to itself"),
    ({"enum": [float("nan")]}, "a value that JSON does not have"),
    ({"multipleOf": 0}, "multipleOf must be above 0"),
    ({"multipleOf": 0.000123457}, r"multipleOf 0.000123457, .*above 20,000: .*Limits\(remainders=...\)"),
    ({"minimum": 1e300}, r"near 1e\+300, .*above 100: .*Limits\(exponent=...\)"),
    ({"minLength": float("inf")}, "minLength at # must be a count"),
]


def test_a_broken_schema_is_an_error_that_says_where(subtests: pytest.Subtests) -> None:
    for schema, complaint in BROKEN:
        with subtests.test(complaint, schema=schema), pytest.raises(InputError, match=complaint):
            automaton(schema)


def test_what_no_draft_knows_is_reported_and_a_strict_reader_refuses_it() -> None:
    schema = {"type": "string", "faker": 1, "format": "int32", "x-mine": 1, "title": "no constraint"}

    for lenient in (False, True):
        dfa, ignored = schema_dfa(schema, Budget(), lenient)
        assert dfa.accepts(b'"a"') and not dfa.accepts(b"1")
        assert ignored == ("keyword 'faker' at #", "format 'int32' at #")
    for odd in ({"faker": 1}, {"properties": {"a": {"format": "int32"}}}):
        with pytest.raises(UnsupportedError, match="of no draft that applies here"):
            schema_dfa(odd, Budget(), strict=True)
    with pytest.raises(InputError, match="strict refuses what lenient leaves out"):
        schema_dfa({}, Budget(), lenient=True, strict=True)


def test_lenient_ignores_and_reports_what_is_known_and_not_supported() -> None:
    schema = {"items": {"type": "string"}, "uniqueItems": True}

    dfa, ignored = schema_dfa(schema, Budget(), lenient=True)

    assert dfa.accepts(b'["a","a"]')
    assert ignored == ("uniqueItems at #",)


def test_a_hostile_schema_is_an_error_and_not_a_hang() -> None:
    names = [f"p{i}" for i in range(14)]
    either = [{"anyOf": [{"required": [name]}, {"properties": {name: {"type": "null"}}}]} for name in names]
    many = {"type": "array", "minItems": 10**9}
    for schema in ({"type": "object", "allOf": either}, {"type": "string", "minLength": 10**8}, many):
        with pytest.raises(
            InputError, match=r"too large|took longer|too many ways, above 2,000: .*Limits\(alternatives=...\)"
        ):
            schema_dfa(schema, Budget(max_states=5_000, max_steps=50_000, seconds=5))


def test_a_schema_that_is_nested_too_deep_is_an_error(tokenizer: Tokenizer) -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(3000):
        schema = {"properties": {"a": schema}}

    with pytest.raises(InputError, match=r"nested too deep|took longer"):
        compile_schema(schema, tokenizer, budget=Budget(seconds=1))
    for _ in range(1000):
        schema = {"not": {"items": schema}}
    with pytest.raises(InputError, match=r"nested too deep for Python, which allows [\d,]+ calls inside one another"):
        compile_schema(schema, tokenizer)


def test_a_divisor_of_many_digits_is_exact() -> None:
    dfa = automaton({"multipleOf": 1e-50})

    assert dfa.accepts(b"7") and dfa.accepts(b"0.5")
