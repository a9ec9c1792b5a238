"""OpenAI's client: the responses API."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="none", max_retries=0)


def test_a_response_has_a_text_and_a_usage(client: OpenAI, model: str) -> None:
    response = client.responses.create(
        model=model, input="def area(w, h):", instructions="Complete.", max_output_tokens=16, temperature=0
    )
    assert response.object == "response"
    assert response.status in ("completed", "incomplete")
    assert response.output_text
    assert response.usage is not None and response.usage.output_tokens <= 16


def test_the_events_of_a_stream_are_in_order_and_add_up(client: OpenAI, model: str) -> None:
    events = list(client.responses.create(model=model, input="x = 1", max_output_tokens=16, temperature=0, stream=True))
    kinds = [event.type for event in events]

    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    order = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text


def test_the_clients_own_accumulator_builds_the_response(client: OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input="x = 1", max_output_tokens=12, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response() if "response.completed" in kinds else None
    assert "response.output_text.delta" in kinds
    assert final is None or final.output_text


class Point(BaseModel):
    x: int
    label: str


def test_a_pydantic_class_is_parsed(client: OpenAI, model: str) -> None:
    response = client.responses.parse(model=model, input="a point", text_format=Point, max_output_tokens=80)
    assert isinstance(response.output_parsed, Point)


def test_a_function_is_called_and_its_output_goes_back(client: OpenAI, model: str) -> None:
    tools: list[Any] = [TOOL]
    first = client.responses.create(
        model=model, input="weather?", tools=tools, tool_choice="required", max_output_tokens=60
    )
    call = next(item for item in first.output if item.type == "function_call")
    jsonschema.validate(json.loads(call.arguments), TOOL["parameters"])
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = client.responses.create(
        model=model, input=[output], previous_response_id=first.id, tools=tools, tool_choice="none", max_output_tokens=8
    )
    assert second.previous_response_id == first.id
    assert second.output_text


def test_a_streamed_call_adds_up(client: OpenAI, model: str) -> None:
    tools: list[Any] = [TOOL]
    events = list(
        client.responses.create(
            model=model, input="weather?", tools=tools, tool_choice="required", max_output_tokens=60, stream=True
        )
    )
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    deltas = [
        event.delta
        for event in events
        if event.type == "response.function_call_arguments.delta" and event.output_index == done.output_index
    ]
    assert "".join(deltas) == done.arguments
    jsonschema.validate(json.loads(done.arguments), TOOL["parameters"])


def test_a_response_is_found_again_and_forgotten(client: OpenAI, model: str) -> None:
    response = client.responses.create(model=model, input="x = 1", max_output_tokens=4)
    assert client.responses.retrieve(response.id).output_text == response.output_text
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_response_that_is_not_known_is_an_error(client: OpenAI, model: str) -> None:
    with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as error:
        client.responses.create(model=model, input="x", previous_response_id="resp_nobody")
    assert error.value.param == "previous_response_id"
