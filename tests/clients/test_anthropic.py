"""Anthropic's client: messages."""

from __future__ import annotations

from typing import Any

import anthropic
import jsonschema
import pytest
from anthropic import Anthropic

from served import Served

USER = [{"role": "user", "content": "def area(width, height):"}]
COLD = {"temperature": 0}
"""This version of the client has no argument for it."""
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(served: Served) -> Anthropic:
    return Anthropic(base_url=served.url, api_key="none", max_retries=0)


def test_a_message_has_a_text_a_reason_and_a_usage(client: Anthropic, model: str) -> None:
    message = client.messages.create(model=model, system="Complete.", messages=USER, max_tokens=12, extra_body=COLD)
    assert message.type == "message" and message.role == "assistant"
    assert message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason in ("max_tokens", "end_turn")
    assert message.usage.input_tokens > 0 and 0 < message.usage.output_tokens <= 12


def test_the_clients_own_accumulator_builds_the_same_message(client: Anthropic, model: str) -> None:
    how: dict[str, Any] = {"model": model, "messages": USER, "max_tokens": 24, "extra_body": COLD}
    with client.messages.stream(**how) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == client.messages.create(**how).content[0].text
    assert final.usage.output_tokens > 0
    assert final.stop_reason is not None


def test_the_events_of_a_stream_are_in_order(client: Anthropic, model: str) -> None:
    kinds = [event.type for event in client.messages.create(model=model, messages=USER, max_tokens=12, stream=True)]
    kinds = [kind for kind in kinds if kind != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_is_used(client: Anthropic, model: str, choice: Any) -> None:
    message = client.messages.create(model=model, messages=USER, max_tokens=80, tools=[TOOL], tool_choice=choice)
    use = next(block for block in message.content if block.type == "tool_use")
    assert message.stop_reason == "tool_use"
    assert use.name == "get_weather" and use.id
    jsonschema.validate(use.input, TOOL["input_schema"])


def test_a_streamed_use_of_a_tool_adds_up(client: Anthropic, model: str) -> None:
    with client.messages.stream(
        model=model, messages=USER, max_tokens=80, tools=[TOOL], tool_choice={"type": "any"}
    ) as stream:
        final = stream.get_final_message()
    use = next(block for block in final.content if block.type == "tool_use")
    jsonschema.validate(use.input, TOOL["input_schema"])


def test_the_result_of_a_tool_goes_back(client: Anthropic, model: str) -> None:
    messages: list[Any] = [
        *USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
    ]
    message = client.messages.create(
        model=model, messages=messages, max_tokens=8, tools=[TOOL], tool_choice={"type": "none"}
    )
    assert message.content[0].type == "text"


def test_tokens_are_counted_as_they_are_billed(client: Anthropic, model: str) -> None:
    counted = client.messages.count_tokens(model=model, messages=USER, system="Complete.")
    message = client.messages.create(model=model, messages=USER, system="Complete.", max_tokens=4)
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_stop_sequence_is_named(client: Anthropic, model: str) -> None:
    message = client.messages.create(
        model=model, messages=USER, max_tokens=64, extra_body=COLD, stop_sequences=["return", "\n"]
    )
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence in ("return", "\n")


def test_errors_are_the_clients_own_classes(client: Anthropic, model: str) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="nobody", messages=USER, max_tokens=4)
    assert missing.value.body["type"] == "error"
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=model, messages=USER, max_tokens=4, extra_body={"temperature": 9})
