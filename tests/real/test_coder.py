"""Qwen2.5-Coder-Instruct: gaps, ends, edits and calls."""

from __future__ import annotations

import ast
import json

import httpx2
import pytest

import daguerre
from daguerre.decoding.modes.fim import MIDDLE_LINES
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.scoring.decisions import Choice
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from real.conftest import FULL, repeats_a_line
from real.prompts import CHATS
from served import asked, streamed
from server.conftest import running

HEAD = "".join(f"SIDE_{n} = {n}\n" for n in range(MIDDLE_LINES))
"""Lines that are read first; the others stand behind the text after the gap."""
BEFORE = 'def area(width, height):\n    """The area of a rectangle."""\n    total = '
AFTER = "\n    return total\n\n\nprint(area(2, 3))\n"


def test_a_fill_reads_files_as_llama_server_has_them_and_fits(coder: Model) -> None:
    """As its /infill does, by its source (b11434, tools/server/server-common.cpp), but for the last lines before the
    gap, which are the beginning of what is written.
    """
    ids = coder.tokenizer.added  # type: ignore[attr-defined]

    def plain(text: str) -> list[int]:
        return coder.tokenizer.encode_plain(text, begins=False)

    files = [*plain("myproject\n"), ids["<|file_sep|>"], *plain("a.py\n"), *plain("x = 1\n")]
    prompt = [ids["<|repo_name|>"], *files, ids["<|file_sep|>"], *plain("filename\n")]
    prompt += [ids["<|fim_prefix|>"], *plain(HEAD), ids["<|fim_suffix|>"], *plain(AFTER), ids["<|fim_middle|>"]]
    prompt += plain(BEFORE)
    with running(make_app(ModelPool({"m": lambda: coder}))) as url, httpx2.Client(base_url=url, timeout=600) as client:
        extra = [{"filename": "a.py", "text": "x = 1\n"}]
        body = {"input_prefix": HEAD + BEFORE, "input_suffix": AFTER, "input_extra": extra, "n_predict": 24}
        found = asked(client, "/infill", body)
    assert found["tokens_evaluated"] == len(prompt)
    written = coder.generate(prompt, 24, mode="ar", heal=True)
    assert written.text.startswith(found["content"]) and found["content"].strip() == "width * height"
    result = coder.fill(f"{HEAD}{BEFORE}<gap>{AFTER}", files={"a.py": "x = 1\n"})
    assert result.text == HEAD + BEFORE + found["content"] + AFTER and result.usage.mode == "fim"
    start = result.trace.canvas.gaps[0][0]
    assert result.trace.canvas.tokens[:start].tolist() == prompt[:start] and len(prompt) - 3 < start < len(prompt)
    ast.parse(result.text)


@pytest.mark.skipif(not FULL, reason="make real runs it")
def test_edits_calls_and_json(coder: Model) -> None:
    edited = coder.edit(f"{BEFORE}0{AFTER}", [(len(BEFORE), len(BEFORE) + 1)], 16)
    assert edited.text == f"{BEFORE}width * height{AFTER}"
    tool = {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}  # fmt: skip
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
        "tools": [tool],
    } | {"temperature": 0}
    with running(make_app(ModelPool({"m": lambda: coder}))) as url, httpx2.Client(base_url=url, timeout=600) as client:
        for choice in ("auto", "required"):
            given = {**body, "tool_choice": choice, "max_tokens": 80}
            (made,) = asked(client, "/v1/chat/completions", given)["choices"]
            (call,) = made["message"]["tool_calls"]
            chunks = streamed(client, "/v1/chat/completions", {**given, "diffusing": True})
            deltas = [one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls") or ()]
            drafted = "".join(one["function"]["arguments"] for one in deltas)
            assert json.loads(call["function"]["arguments"]) == json.loads(drafted) == {"city": "Oslo"}, choice
            assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.skipif(not FULL, reason="make real runs it")
def test_chats_at_the_defaults_repeat_no_line_and_greedy_copies_are_whole(coder: Model) -> None:
    for number, question in enumerate(CHATS[:30]):
        assert not repeats_a_line(coder.chat([{"role": "user", "content": question}], 200, seed=number).text), question
    for text in ("alpha beta gamma", "a = 1\nb = 2\nc = 3", "12, 34, 56, 78, 90"):
        asked_for = f"Copy exactly, and write nothing else:\n{text}"
        assert text in coder.chat([{"role": "user", "content": asked_for}], 100, temperature=0).text


@pytest.mark.skipif(not FULL, reason="make real runs it")
def test_every_operation_of_the_canvas_works_or_says_what_the_model_lacks(coder: Model) -> None:
    prompt = "def add(a, b):\n    return"
    assert coder.generate(prompt, 16, stop="\n").text == " a + b"
    assert coder.generate(prompt, 4, choices=[" a + b", " a * b"]).text == " a + b"
    assert coder.generate("x = ", 8, regex=r"\d+ \* 2").text.endswith("* 2")
    assert "a + b" not in coder.generate(prompt, 12, forbidden=["a + b"]).text
    assert coder.generate("import nump", 4, heal=True).text.startswith("y")
    assert coder.generate(prompt, 8, pins=[daguerre.Pin(" a", at=0)], mode="ar").text.startswith(" a")
    plain = coder.generate(prompt, 24, mode="ar")
    drafted = coder.generate(prompt, 24, mode="ar", draft=plain.text)
    assert drafted.text == plain.text and drafted.usage.forwards < plain.usage.forwards
    assert coder.generate(prompt, 8, temperature=0.8, n=2, seed=1).choices[1].text
    assert coder.nll("def f(x):\n    return x\n").value < coder.nll("x return\n    x(f def):\n").value
    assert coder.decide("2 + 2 =", [Choice(labels=[" 4", " cheese"])])[0].answer == " 4"
    assert coder.infill(BEFORE, AFTER, 16).usage.mode == "fim"
    assert coder.infill(BEFORE, AFTER, 4, mode="beam", num_beams=4).usage.mode == "beam"
    assert coder.fill(f"{BEFORE}<gap>{AFTER}", 16).text.endswith(AFTER)
    for call, said in (
        (lambda: coder.fill("a<gap>b<gap>c", 2), "one gap at a time"),
        (lambda: coder.generate(prompt, 8, mode="block"), "masked positions"),
        (lambda: coder.generate(prompt, 8, revise=1), "mode"),
        (lambda: coder.infill("a", "b", 4, mode="ar"), "suffix"),
    ):
        with pytest.raises((UnsupportedError, InputError), match=said):
            call()
