"""Random schemas, judged by jsonschema: whatever an automaton accepts is valid, and what is valid is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daguerre.errors import InputError, UnsupportedError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.writing import Writer
from random_texts import random_texts

NAMES = st.sampled_from(["a", "b", "c", "dd", "x1"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -3, 0.5, "", "a", "ab", "x1", "é"])
FLAT = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(NAMES, SCALARS, max_size=3)
INSTANCES = FLAT | st.lists(FLAT, max_size=2) | st.dictionaries(NAMES, FLAT, max_size=2)
COUNTS = st.integers(0, 2)
PATTERNS = st.sampled_from(["^a", "b$", "^[a-c]$", "1", "^x"])
LEAVES = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "number", "object", "array", "null"])}),
    st.fixed_dictionaries({"type": st.lists(st.sampled_from(["string", "integer", "null", "object"]), min_size=1)}),
    st.fixed_dictionaries({"const": INSTANCES}),
    st.fixed_dictionaries({"enum": st.lists(SCALARS, min_size=1, max_size=3)}),
    st.fixed_dictionaries({}, optional={"minimum": COUNTS, "exclusiveMaximum": COUNTS, "multipleOf": st.just(2)}),
    st.fixed_dictionaries({}, optional={"minLength": COUNTS, "maxLength": COUNTS, "pattern": PATTERNS}),
    st.fixed_dictionaries({"required": st.lists(NAMES, max_size=2, unique=True)}),
    st.fixed_dictionaries({}, optional={"minItems": COUNTS, "maxItems": COUNTS}),
    st.fixed_dictionaries({}, optional={"minProperties": COUNTS, "maxProperties": COUNTS}),
)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some, by_name = st.lists(inner, min_size=1, max_size=2), st.dictionaries(NAMES, inner, max_size=2)
    of_objects = {
        "properties": by_name,
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=1),
        "additionalProperties": inner,
        "propertyNames": st.fixed_dictionaries({}, optional={"pattern": PATTERNS, "maxLength": COUNTS}),
        "required": st.lists(NAMES, max_size=2, unique=True),
    }
    of_arrays = {"prefixItems": some, "items": inner, "minItems": COUNTS, "maxItems": COUNTS}
    contains = {"minContains": COUNTS, "maxContains": COUNTS}
    return st.one_of(
        st.fixed_dictionaries({}, optional=of_objects),
        st.fixed_dictionaries({}, optional=of_arrays),
        st.fixed_dictionaries({"contains": inner}, optional=contains),
        st.fixed_dictionaries({"not": inner}),
        *(st.fixed_dictionaries({word: some}) for word in ("allOf", "anyOf", "oneOf")),
        st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
        st.fixed_dictionaries({"dependentSchemas": by_name}),
        st.fixed_dictionaries({"dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=1), max_size=2)}),
        st.fixed_dictionaries(
            {"unevaluatedProperties": st.booleans() | inner, "properties": by_name},
            optional={"anyOf": some, "allOf": some, "if": inner, "then": inner},
        ),
        st.fixed_dictionaries({"unevaluatedItems": st.booleans(), "prefixItems": some}, optional={"anyOf": some}),
    )


SCHEMAS = st.recursive(LEAVES, larger, max_leaves=6)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(schema=SCHEMAS, instances=st.lists(INSTANCES, min_size=4, max_size=8))
def test_a_random_schema_accepts_what_is_valid_and_nothing_else(
    schema: Any, instances: list[Any], written: Callable[[Schema, Any], list[str]]
) -> None:
    valid = jsonschema.Draft202012Validator(schema).is_valid
    try:
        held = read_schema(schema, budget := Budget(max_states=10_000))
        dfa = Writer(held, 2, budget).dfa(held.root, 2)
    except UnsupportedError:
        return
    except InputError as error:
        if "too large" not in str(error):
            raise
        return
    for instance in instances:
        texts = written(held, instance)
        assert any(dfa.accepts(text.encode()) for text in texts) == valid(instance), instance
    for text in [] if dfa.is_empty else random_texts(dfa, 5):
        assert valid(json.loads(text)), text
