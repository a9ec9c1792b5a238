"""Qwen2.5-Coder-Instruct: gaps, ends, edits and calls."""

from __future__ import annotations

import ast

import httpx2
import pytest

from daguerre.model import Model
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from real.conftest import FULL
from served import asked
from server.conftest import running

BEFORE = 'def area(width, height):\n    """The area of a rectangle."""\n    total = '
AFTER = "\n    return total\n\n\nprint(area(2, 3))\n"


def test_a_fill_has_the_prompt_of_llama_server_and_fits(coder: Model) -> None:
    """The prompt of llama-server's /infill, by its source (b11434, tools/server/server-common.cpp)."""
    ids = coder.tokenizer.added  # type: ignore[attr-defined]

    def plain(text: str) -> list[int]:
        return coder.tokenizer.encode_plain(text, begins=False)

    files = [*plain("myproject\n"), ids["<|file_sep|>"], *plain("a.py\n"), *plain("x = 1\n")]
    prompt = [ids["<|repo_name|>"], *files, ids["<|file_sep|>"], *plain("filename\n")]
    prompt += [ids["<|fim_prefix|>"], *plain(BEFORE), ids["<|fim_suffix|>"], *plain(AFTER), ids["<|fim_middle|>"]]
    with running(make_app(ModelPool({"m": lambda: coder}))) as url, httpx2.Client(base_url=url, timeout=600) as client:
        extra = [{"filename": "a.py", "text": "x = 1\n"}]
        body = {"input_prefix": BEFORE, "input_suffix": AFTER, "input_extra": extra, "n_predict": 24}
        found = asked(client, "/infill", body)
    assert found["tokens_evaluated"] == len(prompt)
    written = coder.generate(prompt, 24, mode="ar", heal=False)
    assert written.text.startswith(found["content"]) and found["content"].strip() == "width * height"
    result = coder.fill(f"{BEFORE}<gap>{AFTER}", files={"a.py": "x = 1\n"})
    assert result.text == BEFORE + found["content"] + AFTER and result.usage.mode == "fim"
    assert result.trace.canvas.tokens[: len(prompt)].tolist() == prompt
    ast.parse(result.text)


@pytest.mark.skipif(not FULL, reason="make real runs it")
def test_edits_calls_and_json(coder: Model) -> None:
    edited = coder.edit(f"{BEFORE}0{AFTER}", [(len(BEFORE), len(BEFORE) + 1)], 16)
    assert edited.text == f"{BEFORE}width * height{AFTER}"
    tool = {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}  # fmt: skip
    body = {"model": "m", "messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "tools": [tool]}
    with running(make_app(ModelPool({"m": lambda: coder}))) as url, httpx2.Client(base_url=url, timeout=600) as client:
        for choice in ("auto", "required"):
            (made,) = asked(client, "/v1/chat/completions", {**body, "tool_choice": choice, "max_tokens": 80})[
                "choices"
            ]
            assert [call["function"]["arguments"] for call in made["message"]["tool_calls"]] == ['{"city":"Oslo"}'], (
                choice
            )
