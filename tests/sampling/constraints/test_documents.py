"""Drafts, ids and references: what a schema means by its own words and not by those of another draft."""

from __future__ import annotations

from typing import Any

import pytest

from daguerre.errors import InputError, UnsupportedError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compile import schema_dfa

DRAFT = "http://json-schema.org/draft-{}/schema#"
INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def accepts(schema: Any, text: str) -> bool:
    return schema_dfa(schema, Budget())[0].accepts(text.encode())


def of_draft(draft: str, **keywords: Any) -> Any:
    named = f"https://json-schema.org/draft/{draft}/schema" if draft.startswith("20") else DRAFT.format(draft)
    return {"$schema": named, **keywords}


def test_a_reference_is_read_against_the_id_around_it() -> None:
    inner = {"$id": "http://x.org/inner", "$defs": {"t": INTEGER}, "properties": {"a": {"$ref": "#/$defs/t"}}}
    schema = {
        "$id": "http://x.org/root",
        "$defs": {"t": STRING},
        "properties": {"i": inner, "b": {"$ref": "#/$defs/t"}},
    }

    assert accepts(schema, '{"i":{"a":1},"b":"s"}')
    assert not accepts(schema, '{"i":{"a":"s"}}') and not accepts(schema, '{"b":1}')


REFERENCES: list[Any] = [
    {"$defs": {"x": {"$anchor": "n", **INTEGER}}, "$ref": "#n"},
    {"$id": "http://x.org/a/", "$defs": {"x": {"$id": "b/c", **INTEGER}}, "$ref": "b/c"},
    {"$id": "urn:example:root", "$defs": {"x": INTEGER}, "$ref": "#/$defs/x"},
    {"$defs": {"x": {"$id": "n", "$defs": {"y": {"$anchor": "z", **INTEGER}}}}, "$ref": "n#z"},
    {"$defs": {"a~b/c %": INTEGER}, "$ref": "#/$defs/a~0b~1c%20%25"},
    of_draft("04", id="http://x.org/s", definitions={"x": {"id": "#n", **INTEGER}}, allOf=[{"$ref": "#n"}]),
    of_draft("07", definitions={"x": {"$id": "#n", **INTEGER}}, allOf=[{"$ref": "#n"}]),
    of_draft("2020-12", **{"$defs": {"x": {"$dynamicAnchor": "n", **INTEGER}}, "$dynamicRef": "#n"}),
    of_draft("2019-09", **{"$defs": {"x": INTEGER}, "$ref": "#/$defs/x", "minimum": 0}),
]


def test_references_by_anchor_and_by_id_lead_where_they_say(subtests: pytest.Subtests) -> None:
    for schema in REFERENCES:
        with subtests.test(str(schema)):
            assert accepts(schema, "1") and not accepts(schema, '"s"')


def test_a_dynamic_reference_leads_to_the_outermost_anchor() -> None:
    leaf = {"$id": "list", "$dynamicAnchor": "item", "type": "array", "items": {"$dynamicRef": "#item"}}
    schema = {
        "$id": "http://x.org/root",
        "$dynamicAnchor": "item",
        "$defs": {"l": leaf},
        "anyOf": [{"$ref": "list"}, INTEGER],
    }

    assert accepts(schema, "[1,[2]]") and not accepts(schema, '["s"]')
    del schema["$dynamicAnchor"]
    schema["$defs"]["m"] = {"$id": "other", "$dynamicAnchor": "item"}  # which of two depends on the way
    with pytest.raises(UnsupportedError, match="may lead to any of 2 anchors"):
        accepts(schema, "1")


def test_a_recursive_reference_leads_to_the_root() -> None:
    schema = of_draft("2019-09", type="object", additionalProperties={"$recursiveRef": "#"})

    assert accepts(schema, '{"a":{}}') and not accepts(schema, '{"a":1}')


def test_what_is_not_there_is_said() -> None:
    for ref in ("#/$defs/x", "#x"):
        with pytest.raises(InputError, match=r"points to|names an anchor that is not there"):
            accepts({"$ref": ref}, "1")


OF_ANOTHER_DRAFT: list[tuple[str, dict[str, Any], str]] = [
    ("04", {"const": 1}, "2"),
    ("06", {"if": True, "then": False}, "2"),
    ("07", {"dependentSchemas": {"a": False}}, '{"a":1}'),
    ("07", {"dependentRequired": {"a": ["b"]}}, '{"a":1}'),
    ("07", {"unevaluatedProperties": False}, '{"a":1}'),
    ("07", {"$defs": {}, "prefixItems": [False]}, "[1]"),
    ("07", {"contains": {}, "maxContains": 1}, "[1,2]"),
    ("2019-09", {"prefixItems": [False]}, "[1]"),
    ("2020-12", {"dependencies": {"a": ["b"]}}, '{"a":1}'),
    ("2020-12", {"prefixItems": [True], "additionalItems": False}, "[1,2]"),
    ("07", {"nullable": True, "type": "string"}, '"a"'),
]


def test_a_keyword_of_another_draft_says_nothing_and_is_reported(subtests: pytest.Subtests) -> None:
    for draft, keywords, instance in OF_ANOTHER_DRAFT:
        with subtests.test(draft, keywords=keywords):
            schema = of_draft(draft, **keywords)
            dfa, ignored = schema_dfa(schema, Budget())

            assert dfa.accepts(instance.encode())
            assert ignored and {what.split("'")[1] for what in ignored} <= keywords.keys()
            with pytest.raises(UnsupportedError, match="of no draft that applies here"):
                schema_dfa(schema, Budget(), strict=True)


def test_nullable_is_read_where_no_draft_is_named() -> None:
    schema = {"type": "string", "nullable": True}

    assert accepts(schema, "null") and not accepts(of_draft("07", **schema), "null")
    assert not accepts({"type": "string", "nullable": False}, "null")
    assert accepts({"oneOf": [{"type": "integer"}], "discriminator": {"propertyName": "kind"}}, "1")
