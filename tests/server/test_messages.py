"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from daguerre.http.settings import Keys, hash_of
from daguerre.model import Model
from daguerre.server.prompts import transcript

USER = {"role": "user", "content": "Write a function."}
ASK = {"model": "default", "max_tokens": 24, "messages": [USER]}
WEATHER = {
    "name": "weather",
    "description": "The weather of a place.",
    "input_schema": {
        "type": "object",
        "properties": {"place": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["place", "days"],
        "additionalProperties": False,
    },
}


def ask(client: httpx2.Client, **body: Any) -> Any:
    response = client.post("/v1/messages", json={**ASK, **body})
    assert response.status_code == 200, response.text
    return response.json()


def events(client: httpx2.Client, **body: Any) -> list[dict[str, Any]]:
    out = []
    with client.stream("POST", "/v1/messages", json={**ASK, **body, "stream": True}) as response:
        assert response.status_code == 200
        for block in "".join(response.iter_text()).strip().split("\n\n"):
            name, data = block.split("\n")
            out.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {out[-1]['type']}"
    return out


def rebuilt(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of the events of a stream."""
    message: dict[str, Any] = {}
    for event in stream:
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            else:
                block["json"] += delta["partial_json"]
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    for block in message["content"]:
        partial = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(partial)
    return message


def content(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message without ids."""
    return [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]


def test_an_answer_continues_the_transcript(client: httpx2.Client, trained: Model) -> None:
    message = ask(client)
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "default")
    assert message["id"].startswith("msg_")
    (block,) = message["content"]
    prompt = transcript([USER])
    assert trained.generate(prompt, 24).text.lstrip().startswith(block["text"])
    assert message["stop_reason"] in ("end_turn", "max_tokens")
    usage = message["usage"]
    num = len(trained.tokenizer.encode(prompt))
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == num
    counted = client.post("/v1/messages/count_tokens", json={"messages": [USER]})
    assert counted.json() == {"input_tokens": num}


def test_system_and_blocks_are_read(client: httpx2.Client, trained: Model) -> None:
    body = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "y"}]},
            {"role": "user", "content": "c"},
        ],
    }
    roles = ("system", "user", "assistant", "user")
    texts = ("Be brief.", "ab", "", "c")
    plain = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    counted = client.post("/v1/messages/count_tokens", json=body).json()
    assert counted["input_tokens"] == len(trained.tokenizer.encode(transcript(plain)))
    chat = client.post("/v1/chat/completions", json={"messages": plain, "max_tokens": 12, "temperature": 0}).json()
    blocks = ask(client, **body, max_tokens=12)["content"]
    assert "".join(block["text"] for block in blocks) == chat["choices"][0]["message"]["content"]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_k": 20}, {"daguerre": {"mode": "block"}}])
def test_a_stream_makes_the_same_message(client: httpx2.Client, options: dict[str, Any]) -> None:
    options = {**options, "daguerre": {**options.get("daguerre", {})}, "seed": 7}
    stream = events(client, **options)
    kinds = [event["type"] for event in stream]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    message = rebuilt(stream)
    if "temperature" not in options:
        whole = ask(client, **options)
        assert content(message) == content(whole)
        assert message["stop_reason"] == whole["stop_reason"]
        assert message["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_tool_that_must_be_called_is_called_as_its_schema_says(client: httpx2.Client, choice: dict[str, Any]) -> None:
    body = {"tools": [WEATHER], "tool_choice": {**choice, "disable_parallel_tool_use": True}, "max_tokens": 120}
    message = ask(client, **body)
    (block,) = [block for block in message["content"] if block["type"] == "tool_use"]
    assert block["id"].startswith("toolu_") and block["name"] == "weather"
    assert block["input"]["place"] in ("Rome", "Oslo") and 1 <= block["input"]["days"] <= 9
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    streamed = rebuilt(events(client, **body))
    assert content(streamed) == content(message)
    assert streamed["stop_reason"] == "tool_use"


def test_the_result_of_a_tool_goes_back_into_the_transcript(client: httpx2.Client, trained: Model) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sun"}]}
    body = {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "text", "text": "I ask."}, use]},
            {"role": "user", "content": [result, {**result, "content": "no", "is_error": True}]},
        ]
    }
    function = {"name": "weather", "arguments": '{"place": "Rome"}'}
    called = {"role": "assistant", "content": "I ask.", "tool_calls": [{"id": "1", "function": function}]}
    tools = [{"role": "tool", "content": "sun"}, {"role": "tool", "content": "Error: no"}]
    text = transcript([USER, called, *tools])
    counted = client.post("/v1/messages/count_tokens", json=body).json()
    assert counted["input_tokens"] == len(trained.tokenizer.encode(text))
    unused = client.post(
        "/v1/messages/count_tokens", json={**body, "tools": [WEATHER], "tool_choice": {"type": "none"}}
    )
    assert unused.json() == counted
    used = client.post("/v1/messages/count_tokens", json={**body, "tools": [WEATHER]})
    assert used.json()["input_tokens"] > counted["input_tokens"]


