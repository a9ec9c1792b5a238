"""The `llm` command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tasks import ANSWER, PRICES, QUESTION
from wire import Wire

MODELS = """
- model_id: coder
  model_name: coder
  api_base: {url}/v1
  supports_tools: true
  supports_schema: true
"""
CLOCK = '''
def hours_at_work(name: str) -> str:
    """The hours that a person has worked this month."""
    return f"{name} worked 137 hours"
'''
Llm = Callable[..., str]


@pytest.fixture
def llm(program: Callable[[str], Path], wire: Wire, home: Path, start: Callable[..., str]) -> Llm:
    """The command, with its settings and a file in its folder."""
    (home / "extra-openai-models.yaml").write_text(MODELS.format(url=wire.url))
    (home / "work" / "prices.py").write_text(PRICES)
    command = program("llm/bin/llm")
    options = "-m", "coder", "-o", "temperature", "0"
    return lambda *words: start(command, *options, *words, env={"LLM_USER_PATH": str(home)})


def test_answers_about_a_file(llm: Llm, wire: Wire) -> None:
    assert ANSWER in llm("-f", "prices.py", QUESTION)
    assert wire.asked("/chat/completions")[0].streamed


def test_calls_a_tool(llm: Llm, wire: Wire) -> None:
    llm("--functions", CLOCK, "How many hours did Ada work this month?")
    called, answered = wire.exchanges[1].asked["messages"][-2:]
    assert called["tool_calls"][0]["function"]["name"] == "hours_at_work"
    assert answered["content"] == "Ada worked 137 hours"


def test_answers_by_a_schema(llm: Llm) -> None:
    schema = "name, num_parameters int"
    answer = json.loads(llm("--schema", schema, "-f", "prices.py", "Describe the function cheaper."))
    assert (answer["name"], answer["num_parameters"]) == ("cheaper", 3)


def test_continues_a_conversation(llm: Llm, wire: Wire) -> None:
    llm("-o", "max_tokens", "8", "My word is heliotrope. Say OK.")
    llm("-c", "-o", "max_tokens", "16", "What is my word?")
    roles = [one["role"] for one in wire.exchanges[-1].asked["messages"]]
    assert roles == ["user", "assistant", "user"]
