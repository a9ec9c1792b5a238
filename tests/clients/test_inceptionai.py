"""Inception's client for Mercury, unchanged but for the address."""

from __future__ import annotations

import json
from typing import Any

import inceptionai
import pytest
from inceptionai import Inception

from served import Served

USER = [{"role": "user", "content": "def area(width, height):"}]
BEFORE = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n"
AFTER = "\n\n    def norm(self):\n        return self.x\n"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.fixture
def client(served: Served) -> Inception:
    return Inception(base_url=served.url, api_key="none", max_retries=0, _strict_response_validation=True)


@pytest.mark.parametrize("effort", ["instant", "low", "medium", "high"])
def test_a_chat_is_answered_at_every_effort(client: Inception, model: str, effort: Any) -> None:
    answer = client.chat.completions.create(
        model=model, messages=USER, max_tokens=16, temperature=0.75, reasoning_effort=effort
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 16


def test_a_plain_stream_only_grows(client: Inception, model: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=USER,
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    whole = client.chat.completions.create(model=model, messages=USER, max_tokens=16, temperature=0)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].model_extra["usage"]["completion_tokens"] > 0


def test_frames_of_a_diffusing_stream_replace_each_other(client: Inception, model: str) -> None:
    how: dict[str, Any] = {"daguerre": {"mode": "block", "block_size": 8}}
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=USER,
            max_tokens=24,
            temperature=0,
            diffusing=True,
            stream=True,
            extra_body=how,
        )
    )
    frames = [chunk for chunk in chunks if "diffusion_meta" in (chunk.model_extra or {}) and chunk.choices]
    drafts = [chunk.choices[0].delta.content or "" for chunk in frames]
    whole = client.chat.completions.create(model=model, messages=USER, max_tokens=24, temperature=0, extra_body=how)

    assert len(frames) > 1
    assert all(chunk.model_extra["diffusion_meta"]["diffusion_content"] is True for chunk in frames)
    assert drafts[-1] == whole.choices[0].message.content
    assert any(not late.startswith(early) for early, late in zip(drafts, drafts[1:], strict=False))


def test_an_answer_of_a_schema_is_valid(client: Inception, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=USER,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}},
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"name", "size"}


def test_a_tool_is_called(client: Inception, model: str) -> None:
    tool = {"type": "function", "function": {"name": "make", "parameters": SCHEMA}}
    answer = client.chat.completions.create(
        model=model, messages=USER, max_tokens=80, tools=[tool], tool_choice="required"
    )
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "make"
    assert set(json.loads(call.function.arguments)) == {"name", "size"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_stream_of_drafts_ends_with_the_call_of_a_tool(client: Inception, model: str) -> None:
    tool = {"type": "function", "function": {"name": "make", "parameters": SCHEMA}}
    how: dict[str, Any] = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "make"}}}
    chunks = list(
        client.chat.completions.create(
            model=model, messages=USER, max_tokens=80, temperature=0, diffusing=True, stream=True, **how
        )
    )
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.function.name] == ["make"] and calls[0].id
    assert set(json.loads("".join(call.function.arguments or "" for call in calls))) == {"name", "size"}
    assert choices[-1].finish_reason == "tool_calls"


def test_a_summary_that_is_asked_for_is_unavailable(client: Inception, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=USER, max_tokens=4, reasoning_summary=True)
    assert answer.reasoning_summary is not None
    assert answer.reasoning_summary.status == "unavailable"


def test_a_gap_is_filled(client: Inception, model: str) -> None:
    answer = client.fim.completions.create(model=model, prompt=BEFORE, suffix=AFTER, max_tokens=12, stop=["\n\n"])
    assert answer.object == "text_completion"
    assert "self" in answer.choices[0].text


def test_a_gap_is_filled_in_a_stream(client: Inception, model: str) -> None:
    how: dict[str, Any] = {"model": model, "prompt": BEFORE, "suffix": AFTER, "max_tokens": 12, "stop": ["\n\n"]}
    chunks = list(client.fim.completions.create(**how, stream=True))
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == client.fim.completions.create(**how).choices[0].text


def test_questions_about_a_state_are_answered(client: Inception, model: str) -> None:
    answer = client.decisions.create(
        model=model,
        state={"code": "def add(a, b):\n    return a + b"},
        questions={
            "adds": {"type": "noul", "instructions": "Does the function add?"},
            "language": {"type": "choice", "criteria": {"python": None, "rust": "Rust", "go": None}},
            "quality": {"type": "score", "criteria": ["bad", "fair", "good"]},
        },
    )
    adds, language, quality = (answer.answers[name] for name in ("adds", "language", "quality"))

    assert adds.type == "noul" and 0 <= adds.noul <= 1
    assert language.type == "choice" and set(language.probabilities) == {"python", "rust", "go"}
    assert sum(language.probabilities.values()) == pytest.approx(1, abs=1e-3)
    assert language.choice == max(language.probabilities, key=lambda name: language.probabilities[name])
    assert quality.type == "score" and quality.probabilities
    assert answer.usage.input_tokens > 0


@pytest.mark.parametrize("which", ["list", "list_chat", "list_fim", "list_edit"])
def test_models_are_listed_for_each_endpoint(served: Served, model: str, which: str) -> None:
    client = Inception(base_url=served.url, api_key="none")  # not strict: of a model that is not loaded little is known
    found = {one.id: one for one in getattr(client.models, which)().data}
    if which == "list_edit":
        assert found == {}
        return
    assert found[model].context_length == 1024
    assert found[model].supported_endpoints


def test_a_next_edit_is_an_error_that_says_why(client: Inception, model: str) -> None:
    content = "<|code_to_edit|>\nx = 1<|cursor|>\n<|/code_to_edit|>"
    with pytest.raises(inceptionai.BadRequestError) as error:
        client.edit.completions.create(model=model, messages=[{"role": "user", "content": content}])
    assert "was not trained to" in str(error.value)


def test_errors_are_the_clients_own_classes(client: Inception, model: str) -> None:
    with pytest.raises(inceptionai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=USER)
    with pytest.raises(inceptionai.BadRequestError):
        client.chat.completions.create(model=model, messages=[])
