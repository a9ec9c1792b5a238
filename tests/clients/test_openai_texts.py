"""OpenAI's client: completions, embeddings and models."""

from __future__ import annotations

import base64
import struct
from typing import Any

import openai
import pytest
from openai import OpenAI

BEFORE = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n"
AFTER = "\n\n    def norm(self):\n        return self.x\n"


@pytest.fixture
def client(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="none", max_retries=0)


def test_a_prompt_is_continued(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt="def fib(n):\n    if n", max_tokens=7, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == " == 0:\n        return n\n"[: len(answer.choices[0].text)]
    assert answer.choices[0].text.startswith(" == 0")
    assert answer.usage is not None and answer.usage.completion_tokens <= 7


def test_a_gap_is_filled_before_a_suffix(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=BEFORE, suffix=AFTER, max_tokens=16, temperature=0, stop="\n\n"
    )
    assert answer.choices[0].text
    assert "self" in answer.choices[0].text


def test_a_stream_is_the_same_text(client: OpenAI, model: str) -> None:
    how: dict[str, Any] = {"model": model, "prompt": "import os\n", "max_tokens": 20, "temperature": 0.8, "seed": 3}
    chunks = list(client.completions.create(**how, stream=True))
    assert (
        "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        == client.completions.create(**how).choices[0].text
    )


def test_the_prompt_is_echoed_with_log_probabilities(client: OpenAI, model: str) -> None:
    prompt = "for i in range(3):"
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=6, temperature=0, echo=True, logprobs=2)
    choice = answer.choices[0]
    assert choice.text.startswith(prompt)
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens and logprobs.token_logprobs and logprobs.text_offset
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert "".join(logprobs.tokens).startswith(prompt)
    assert all(one is None or one <= 0 for one in logprobs.token_logprobs)


def test_several_prompts_and_choices_are_numbered(client: OpenAI, model: str) -> None:
    prompts = ["a = ", "b = ", "c = "]
    answer = client.completions.create(model=model, prompt=prompts, n=2, max_tokens=4, seed=1, temperature=1)
    assert [choice.index for choice in answer.choices] == list(range(6))


def test_embeddings_are_equal_as_numbers_and_as_base64(client: OpenAI, model: str) -> None:
    texts = ["def add(a, b): return a + b", "class Tree: pass"]
    numbers = client.embeddings.create(model=model, input=texts, encoding_format="float")
    encoded = client.embeddings.with_raw_response.create(model=model, input=texts, encoding_format="base64")
    default = client.embeddings.create(model=model, input=texts)  # the client asks for base64 and reads it

    assert [one.index for one in numbers.data] == [0, 1]
    assert len(numbers.data[0].embedding) == len(default.data[0].embedding) > 8
    raw = base64.b64decode(encoded.http_response.json()["data"][0]["embedding"])
    assert struct.unpack(f"<{len(raw) // 4}f", raw) == pytest.approx(numbers.data[0].embedding, abs=1e-6)
    assert default.data[0].embedding == pytest.approx(numbers.data[0].embedding, abs=1e-6)
    assert sum(x * x for x in numbers.data[0].embedding) == pytest.approx(1, abs=1e-3)
    assert numbers.usage.prompt_tokens > 4


def test_models_are_listed_and_found(client: OpenAI, model: str) -> None:
    assert model in [one.id for one in client.models.list()]
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")
