"""LiteLLM: its OpenAI and Inception providers."""

from __future__ import annotations

import json
from typing import Any

import litellm
import pytest

USER = [{"role": "user", "content": "def area(width, height):"}]
PROVIDERS = ["openai", "inception"]
TOOL = {
    "type": "function",
    "function": {
        "name": "make",
        "parameters": {
            "type": "object",
            "properties": {"size": {"type": "integer"}},
            "required": ["size"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def how(base_url: str) -> dict[str, Any]:
    return {"api_base": base_url, "api_key": "none", "num_retries": 0}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_chat_is_answered(how: dict[str, Any], model: str, provider: str) -> None:
    answer = litellm.completion(f"{provider}/{model}", USER, max_tokens=12, temperature=0, **how)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 12


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_stream_is_the_same_text(how: dict[str, Any], model: str, provider: str) -> None:
    whole = litellm.completion(f"{provider}/{model}", USER, max_tokens=16, temperature=0, **how)
    chunks = list(litellm.completion(f"{provider}/{model}", USER, max_tokens=16, temperature=0, stream=True, **how))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_tool_is_called(how: dict[str, Any], model: str, provider: str) -> None:
    answer = litellm.completion(f"{provider}/{model}", USER, max_tokens=80, tools=[TOOL], tool_choice="required", **how)
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "make"
    assert set(json.loads(call.function.arguments)) == {"size"}


def test_frames_of_mercury_reach_the_caller(how: dict[str, Any], model: str) -> None:
    body = {"daguerre": {"mode": "block", "block_size": 8}}
    chunks = litellm.completion(
        f"inception/{model}", USER, max_tokens=16, temperature=0, stream=True, diffusing=True, extra_body=body, **how
    )
    drafts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert len([draft for draft in drafts if draft]) > 1


async def test_a_chat_is_answered_asynchronously(how: dict[str, Any], model: str) -> None:
    answer = await litellm.acompletion(f"openai/{model}", USER, max_tokens=8, **how)
    assert answer.choices[0].message.content is not None


def test_a_text_is_completed_before_a_suffix(how: dict[str, Any], model: str) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{model}",
        prompt="def add(a, b):\n    return ",
        suffix="\n\nprint(add(1, 2))\n",
        max_tokens=8,
        **how,
    )
    assert answer.choices[0].text


def test_a_gap_is_filled_by_the_provider_for_it(base_url: str, model: str) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-inception/{model}",
        prompt="def add(a, b):\n    return ",
        suffix="\n\nprint(add(1, 2))\n",
        max_tokens=8,
        api_base=f"{base_url}/fim",
        api_key="none",
    )
    assert answer.choices[0].text


def test_texts_are_embedded(how: dict[str, Any], model: str) -> None:
    answer = litellm.embedding(f"openai/{model}", ["import os", "import sys"], encoding_format="float", **how)
    assert len(answer.data) == 2
    assert len(answer.data[0]["embedding"]) > 8


def test_an_error_has_the_status_of_the_server(how: dict[str, Any], model: str) -> None:
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(f"openai/{model}", USER, temperature=9, **how)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion("openai/nobody", USER, **how)


def test_a_router_over_the_server_answers(base_url: str, model: str) -> None:
    where = {"model": f"openai/{model}", "api_base": base_url, "api_key": "none"}
    router = litellm.Router([{"model_name": "python", "litellm_params": where}])
    assert router.completion("python", USER, max_tokens=4).choices[0].message.content is not None
