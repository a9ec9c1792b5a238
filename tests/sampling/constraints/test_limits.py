"""What is large, and what is small and was refused: limits are few, and an error names the one that was met."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from daguerre.audit.record import decoding_facts
from daguerre.decoding.request import Decode
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints.budget import MAX_STATES, Budget
from daguerre.sampling.constraints.compile import (
    compile_choices,
    compile_grammar,
    compile_regex,
    compile_schema,
    compile_tools,
    schema_dfa,
)
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.limits import Limits
from daguerre.sampling.constraints.text import literals
from random_texts import random_texts

CLOSED = {"additionalProperties": False}


def automaton(schema: Any, max_states: int = MAX_STATES, **options: Any) -> Dfa:
    """With time enough for a slow machine: what is tested is the size that compiles."""
    return schema_dfa(schema, Budget(seconds=300, max_states=max_states), **options)[0]


IMPOSSIBLE: list[Any] = [
    {"type": "object", "required": ["a"], "maxProperties": 0},
    {"type": "object", "required": ["a", "b"], "maxProperties": 1},
]


def test_an_object_that_cannot_be_is_a_contradiction_and_no_crash(
    tokenizer: Tokenizer, subtests: pytest.Subtests
) -> None:
    for schema in IMPOSSIBLE:
        with subtests.test(str(schema)), pytest.raises(InputError, match="contradicts itself"):
            compile_schema(schema, tokenizer)


def test_what_contradicts_itself_may_stand_where_it_need_not_hold() -> None:
    impossible = {"required": ["a", "b"], "maxProperties": 1}
    dfa = automaton({"if": {"required": ["c"]}, "then": impossible, "type": "object"})

    assert dfa.accepts(b'{"a":1}') and not dfa.accepts(b'{"a":1,"b":1,"c":1}')


def test_a_long_string_may_be_asked_for_and_a_limit_that_is_met_is_named() -> None:
    assert automaton({"type": "string", "minLength": 1001}).accepts(b'"' + b"a" * 1001 + b'"')
    assert automaton({"type": "string", "minLength": 1001, "maxLength": 1500}).accepts(b'"' + b"a" * 1001 + b'"')
    apart = {"type": "string", "allOf": [{"minLength": 1001}, {"maxLength": 1500}]}
    with pytest.raises(
        InputError, match=r"at most 1,000 characters, as maxLength at #/allOf/1 .*Limits\(longest=...\)"
    ):
        automaton(apart)
    assert automaton(apart, limits=Limits(longest=1500)).accepts(b'"' + b"a" * 1001 + b'"')


def test_a_thousand_optional_properties_compile() -> None:
    """A third of 3,000, in a third of the states that a budget allows."""
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1_000)}}
    dfa = automaton(schema, MAX_STATES // 3)

    assert dfa.accepts(b'{"p7":"a","p999":""}') and not dfa.accepts(b'{"p7":"a","p999":1}')


def test_an_enum_in_each_of_a_thousand_properties_compiles() -> None:
    """A tenth of 11,000, in a tenth of the states that a budget allows."""
    schema = {"type": "object", "properties": {f"p{i}": {"enum": ["a", i]} for i in range(1_100)}, **CLOSED}
    dfa = automaton(schema, MAX_STATES // 10)

    assert dfa.accepts(b'{"p0":"a","p1099":1099}') and not dfa.accepts(b'{"p0":"a","p1099":1098}')


def test_thousands_of_properties_compile() -> None:
    names = [f"name_{i * 7919 % 1500}" for i in range(1500)]
    dfa = automaton(
        {
            "properties": {key: {"enum": [1, True]} for key in names},
            "required": names[700:701],
            **CLOSED,
            "type": "object",
        }
    )

    few = dict.fromkeys((names[3], names[700], names[1400]), 1)
    assert dfa.accepts(json.dumps(few, separators=(",", ":")).encode())
    assert not dfa.accepts(b"{}") and len(dfa) < 60_000


def test_hundreds_of_alternatives_of_one_of_compile() -> None:
    kinds = [{"properties": {"kind": {"const": f"k{i}"}, "n": {"const": i}}, "required": ["kind"]} for i in range(201)]
    dfa = automaton({"type": "object", "oneOf": kinds, "properties": {"kind": {}}})

    assert dfa.accepts(b'{"kind":"k200","n":200}') and not dfa.accepts(b'{"kind":"k200","n":199}')
    words = automaton({"oneOf": [{"const": f"word {i}"} for i in range(1000)]})
    assert words.accepts(b'"word 999"') and not words.accepts(b'"word 1000"')


def test_an_enum_of_thousands_is_a_small_automaton() -> None:
    words = sorted({f"{i * i:x}" for i in range(11_000)})
    dfa = literals(words, Budget())

    assert sorted(text.decode() for text in dfa.strings(11_000, Budget()) or ()) == words
    assert automaton({"enum": words}).accepts(b'"' + words[77].encode() + b'"')
    assert literals([], Budget()).is_empty and literals(["", "a"], Budget()).accepts(b"")


def test_no_two_items_are_alike_where_that_can_be_said() -> None:
    free = {"type": "array", "uniqueItems": True}

    assert automaton({**free, "maxItems": 1}).accepts(b'["anything"]')
    pairs = automaton({**free, "items": {"enum": [f"v{i}" for i in range(30)]}, "maxItems": 2})
    assert pairs.accepts(b'["v7","v3"]') and not pairs.accepts(b'["v7","v7"]')
    assert not automaton({**free, "items": {"enum": [1, 1.0, 2]}}).accepts(b"[1,1.0]")
    with pytest.raises(InputError, match=r"at most 1,024 sets can be used up: .*Limits\(unique_sets=...\)"):
        automaton({**free, "items": {"enum": list(range(11))}})
    eleven = {**free, "items": {"enum": list(range(11))}}
    assert automaton(eleven, limits=Limits(unique_sets=2048)).accepts(b"[10,3]")


COUNTS: list[dict[str, int]] = [{}, {"minContains": 0, "maxContains": 0}, {"minContains": 2}, {"maxContains": 1}]


def test_items_may_differ_and_be_counted(subtests: pytest.Subtests) -> None:
    for counts in COUNTS:
        with subtests.test(str(counts)):
            items = [1, 2, "a", None]
            schema = {
                "items": {"enum": items},
                "contains": {"type": "integer"},
                "uniqueItems": True,
                "type": "array",
                **counts,
            }
            dfa, valid = automaton(schema), jsonschema.Draft202012Validator(schema).is_valid

            for row in (list(row) for size in range(5) for row in product(items, repeat=size)):
                assert dfa.accepts(json.dumps(row, separators=(",", ":")).encode()) == valid(row), row


LIMITED: dict[str, tuple[int, Any, bytes]] = {
    "alternatives": (2, {"type": "object", "anyOf": [{"required": [name]} for name in "abc"]}, b'{"c":1}'),
    "unique_sets": (7, {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3]}}, b"[3,1]"),
    "wanted": (1, {"type": "array", "allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}]}, b"[2,1]"),
    "name_sets": (3, {"type": "object", "patternProperties": {"^a": {"const": 1}, "b$": {"const": 1}}}, b'{"ab":1}'),
    "parts": (1, {"type": "object", "properties": {"a": {"items": {"items": {}}}}, **CLOSED}, b'{"a":[[1]]}'),
    "longest": (4, {"type": "string", "allOf": [{"minLength": 5}, {"maxLength": 9}]}, b'"abcde"'),
    "cases": (
        2,
        {"type": "object", "anyOf": [{"properties": {name: {}}} for name in "ab"], "unevaluatedProperties": False},
        b'{"b":1}',
    ),
    "exponent": (5, {"type": "number", "minimum": 1e6}, b"1000000"),
    "remainders": (6, {"type": "number", "multipleOf": 7}, b"14"),
}
"""For each limit, a value that it meets, and the text that it then loses."""


def test_a_limit_of_reading_is_named_with_its_value_and_is_raised(subtests: pytest.Subtests) -> None:
    for name in (field.name for field in fields(Limits)):
        with subtests.test(name):
            most, schema, text = LIMITED[name]
            with pytest.raises(InputError, match=rf"\b{most}\b.*limits=Limits\({name}=\.\.\.\)"):
                automaton(schema, limits=Limits(**{name: most}))
            assert automaton(schema, limits=Limits(**{name: 100 * most})).accepts(text)


@pytest.mark.parametrize(
    ("schema", "limits", "text"),
    [
        ({"type": "number", "maximum": -1e200}, {"exponent": 200}, b"-1" + b"0" * 200),
        ({"type": "number", "not": {"const": 10**150}}, {"exponent": 150}, b"1" + b"0" * 149),
        ({"type": "integer", "multipleOf": 30_011}, {"remainders": 40_000}, b"60022"),
    ],
)
def test_a_number_that_is_refused_is_read_with_a_limit_that_is_raised(
    schema: Any, limits: dict[str, int], text: bytes
) -> None:
    with pytest.raises(UnsupportedError, match=r"above [\d,]+: .*limits=Limits\(\w+=...\)"):
        automaton(schema)
    assert automaton(schema, limits=Limits(**limits)).accepts(text)


def test_an_integer_that_python_does_not_print_is_refused_in_one_line() -> None:
    with pytest.raises(UnsupportedError, match=r"near 1e\+5000, whose exponent is 5,000, above 100"):
        automaton({"minimum": 10**5_000})


def test_the_document_lists_every_limit_with_its_value() -> None:
    document = (Path(__file__).parents[3] / "docs/constraints.md").read_text()

    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", document, re.MULTILINE))
    assert rows == {field.name: f"{field.default:,}" for field in fields(Limits)}


@pytest.mark.parametrize("least", [6, 7, 9, 12])
def test_many_members_that_differ_may_be_asked_for(least: int) -> None:
    dfa = automaton({"type": "object", "minProperties": least, "additionalProperties": {"const": 1}})

    for text in (dfa.shortest().decode(), *random_texts(dfa, 5)):
        assert len(json.loads(text)) >= least


def test_members_that_the_schema_does_not_name_are_counted_when_they_differ() -> None:
    dfa = automaton({"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}})

    texts = [f'{{"{a}":1,"{b}":2}}'.encode() for a, b in ("ab", "ba")]
    assert any(map(dfa.accepts, texts))
    assert not dfa.accepts(b'{"a":1,"a":2}') and not dfa.accepts(b'{"a":1}')


def test_a_name_of_the_schema_or_of_few_comes_once() -> None:
    for schema in (
        {"properties": {"a": {}}},
        {"propertyNames": {"enum": ["b", "a"]}},
        {"patternProperties": {"^(a|b)$": {}}, **CLOSED},
        {"additionalProperties": False, "properties": {"a": {}, "b": {}}},
    ):
        dfa = automaton({"type": "object", **schema})
        assert dfa.accepts(b'{"a":1}') and not dfa.accepts(b'{"a":1,"a":2}')


def test_an_automaton_with_limits_of_ones_own_is_a_schema(causal: Model) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}
    made = compile_schema(schema, causal.tokenizer)
    plain, ready = (causal.generate("x = ", 12, schema=one, seed=1, temperature=1.0) for one in (schema, made))
    assert plain.text == ready.text and json.loads(ready.text) is not None
    with pytest.raises(InputError, match="at most 1,024 sets can be used up"):
        causal.generate("x = ", 40, schema={"type": "array", "uniqueItems": True, "items": {"enum": list(range(11))}})
    held = {"type": "array", "uniqueItems": True, "items": {"enum": list(range(11))}}
    large = compile_schema(held, causal.tokenizer, limits=Limits(unique_sets=2048))
    found = json.loads(causal.generate("x = ", 40, schema=large).text)
    assert len(set(found)) == len(found)
    other = compile_schema({"type": "null"}, Tokenizer.default("8k"))
    with pytest.raises(InputError, match="compile it with"):
        causal.generate("x = ", 12, schema=other)
    with pytest.raises(UnsupportedError, match="a record holds no compiled automaton"):
        decoding_facts(Decode(schema=made))
    for name in ("strict", "lenient"):
        with pytest.raises(InputError, match=f"{name} is not used with a schema that is compiled already"):
            Decode(schema=made, **{name: True})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="compiled already"):
        causal.generate("x = ", 12, schema=made, tools=[{"name": "f", "parameters": {}}])


BAD: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    *[(compile_schema, {"schema": {}, "depth": depth}, "depth must be") for depth in ("x", 0, 33, True, 1.5)],
    (compile_schema, {"schema": {}, "any_depth": "x"}, "any_depth must be"),
    (compile_schema, {"schema": {}, "limits": 5}, "limits must be"),
    (compile_schema, {"schema": {}, "strict": 1}, "strict must be True or False"),
    (compile_schema, {"schema": {}, "folder": 3}, "folder must be"),
    (compile_schema, {"schema": {}, "budget": 10}, "budget must be a Budget"),
    (compile_regex, {"pattern": 5}, "pattern must be a string"),
    (compile_regex, {"pattern": "a", "tokenizer": "2k"}, "tokenizer must be"),
    *[(compile_choices, {"choices": some}, "choices must be") for some in ([1], "abc", None)],
    (compile_grammar, {"rules": {"a": "b"}, "start": 1}, "start must be"),
    (compile_tools, {"tools": [], "choice": 1}, "choice must be"),
    (compile_tools, {"tools": [], "parallel": "no"}, "parallel must be"),
    *[(Limits, {field.name: 0}, f"{field.name} must be a whole number") for field in fields(Limits)],
    *[(Limits, {"longest": wrong}, "longest must be a whole number") for wrong in ("x", -1, 0, 1.5, None)],
    *[(Budget, {"seconds": wrong}, "seconds must be a number") for wrong in ("x", float("nan"), -1, None)],
    (Budget, {"max_states": -1}, "max_states must be"),
]


def test_what_an_argument_cannot_be_is_one_line(tokenizer: Tokenizer, subtests: pytest.Subtests) -> None:
    for call, given, said in BAD:
        with subtests.test(call.__name__, given=given):
            beside = {} if call in (Limits, Budget) or "tokenizer" in given else {"tokenizer": tokenizer}
            with pytest.raises(InputError) as caught:
                call(**given, **beside)
            assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_a_budget_says_how_it_is_raised(tokenizer: Tokenizer) -> None:
    pattern = "(a|b|ab){1,200}c{1,200}"
    small = {"max_states": 10, "max_steps": 10, "max_edges": 10, "seconds": 1e-6}
    for name, value in small.items():
        with pytest.raises(InputError, match=rf"budget=Budget\({name}=\.\.\.\)"):
            compile_regex(pattern, tokenizer, budget=Budget(**{name: value}))
    held = {"type": "array", "items": {"type": "integer"}}
    assert compile_schema(held, tokenizer, budget=Budget(seconds=float("inf"))).num_states


def test_a_number_that_no_float_holds_is_not_written() -> None:
    dfa = automaton({"type": "number"})

    for text in (b"1e999", b"-1e308", b"12e400", b"1e-999"):
        assert not dfa.accepts(text), text
    assert dfa.accepts(b"1.5e+307") and dfa.accepts(b"-2e-7")


def test_values_of_which_nothing_is_asked_nest_as_deep_as_fits() -> None:
    nested = b'{"a":' * 4 + b"1" + b"}" * 4

    assert automaton({"type": "object"}).accepts(nested)
    assert not automaton({"type": "object"}, any_depth=2).accepts(nested)
    tight = Budget(max_states=3_000)
    names = {f"p{i}": {"type": "array"} for i in range(12)}
    dfa = schema_dfa({"properties": names, **CLOSED, "type": "object"}, tight)[0]
    assert dfa.accepts(b'{"p0":[1]}') and not dfa.accepts(b'{"p0":[[[1]]]}')