@pytest.mark.parametrize("more", [{}, {"tools": [WEATHER]}])
def test_the_stop_sequence_that_ended_the_text_is_named(client: httpx2.Client, more: dict[str, Any]) -> None:
    text = ask(client, **more)["content"][0]["text"]
    stop = text[4:7]
    message = ask(client, **more, stop_sequences=["never there", stop])
    assert message["content"][0]["text"] == text[: text.index(stop)]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    streamed = rebuilt(events(client, **more, stop_sequences=[stop]))
    assert content(streamed) == content(message)
    assert streamed["stop_sequence"] == stop
    assert ask(client, **more, max_tokens=2)["stop_reason"] == "max_tokens"


def test_a_heading_of_the_transcript_is_no_stop_sequence(client: httpx2.Client) -> None:
    message = ask(client, max_tokens=200, stop_sequences=["never there"])
    assert message["usage"]["output_tokens"] < 200
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)


def test_more_tokens_than_the_model_has_are_as_many_as_it_has(client: httpx2.Client, tiny: Model) -> None:
    message = ask(client, model="tiny", max_tokens=32_000)
    assert message["usage"]["output_tokens"] < tiny.config.max_positions


def test_an_answer_in_a_format_is_of_the_format(client: httpx2.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    body = {"output_config": {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}}
    assert json.loads(ask(client, **body)["content"][0]["text"])["n"] in (1, 22)


ERRORS: list[tuple[dict[str, Any], int, str, str]] = [
    ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
    ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
    ({"messages": []}, 400, "invalid_request_error", "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 400, "invalid_request_error", "messages.0.role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "image"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        400,
        "invalid_request_error",
        "tool_use_id",
    ),
    ({"messages": [{**USER, "content": "x " * 9000}]}, 400, "invalid_request_error", "positions"),
    ({"model": "claude"}, 404, "not_found_error", "ask for one of"),
    ({"stop_sequences": list("abcde")}, 400, "invalid_request_error", "stop_sequences"),
    ({"temperature": 1.5}, 400, "invalid_request_error", "temperature"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "invalid_request_error", "thinking"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "runs no tools"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "name of the tool"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, 400, "invalid_request_error", "weather"),
    ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "no tools"),
    ({"mcp_servers": [{"url": "x"}]}, 400, "invalid_request_error", "mcp_servers"),
    ({"daguerre": {"trace": True}}, 400, "invalid_request_error", "trace"),
    ({"output_config": {"format": {"type": "xml"}}}, 400, "invalid_request_error", "json_schema"),
]
"""Bodies, the status and the type of the error, and what it says."""


def test_errors_are_anthropic_s_object(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for body, status, kind, says in ERRORS:
        with subtests.test(says, body=body):
            given = {name: value for name, value in {**ASK, **body}.items() if value is not None}
            response = client.post("/v1/messages", json=given)
            assert response.status_code == status, response.text
            error = response.json()
            assert error["type"] == "error" and error["error"]["type"] == kind
            assert says in error["error"]["message"]
            assert error["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


def test_errors_before_the_route_are_anthropic_s_object_too(
    serve: Callable[..., httpx2.Client], tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{hash_of('sk-one')} ana\n")
    client = serve(keys=Keys.read(file, None), max_body=500)
    body = {**ASK, "model": "tiny", "max_tokens": 3}
    assert client.post("/v1/messages", json=body).json()["error"]["type"] == "authentication_error"
    key = {"x-api-key": "sk-one"}
    assert client.post("/v1/messages", json=body, headers=key).status_code == 200
    large = {**body, "messages": [{**USER, "content": "x" * 600}]}
    response = client.post("/v1/messages", json=large, headers=key)
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")
    assert client.get("/v1/messages", headers=key).json()["type"] == "error"
    broken = client.post("/v1/messages", content=b"{", headers={**key, "content-type": "application/json"})
    assert broken.json()["error"]["type"] == "invalid_request_error"
    plain = client.post("/v1/completions", json={"prompt": 5}, headers=key)
    assert "type" not in plain.json()


def test_a_client_of_threads_learns_to_send_whole_conversations(client: httpx2.Client) -> None:
    response = client.post("/v1/messages", json={**ASK, "thread": {"type": "create"}})
    assert response.status_code == 400
    assert response.json()["error"]["details"]["error_code"] == "thread_unsupported_request"
    plain = client.post("/v1/messages", json={**ASK, "max_tokens": 0})
    assert "details" not in plain.json()["error"]
