"""Which checks answers passed, as the log says."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from daguerre.router import graders
from daguerre.router.graders import checks_of, has_checks
from router.test_graders import delta, part, stream
from router.test_proxy import SAY, ask, routed
from scripted_backends import Reply, Scripted, answer, events

COLOR = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
SCHEMA = SAY | {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOR}}}
OBJECT = SAY | {"response_format": {"type": "json_object"}}
TOOLS = SAY | {"tools": [{"type": "function", "function": {"name": "paint", "parameters": COLOR}}]}
PASSED, FAILED = {"json": True}, {"json": False}


def calls(*some: tuple[str, str]) -> bytes:
    made = [{"id": "1", "type": "function", "function": {"name": name, "arguments": text}} for name, text in some]
    return answer("", tool_calls=made)


CHECKED: list[tuple[dict[str, Any], bytes, dict[str, bool]]] = [
    (SCHEMA, answer('{"color": "red"}'), PASSED),
    (SCHEMA, answer('{"color": "re'), FAILED),
    (OBJECT, answer("{}"), PASSED),
    (OBJECT, answer("hello"), FAILED),
    (SAY, answer("{}"), {}),
    (SAY, calls(("paint", "{}")), {}),
    (TOOLS, answer("hello"), {}),
    (TOOLS, calls(("paint", '{"color": "blue"}'), ("paint", '{"color": "red"}')), {"tools": True}),
    (TOOLS, calls(("paint", '{"color": "blue"}'), ("paint", "")), {"tools": True}),
    (TOOLS, calls(("paint", "[]")), {"tools": False}),
    (TOOLS, calls(("paint", "{")), {"tools": False}),
    (TOOLS, calls(("erase", "{}")), {"tools": False}),
    (SCHEMA, b"no answer", {}),
    (SCHEMA, answer('{"color": "red", "more": "%s"}' % ("x" * graders.MOST_CHECKED)), {}),
]
"""Requests, answers, and which checks these pass."""


def test_an_answer_passes_what_its_request_asks_for(subtests: pytest.Subtests) -> None:
    for body, said, found in CHECKED:
        with subtests.test(str(said[:200]), body=body):
            assert checks_of(body, "chat", said, streamed=False) == found


def test_responses_and_streams_are_checked_alike() -> None:
    item = {"type": "function_call", "name": "paint", "arguments": '{"color": "red"}'}
    flat = {"input": "x", "tools": [{"type": "function", "name": "paint", "parameters": COLOR}]}
    response = orjson.dumps({"id": "r", "status": "completed", "output": [item]})
    assert checks_of(flat, "responses", response, streamed=False) == {"tools": True}
    pieces = stream(
        delta(tool_calls=[part(0, "paint", '{"col')]),
        delta(tool_calls=[part(0, None, 'or": "red"}')]),
        delta("tool_calls"),
    )
    assert checks_of(TOOLS, "chat", pieces, streamed=True) == {"tools": True}


def test_the_log_says_what_was_checked() -> None:
    def reply(body: dict[str, Any]) -> Reply:
        if body.get("stream"):
            return Reply(stream=events('{"color": ', '"red"}'))
        if body["max_tokens"] == 1:
            return Reply(400, body=b'{"error": {"message": "no"}}')
        return Reply(body=answer('{"color": "red"}' if body["max_tokens"] == 2 else "red"))

    bodies = [SCHEMA | {"max_tokens": number} for number in (1, 2, 3)] + [
        SCHEMA | {"stream": True},
        SAY | {"max_tokens": 2},
    ]
    with routed(Scripted(reply=reply)) as (url, log):
        for number, body in enumerate(bodies, 1):
            ask(url, body)
            log.of_requests(number)
        lines = log.of_requests(5)
    assert [line.get("checks") for line in lines] == [None, PASSED, FAILED, PASSED, None]


def test_a_check_that_breaks_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> None:
        raise RuntimeError("a fault of this test")

    monkeypatch.setattr(graders, "answer_of", breaks)
    with routed(Scripted(reply=lambda body: Reply(body=answer("{}")))) as (url, log):
        assert ask(url, OBJECT).content == answer("{}")
        (line,) = log.of_requests()
    assert line["status"] == 200 and "checks" not in line


@pytest.mark.parametrize(("body", "some"), [(SCHEMA, True), (TOOLS, True), (SAY, False), (SAY | {"tools": "x"}, False)])
def test_streams_are_kept_for_requests_alone_that_have_something_to_check(body: dict[str, Any], some: bool) -> None:
    assert has_checks(body) is some
