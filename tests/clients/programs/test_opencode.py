"""opencode: an agent that reads and edits files by tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tasks import ANSWER, PRICES, QUESTION, RENAMED, holds
from wire import Wire

OFFLINE = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
PROGRAM = "opencode/node_modules/opencode-linux-x64/bin/opencode"


def settings(url: str, folder: Path) -> dict[str, object]:
    """An agent with two tools and a short prompt: the usual prompt of thousands of tokens is for larger models."""
    model = {"name": "Qwen2.5-Coder", "limit": {"context": 16384, "output": 512}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Daguerre",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"coder": model},
    }
    agent = {
        "mode": "primary",
        "prompt": f"You answer and edit by the tools that you have. The files are in {folder}.",
        "temperature": 0,
        "permission": {"*": "deny", "read": "allow", "edit": "allow"},
    }
    return {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"daguerre": provider},
        "model": "daguerre/coder",
        "small_model": "daguerre/coder",
        "agent": {"editor": agent, "title": {"disable": True}},
    }


@pytest.fixture
def opencode(program: Callable[[str], Path], wire: Wire, home: Path, start: Callable[..., str]) -> Callable[[str], str]:
    """The command, with its settings, in a folder of one file."""
    (home / "work" / "opencode.json").write_text(json.dumps(settings(wire.url, home / "work")))
    (home / "work" / "prices.py").write_text(PRICES)
    return lambda asked: start(program(PROGRAM), "run", "--agent", "editor", asked, env=OFFLINE)


def calls(wire: Wire) -> list[str]:
    """The names of the tools that the model called, as the program sent them back."""
    messages = wire.asked("/chat/completions")[-1].asked["messages"]
    return [call["function"]["name"] for one in messages for call in one.get("tool_calls") or ()]


def test_reads_a_file_by_a_tool_and_answers(opencode: Callable[[str], str], wire: Wire) -> None:
    said = opencode(f"Read the file prices.py. {QUESTION}")
    assert "read" in calls(wire), said
    assert ANSWER in said


def test_edits_a_file_by_a_tool(opencode: Callable[[str], str], wire: Wire, home: Path) -> None:
    said = opencode("Rename the function calc to total_price in prices.py. Read it, then edit with replaceAll.")
    text = (home / "work" / "prices.py").read_text()
    assert "edit" in calls(wire), said
    assert holds(text, RENAMED), text
