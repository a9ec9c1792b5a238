"""OpenAI's client: chat completions."""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

USER = [{"role": "user", "content": "def area(width, height):"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
PARAMETERS = TOOL["function"]["parameters"]  # type: ignore[index]


@pytest.fixture
def client(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="none", max_retries=0)


def test_an_answer_has_a_text_a_reason_and_a_usage(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=USER, max_tokens=12, temperature=0)
    usage, choice = answer.usage, answer.choices[0]

    assert answer.object == "chat.completion" and answer.model == model
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert usage is not None and usage.prompt_tokens > 4 and 0 < usage.completion_tokens <= 12
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_is_the_same_text_as_the_answer(client: OpenAI, model: str) -> None:
    how: dict[str, Any] = {"model": model, "messages": USER, "max_tokens": 24, "temperature": 0.7, "seed": 5}
    whole = client.chat.completions.create(**how).choices[0].message.content
    chunks = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    assert text == whole
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert len({chunk.id for chunk in chunks}) == 1
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] in ("stop", "length") and not any(reasons[:-1])


def test_the_clients_own_accumulator_builds_the_same_answer(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(model=model, messages=USER, max_tokens=16, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()

    whole = client.chat.completions.create(model=model, messages=USER, max_tokens=16, temperature=0)
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert {"chunk", "content.delta", "content.done"} <= kinds


class Color(Enum):
    red = "red"
    green = "green"


class Shape(BaseModel):
    name: str
    sides: int
    color: Color
    tags: list[str]


def test_a_pydantic_class_is_parsed(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(model=model, messages=USER, response_format=Shape, max_tokens=120)
    parsed = answer.choices[0].message.parsed

    assert isinstance(parsed, Shape)
    assert isinstance(parsed.color, Color)


def test_a_pydantic_class_is_parsed_from_a_stream(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=USER, response_format=Shape, max_tokens=120, temperature=0
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Shape)


def test_a_json_object_is_one(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=USER, response_format={"type": "json_object"}, max_tokens=60
    )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be_made_is_made_and_valid(client: OpenAI, model: str, choice: Any) -> None:
    answer = client.chat.completions.create(
        model=model, messages=USER, tools=[TOOL], tool_choice=choice, max_tokens=80, parallel_tool_calls=False
    )
    (call,) = answer.choices[0].message.tool_calls or []

    assert call.type == "function" and call.function.name == "get_weather" and call.id
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_streamed_arguments_add_up_to_the_call(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=USER, tools=[TOOL], tool_choice="required", max_tokens=80, parallel_tool_calls=False
    ) as stream:
        deltas = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion()

    (call,) = final.choices[0].message.tool_calls or []
    assert "".join(deltas) == call.function.arguments
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    assert final.choices[0].finish_reason == "tool_calls"


def test_tools_that_may_not_be_called_are_not(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=USER, tools=[TOOL], tool_choice="none", max_tokens=8)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content


def test_the_result_of_a_call_goes_back(client: OpenAI, model: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"x"}'}}
    messages: list[Any] = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    answer = client.chat.completions.create(model=model, messages=messages, tools=[TOOL], max_tokens=8)
    assert answer.choices[0].message.role == "assistant"


def test_several_choices_differ_and_repeat_with_the_seed(client: OpenAI, model: str) -> None:
    def texts() -> list[str | None]:
        answer = client.chat.completions.create(
            model=model, messages=USER, n=3, seed=11, temperature=1.2, max_tokens=16
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    first = texts()
    assert len(set(first)) == 3
    assert texts() == first


def test_log_probabilities_are_those_of_the_text(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=USER, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    raw = b"".join(bytes(one.bytes or ()) for one in logprobs.content).decode(errors="replace")
    assert raw.strip() == (answer.choices[0].message.content or "-").strip()  # the space after the role is no content
    for one in logprobs.content:
        assert one.logprob <= 0
        assert len(one.top_logprobs) == 3
        best = [top.logprob for top in one.top_logprobs]
        assert best == sorted(best, reverse=True)


def test_a_stop_string_ends_the_text_and_is_not_in_it(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=USER, max_tokens=64, temperature=0, stop=["\n"])
    assert answer.choices[0].finish_reason == "stop"
    assert "\n" not in (answer.choices[0].message.content or "")


def test_a_prediction_is_counted(client: OpenAI, model: str) -> None:
    how: dict[str, Any] = {"model": model, "messages": USER, "max_tokens": 16, "temperature": 0}
    text = client.chat.completions.create(**how).choices[0].message.content or ""
    answer = client.chat.completions.create(**how, prediction={"type": "content", "content": text})
    details = answer.usage.completion_tokens_details if answer.usage else None
    assert details is not None and (details.accepted_prediction_tokens or 0) + (details.rejected_prediction_tokens or 0)


def test_options_of_diffusion_go_in_the_extra_body(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=USER, max_tokens=16, extra_body={"daguerre": {"mode": "block", "block_size": 8}}
    )
    assert answer.usage is not None
    assert answer.usage.model_dump()["daguerre"]["mode"] == "block"


@pytest.mark.parametrize("effort", ["none", "low", "medium", "high"])
def test_every_effort_is_answered(client: OpenAI, model: str, effort: Any) -> None:
    answer = client.chat.completions.create(model=model, messages=USER, max_tokens=8, reasoning_effort=effort)
    assert answer.choices[0].message.content is not None


def test_errors_are_the_clients_own_classes(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=USER)
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model=model, messages=USER, temperature=9)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x = 1\n" * 2000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=USER, modalities=["text", "audio"])


async def test_eight_requests_at_once_get_what_they_get_alone(base_url: str, model: str) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:

        async def ask(seed: int) -> str | None:
            answer = await client.chat.completions.create(
                model=model, messages=USER, max_tokens=16, temperature=1, seed=seed
            )
            return answer.choices[0].message.content

        together = await asyncio.gather(*(ask(seed) for seed in range(8)))
        assert [await ask(seed) for seed in range(8)] == together


def test_a_stream_that_is_closed_early_leaves_the_server_well(client: OpenAI, model: str) -> None:
    for _ in range(5):
        stream = client.chat.completions.create(model=model, messages=USER, max_tokens=200, stream=True)
        next(iter(stream))
        stream.close()
    assert client.chat.completions.create(model=model, messages=USER, max_tokens=4).choices
