"""Reading a request for the decision: needs, sizes, wishes; strange bodies never raise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daguerre.errors import InputError
from daguerre.router.config import NEEDS, OPERATIONS, Config
from daguerre.router.reading import read, sized, strings
from daguerre.router.requests import ObservedFeatures, draw_of, features_of
from routing import backend, config

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "find", "description": "Find it.", "parameters": SCHEMA}}
NAMES = (
    *(
        "messages",
        "input",
        "prompt",
        "suffix",
        "tools",
        "functions",
        "tool_choice",
        "response_format",
        "text",
        "metadata",
    ),
    *(
        "daguerre",
        "instructions",
        "max_tokens",
        "stream",
        "logprobs",
        "include",
        "questions",
        "state",
        "content",
        "role",
    ),
    *("type", "function", "tool_calls", "json_schema", "schema", "properties", "arguments", "output", "pins", "system"),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["user", "tool", "json_schema", "function_call_output", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=24,
)
BODIES = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=8) | JSON


def every_override(**more: Any) -> Config:
    names = ("slo_ms", "backend", "step", "tags", "max_cost", "cache", "explore")
    return config(backend("near"), backend("far"), overrides=names, **more)


def asked(
    body: object, operation: str = "chat", headers: dict[str, str] | None = None, **more: Any
) -> ObservedFeatures:
    return features_of(operation, body, headers or {}, more.get("config", every_override()), "request")


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts], **more}


@settings(max_examples=80, deadline=None)
@given(body=BODIES, operation=st.sampled_from(OPERATIONS))
def test_no_body_that_json_can_hold_raises(body: object, operation: str) -> None:
    plain = json.loads(json.dumps(body))
    if isinstance(plain, dict):
        plain.pop("metadata", None)

    found = asked(plain, operation)

    assert set(found.needs) <= set(NEEDS) and list(found.needs) == sorted(set(found.needs))
    assert found.input_tokens >= 0 and (found.output_tokens is None or found.output_tokens >= 0)
    json.dumps(found.features({"plan": 1.0}).to_dict())


@settings(max_examples=40, deadline=None)
@given(metadata=JSON)
def test_metadata_of_any_kind_are_read_where_no_override_is_allowed(metadata: object) -> None:
    none = config(backend("near"), overrides=[])

    found = asked({"metadata": metadata}, config=none)

    assert found.wishes == {}


def test_a_body_nested_ten_thousand_deep_is_read() -> None:
    value: Any = "x"
    for _ in range(10_000):
        value = {"properties": [value]}

    found = asked({"messages": [{"role": "user", "content": value}], "tools": [value], "questions": value}, "decisions")

    assert found.input_tokens > 10_000


NEEDED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("chat", chat("hi"), ()),
    ("completions", {"prompt": "a", "suffix": "b"}, ("suffix",)),
    ("completions", {"prompt": "a", "suffix": ""}, ()),
    ("fim", {"prompt": "a", "suffix": "b"}, ()),
    ("completions", {"prompt": "a", "daguerre": {"pins": [{"text": "x", "at": 3}]}}, ("pins",)),
    ("completions", {"prompt": "a", "daguerre": {"pins": []}}, ()),
    ("chat", chat("a", spans=[[1, 2]]), ("spans",)),
    ("edit", {"text": "a", "pattern": "b"}, ()),
    ("chat", {"text": "a", "pattern": "b"}, ("edit",)),
    ("decisions", {"state": "a", "questions": {"q": {"type": "noul"}}}, ()),
    ("chat", chat("a", questions={"q": {}}), ("decisions",)),
    ("chat", chat("a", response_format={"type": "json_object"}), ("schema",)),
    ("chat", chat("a", response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}), ("schema",)),
    (
        "chat",
        chat("a", response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}}),
        ("schema", "strict_schema"),
    ),
    (
        "responses",
        {"input": "a", "text": {"format": {"type": "json_schema", "schema": SCHEMA, "strict": True}}},
        ("schema", "strict_schema"),
    ),
    ("chat", chat("a", tools=[TOOL]), ("tools",)),
    ("chat", chat("a", tools=[TOOL], tool_choice="none"), ()),
    (
        "responses",
        {"input": "a", "tools": [{"type": "function", "name": "f", "strict": True}]},
        ("strict_schema", "tools"),
    ),
    ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, ("tools",)),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, ("images",)),
    ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, ("images",)),
    ("chat", chat("a", logprobs=True), ("logprobs",)),
    ("chat", chat("a", logprobs=False), ()),
    ("completions", {"prompt": "a", "logprobs": 0}, ("logprobs",)),
]
"""Operations, bodies, and what they need."""


def test_needs_are_what_only_some_backends_can_do(subtests: pytest.Subtests) -> None:
    for operation, body, needs in NEEDED:
        with subtests.test(operation, body=body):
            assert asked(body, operation).needs == needs


def test_the_limit_of_new_tokens_is_the_one_that_holds() -> None:
    limits: list[tuple[dict[str, Any], int | None]] = [
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 5}, 5),
        ({"max_output_tokens": 9}, 9),
        ({"n_predict": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "7"}, None),
        ({}, None),
    ]
    for body, limit in limits:
        assert asked(body).output_tokens == limit, body


def test_an_operation_without_text_has_no_new_tokens() -> None:
    for operation in ("embeddings", "decisions"):
        assert asked({"input": "a", "max_tokens": 5}, operation).output_tokens == 0


def test_streams_are_those_that_the_body_asks_for() -> None:
    assert asked({"stream": True}).stream and asked({"diffusing": True}).stream
    assert not asked({"stream": "yes"}).stream


def test_every_part_of_a_request_counts_toward_its_tokens() -> None:
    base = chat("word " * 100)
    more = [
        {"tools": [TOOL]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"system": "word " * 50},
        {"suffix": "word " * 50},
    ]

    least = asked(base).input_tokens

    assert 100 <= least <= 160
    assert all(asked(base | one).input_tokens > least for one in more)
    assert asked(chat("図書館" * 100)).input_tokens > asked(chat("abc" * 100)).input_tokens
    assert asked({"prompt": [5] * 1000}, "completions").input_tokens == pytest.approx(1000, rel=0.5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(), max_size=5))
def test_sizes_are_characters_and_bytes(texts: list[str]) -> None:
    frames = 3 * len(texts)

    assert sized(texts) == (
        sum(map(len, texts)) + frames,
        sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) + frames,
    )


def test_strings_are_all_keys_and_texts() -> None:
    assert sorted(strings({"a": ["b", {"c": "d"}], "e": None, "f": 7})) == sorted(["a", "b", "c", "d", "e", "f", "0"])


def test_all_shapes_of_a_conversation_read_alike() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    by_chat = {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Where?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "Here."},
        ]
    }
    by_responses = {
        "instructions": "Be kind.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
            {"type": "function_call", "call_id": "1", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "Here."},
        ],
    }

    turns = read("chat", by_chat).turns

    assert [(turn.role, turn.text) for turn in turns] == [
        ("system", "Be kind."),
        ("user", "Where?"),
        ("assistant", "find {}"),
        ("tool", "Here."),
    ]
    assert read("responses", by_responses).turns == turns


def test_wishes_are_read_from_headers_and_metadata_and_headers_go_first() -> None:
    body = {"metadata": {"x-slo-ms": "900", "X-Route-Tags": "eu, gdpr", "note": "mine"}}

    found = asked(body, headers={"X-SLO-MS": "250", "x-route-backend": "far", "x-route-max-cost": "0.01"})

    assert found.wishes == {"slo_ms": 250.0, "tags": ["eu", "gdpr"], "backend": "far", "max_cost": 0.01}
    assert found.ignored == ()


def test_other_wishes_are_read() -> None:
    headers = {"x-route-step": "plan", "x-route-cache": "off", "x-route-explore": "off"}

    found = asked({}, headers=headers)

    assert found.wishes == {"step": "plan", "cache": "off", "explore": False}
    assert found.features({"edit": 1.0}).step == "plan"


def test_a_wish_that_is_not_allowed_is_ignored_and_said() -> None:
    few = config(backend("near"), overrides=["slo_ms"])

    found = asked({}, headers={"x-route-backend": "no such", "x-slo-ms": "5", "x-route-mood": "good"}, config=few)

    assert found.wishes == {"slo_ms": 5.0}
    assert [said.split()[0] for said in found.ignored] == ["x-route-backend", "x-route-mood"]
    assert "overrides" in found.ignored[0]


def test_tags_are_never_ignored_and_those_of_a_key_are_added() -> None:
    few = config(backend("near"), overrides=["slo_ms"])
    with pytest.raises(InputError, match="x-route-tags is not allowed by this router"):
        asked({"metadata": {"x-route-tags": "eu"}}, config=few)

    found = features_of("chat", {}, {"x-route-tags": "eu"}, config(backend("near")), "id", ("gdpr", "eu"))

    assert found.wishes["tags"] == ["eu", "gdpr"]
    assert features_of("chat", {}, {}, few, "id", ("gdpr",)).wishes == {"tags": ["gdpr"]}


WRONG = (
    ("x-slo-ms", "soon", "milliseconds"),
    ("x-slo-ms", "0", "milliseconds"),
    ("x-slo-ms", "nan", "milliseconds"),
    ("x-slo-ms", "-3", "milliseconds"),
    ("x-route-max-cost", "inf", "dollars"),
    ("x-route-backend", "fra", "far"),
    ("x-route-step", "planing", "plan"),
    ("x-route-tags", " , ", "tag"),
    ("x-route-cache", "maybe", "choose one of"),
)


def test_a_wrong_wish_is_an_error_that_says_what_to_do(subtests: pytest.Subtests) -> None:
    for name, value, says in WRONG:
        with subtests.test(name, value=value):
            with pytest.raises(InputError, match=says) as header:
                asked({}, headers={name: value})
            with pytest.raises(InputError, match=says):
                asked({"metadata": {name: value}})
            assert "\n" not in str(header.value)


def test_the_draw_is_fixed_by_the_id_and_uniform() -> None:
    draws = [draw_of(f"req-{number}") for number in range(4000)]

    assert draws == [draw_of(f"req-{number}") for number in range(4000)]
    assert all(0 <= one < 1 for one in draws)
    for tenth in range(10):
        share = sum(tenth / 10 <= one < (tenth + 1) / 10 for one in draws) / 4000
        assert 0.08 < share < 0.12


def test_the_likeliest_step_is_taken() -> None:
    found = asked(chat("hi")).features({"plan": 0.2, "edit": 0.8}, {"near": 0.5}, "near")

    assert (found.step, found.quality, found.conversation) == ("edit", {"near": 0.5}, "near")
