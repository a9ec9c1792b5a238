"""Ollama's own client for Python."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest

from served import MODEL, SECOND, Served

USER = [{"role": "user", "content": "def area(width, height):"}]
COLD = {"temperature": 0, "num_predict": 16, "num_ctx": 512}


@pytest.fixture
def client(served: Served) -> ollama.Client:
    return ollama.Client(host=served.url)


def test_a_conversation_is_answered_whole_and_streamed(client: ollama.Client, model: str) -> None:
    whole = client.chat(model=model, messages=USER, options=COLD)
    parts = list(client.chat(model=model, messages=USER, options=COLD, stream=True))

    assert whole.message.role == "assistant" and whole.message.content
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].done_reason in ("stop", "length")
    assert parts[-1].eval_count == whole.eval_count and 0 < (whole.eval_count or 0) <= 16
    assert (whole.total_duration or 0) >= (whole.eval_duration or 0) > 0


def test_a_prompt_is_continued_and_a_gap_filled(client: ollama.Client, model: str) -> None:
    assert client.generate(model=model, prompt="def area(width, height):\n    return ", options=COLD).response
    filled = client.generate(model=model, prompt="def f(a):\n    return ", suffix="\n\nf(1)\n", options=COLD)
    assert filled.response and "f(1)" not in filled.response
    loaded = client.generate(model=model)
    assert loaded.done and loaded.response == ""


def test_a_schema_holds(client: ollama.Client, model: str) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    answer = client.chat(model=model, messages=USER, format=schema, options={"temperature": 0})
    assert 0 <= json.loads(answer.message.content or "")["n"] <= 9


def test_functions_of_python_are_tools(client: ollama.Client, model: str) -> None:
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return city

    answer = client.chat(model=model, messages=USER, tools=[weather], options=COLD)
    assert answer.message.content or answer.message.tool_calls
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    said: list[Any] = [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    said.append({"role": "tool", "tool_name": "weather", "content": "sunny"})
    assert client.chat(model=model, messages=said, tools=[weather], options=COLD).done


def test_models_are_listed_shown_and_loaded(client: ollama.Client, model: str) -> None:
    client.generate(model=model)
    assert {one.model for one in client.list().models} == {f"{MODEL}:latest", f"{SECOND}:latest"}
    assert f"{model}:latest" in {one.model for one in client.ps().models}
    shown = client.show(model)
    assert {"completion", "tools", "insert"} <= set(shown.capabilities or ())
    info: Any = shown.modelinfo
    assert info[f"{info['general.architecture']}.context_length"] > 0


def test_texts_are_embedded(client: ollama.Client, model: str) -> None:
    first, second = client.embed(model=model, input=["a = 1", "b = 2"]).embeddings
    assert len(first) == len(second) and list(first) != list(second)
    assert list(client.embeddings(model=model, prompt="a = 1").embedding) == pytest.approx(list(first), abs=1e-4)


def test_errors_are_the_clients_own_class(client: ollama.Client, model: str) -> None:
    with pytest.raises(ollama.ResponseError, match="there is no model") as missing:
        client.chat(model="nobody", messages=USER)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"options\.temperature"):
        client.chat(model=model, messages=USER, options={"temperature": 9})
    for refused in (lambda: client.pull("nobody"), lambda: client.delete(model), lambda: client.copy(model, "b")):
        with pytest.raises(ollama.ResponseError, match="this server") as caught:
            refused()
        assert caught.value.status_code == 403
