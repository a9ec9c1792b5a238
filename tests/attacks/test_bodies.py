"""Bodies that cost a 500, a stream, a batch, or a line of the log: what is echoed can be written, and what is not read
is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.processes import Serving, run, wait_until

Ask = Callable[..., httpx2.Response]
HALF = "\ud800"
SAYS = [{"role": "user", "content": "x"}]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


def nested(depth: int) -> Any:
    out: Any = "x"
    for _ in range(depth):
        out = [out]
    return out


def test_half_a_pair_of_surrogates_is_refused_wherever_it_is(ask: Ask, subtests: pytest.Subtests) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": HALF, "parameters": {"type": "object"}}}
    chat, response = {"messages": SAYS, "max_tokens": 2}, {"input": "x", "max_output_tokens": 2}
    for path, body, field in (
        (COMPLETIONS, {"prompt": "x", "max_tokens": 2, "user": HALF}, "user"),
        (CHAT, chat | {"tools": [tool]}, "tools"),
        (CHAT, chat | {"metadata": {"a": HALF}}, "metadata"),
        (CHAT, chat | {"messages": [{"role": "user", "content": "x", HALF: 1}]}, "messages"),
        (RESPONSES, response | {"metadata": {HALF: "a"}}, "metadata"),
        (RESPONSES, response | {"safety_identifier": HALF}, "safety_identifier"),
        (RESPONSES, response | {"prompt_cache_key": HALF}, "prompt_cache_key"),
        (RESPONSES, response | {"input": [{"role": "user", "content": "x", "id": HALF}]}, "input"),
        (RESPONSES, response | {"instructions": "a\\" + HALF}, "instructions"),
        ("/v1/embeddings", {"input": "x", "user": "😀" + HALF}, "user"),
        ("/v1/daguerre/requests", {"prompt": "x", "stream": False, "options": {"keywords": [HALF]}}, "options"),
    ):
        with subtests.test(path=path, field=field):
            for stream in (False, True):
                answer = ask(path, json.dumps({"stream": stream, **body}).encode())
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    whole = {"prompt": "😀 \\ud800", "max_tokens": 1, "user": "😀"}
    assert ask(COMPLETIONS, json.dumps(whole).encode()).status_code == 200


def test_what_is_nested_deep_is_refused(ask: Ask, subtests: pytest.Subtests) -> None:
    deep, arguments = nested(900), "[" * 1_500 + "]" * 1_500
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    for path, body in (
        (RESPONSES, {"input": [{"role": "user", "content": "x", "extra": deep}]}),
        (RESPONSES, {"input": "x", "metadata": {"a": deep}}),
        ("/v1/daguerre/requests", {"prompt": "x", "options": {"schema": {"enum": deep}}}),
        (COMPLETIONS, {"prompt": "x", "daguerre": {"schema": {"const": deep}}}),
        (CHAT, {"messages": [*SAYS, {"role": "assistant", "tool_calls": [call]}, *SAYS]}),
    ):
        with subtests.test(path=path):
            answer = ask(path, body)
            assert answer.status_code == 400 and "deep" in answer.json()["error"]["message"]


def test_parts_are_counted_before_they_are_made(ask: Ask) -> None:
    for body in (b'{"messages":[' + b"{}," * 1_000_000 + b"{}]}", b'{"input":[' + b'"",' * 1_000_000 + b'""]}'):
        assert ask(CHAT, body).status_code == 413
    texts = {"messages": [{"role": "user", "content": "{[,]}" * 100}], "max_tokens": 2}
    assert ask(CHAT, texts).status_code == 200


def test_an_echo_beyond_the_context_is_refused(ask: Ask) -> None:
    for prompt in ("x = 1\n" * 2_000, [20] * 5_000, [10**9], [-1]):
        for tokens in (0, 4):
            body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": tokens}
            assert ask(COMPLETIONS, body).status_code == 400


def test_names_and_errors_are_short_and_plain_in_the_log(attacked: Serving, ask: Ask) -> None:
    turned = "\u202eevil\x9b2J\u2028{}"
    before = len(attacked.lines)
    assert ask(COMPLETIONS, {"prompt": "x", "model": "m" * 3_000_000}).status_code == 404
    assert ask(COMPLETIONS, {"prompt": "x", "model": turned}).status_code == 404
    assert ask(COMPLETIONS, {"prompt": "x", "k" * 2_000_000: 1, "temperature": "t" * 1_000_000}).status_code == 400
    assert ask("/v1/requests/" + "p" * 20_000, {}).status_code == 404

    def lines() -> list[str]:
        return [line for line in attacked.lines[before:] if line.startswith("{")]

    wait_until(lambda: any(json.loads(line).get("model") == turned for line in lines()))
    wait_until(lambda: any("p" * 50 in line for line in lines()))
    assert max(map(len, lines())) < 4_000
    assert not any(set(line) & set(turned[:1] + "\x9b\u2028") for line in lines())


def test_a_batch_answers_every_line(tmp_path: Path) -> None:
    asked, out = tmp_path / "asked.jsonl", tmp_path / "out.jsonl"
    rows = [
        {"custom_id": "a", "url": CHAT, "body": {"messages": SAYS, "max_tokens": 2, "diffusing": True}},
        {"custom_id": "b", "url": "/v1/daguerre/requests", "body": {"prompt": "x", "max_tokens": 2}},
        {"custom_id": "c", "url": COMPLETIONS, "body": {"prompt": "x", "max_tokens": 2, "user": HALF}},
        {"custom_id": "d", "url": "/nö/\x00 ?x=1", "body": {}},
        {"custom_id": "e", "url": "/metrics", "body": {}},
        {"custom_id": "f", "url": COMPLETIONS, "body": {"prompt": "x", "max_tokens": 2}},
    ]
    asked.write_text("\n".join(map(json.dumps, rows)))
    done = run("batch", asked, out, timeout=240)
    lines = map(json.loads, out.read_text().splitlines())
    answers = {one["custom_id"]: one["response"]["status_code"] for one in lines}
    assert "Traceback" not in done.stderr
    assert answers == {"a": 400, "b": 400, "c": 400, "d": 404, "e": 405, "f": 200}
    asked.write_text(json.dumps(rows[0] | {"custom_id": HALF}))
    refused = run("batch", asked, tmp_path / "other.jsonl", timeout=240)
    assert refused.returncode == 2 and "surrogates" in refused.stderr and "Traceback" not in refused.stderr
