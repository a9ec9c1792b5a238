"""llama.cpp's own routes, as plugins of editors use them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from daguerre.decoding.context import room_for, window
from daguerre.decoding.generate import Request
from daguerre.engine.engine import Engine
from daguerre.model import Model
from daguerre.server.gaps import Cut
from daguerre.server.protocol.llama import InfillBody
from daguerre.server.routes.llama import _end_late

NUM = 12
PREFIX = "import os\n\ndef read(path):\n    with open(path) as f:\n"
ASK = {
    "input_prefix": PREFIX,
    "prompt": "        ",
    "input_suffix": "\n    return text\n",
    "n_predict": NUM,
    "samplers": ["top_k", "top_p", "infill"],
    "top_k": 40,
    "top_p": 0.9,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
}


def ask(client: httpx2.Client, path: str = "/infill", **body: Any) -> Any:
    response = client.post(path, json={**ASK, **body} if path == "/infill" else body)
    assert response.status_code == 200, response.text
    return response.json()


def chunks(client: httpx2.Client, **body: Any) -> list[dict[str, Any]]:
    with client.stream("POST", "/infill", json={**ASK, **body, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_gap_has_the_text_that_the_library_gives(client: httpx2.Client, trained: Model) -> None:
    answer = ask(client)
    assert answer["content"] == trained.infill(PREFIX + "        ", ASK["input_suffix"], NUM).text  # type: ignore[arg-type]
    assert (answer["stop"], answer["stop_type"], answer["truncated"]) == (True, "eos", False)
    assert answer["tokens_cached"] == answer["tokens_evaluated"] + answer["tokens_predicted"]
    assert answer["generation_settings"]["n_ctx"] == trained.config.max_positions
    assert answer["timings"]["predicted_n"] == answer["tokens_predicted"]
    assert answer["timings"]["prompt_ms"] > 0


def test_whole_files_and_snippets_are_cut_to_the_context(client: httpx2.Client, trained: Model) -> None:
    before = "".join(f"value_{number} = {number}\n" for number in range(400))
    extra = [{"filename": "a.py", "text": "a = 1\n"}, {"filename": "b.py", "text": "b = 2\n"}]
    answer = ask(client, input_prefix=before + PREFIX, input_extra=extra, n_predict=4)
    shown = window(trained.tokenizer, before + PREFIX + "        ", "\n    return text\n", room_for(trained.config, 4))
    assert answer["truncated"] is True
    assert answer["prompt"] == shown.prefix or answer["prompt"].endswith(shown.prefix)
    assert answer["tokens_evaluated"] <= room_for(trained.config, 4)
    small = ask(client, input_extra=extra, n_predict=4)
    assert small["prompt"] == "a = 1\n\nb = 2\n\n" + PREFIX + "        "
    assert [one["complete"] for one in small["daguerre"]["shown"]["extra"]] == [True, True]


@pytest.mark.parametrize("options", [{}, {"daguerre": {"mode": "block"}}, {"input_suffix": ""}, {"n_indent": 8}])
def test_a_stream_has_the_text_of_the_answer(client: httpx2.Client, options: dict[str, Any]) -> None:
    whole = ask(client, **options)
    *parts, last = chunks(client, **options)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [part["stop"] for part in (*parts, last)] == [False] * len(parts) + [True]
    assert (last["content"], last["stop_type"]) == ("", whole["stop_type"])
    assert last["tokens_predicted"] == whole["tokens_predicted"]


def test_the_stop_string_that_ended_the_text_is_named(client: httpx2.Client) -> None:
    for options in ({}, {"input_suffix": ""}):
        text = ask(client, **options)["content"]
        stop = text[3:6]
        answer = ask(client, **options, stop=["never there", stop])
        assert answer["content"] == text[: text.index(stop)]
        assert (answer["stop_type"], answer["stopping_word"]) == ("word", stop)


def test_a_text_ends_before_a_line_with_too_little_white_space() -> None:
    text = "a(\n        b)\n\n    c\nd"
    assert Cut(indent=8)(text) == "a(\n        b)\n"
    assert Cut(indent=4)(text) == "a(\n        b)\n\n    c"
    assert Cut(indent=1)("a\n  \n b") == "a\n  \n b"
    assert Cut(stop=("b", ")"), indent=8)(text) == "a(\n        "
    sent = ""
    for end in range(len(text) + 1):
        kept = Cut(indent=8)(text[:end], last=False)
        assert kept.startswith(sent), (kept, sent)
        sent = kept
    assert Cut(indent=8)(text).startswith(sent)


def test_only_the_fields_that_are_named_are_answered(client: httpx2.Client) -> None:
    answer = ask(client, response_fields=["content", "timings/predicted_n", "nothing"], n_predict=4)
    assert set(answer) == {"content", "timings/predicted_n"}
    assert ask(client, n_predict=0, response_fields=[""]) == {}
    assert ask(client, n_predict=0)["content"] == ""


def test_a_deadline_in_milliseconds_is_one_in_seconds(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, asked = Engine.submit, list[float | None]()

    def noted(engine: Engine, request: Request, **more: Any) -> Any:
        asked.append(request.options.get("timeout", request.arguments.get("timeout")))
        return submit(engine, request, **more)

    monkeypatch.setattr(Engine, "submit", noted)
    cut = ask(
        client, input_suffix="", n_predict=200, t_max_predict_ms=0.001, daguerre={"mode": "ar", "min_tokens": 200}
    )
    assert cut["tokens_predicted"] < 200
    searched = ask(client, t_max_predict_ms=1)
    assert searched["stop"] is True
    assert asked == [0.000001, 0.001]


def test_of_a_model_that_writes_lines_a_deadline_cuts_none() -> None:
    """llama-server's rule, b11434: it counts from the first token, and waits for the end of a line."""
    stopped = list[int]()
    gap: Any = SimpleNamespace(job=SimpleNamespace(first=None, done=False, stop=stopped.append))
    _end_late(gap, 0.25, "x = 1\n")
    gap.job.first = time.perf_counter() - 1
    _end_late(gap, 0.25, "x = ")
    _end_late(gap, 60, "x = 1\n")
    assert stopped == []
    _end_late(gap, 0.25, "x = 1\n")
    assert stopped == [0]
    body = InfillBody(t_max_predict_ms=250)
    assert (body.timeout(None, by_lines=True), body.line_seconds) == (None, 0.25)
    assert InfillBody().line_seconds == math.inf


def test_a_long_deadline_is_the_operator_s(serve: Callable[..., httpx2.Client]) -> None:
    client = serve(timeout=30)
    assert ask(client, t_max_predict_ms=60_000, n_predict=3)["stop"] is True


def test_a_completion_continues_the_prompt(client: httpx2.Client, trained: Model) -> None:
    expected = trained.generate("def add(a, b):\n", 9).text
    for path in ("/completion", "/completions"):
        assert ask(client, path, prompt="def add(a, b):\n", n_predict=9)["content"] == expected
    long = ask(client, "/completion", prompt="x = 1\n" * 600, n_predict=4)
    assert long["truncated"] is True


def test_what_cannot_be_honored_is_refused(client: httpx2.Client) -> None:
    for body in ({"grammar": "root ::= x"}, {"mirostat": 1}, {"n_probs": 3}, {"temperature": 0.5, "typical_p": 0.1}):
        response = client.post("/infill", json={**ASK, **body})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == list(body)[-1]


def test_numbers_are_finite_and_stop_strings_are_many(client: httpx2.Client) -> None:
    headers = {"content-type": "application/json"}
    assert client.post("/infill", content='{"prompt": "x", "temperature": NaN}', headers=headers).status_code == 400
    assert ask(client, stop=[f"never {number}" for number in range(9)], n_predict=4)["stop"] is True


def test_what_asks_for_nothing_is_accepted(client: httpx2.Client) -> None:
    ask(client, min_p=0.05, mirostat=0, repeat_penalty=1.0, seed=-1, n_predict=-1, id_slot=0)
    ask(client, temperature=0.7, top_k=0, seed=4294967295, stop=[""], n_predict=4)
    ask(client, temperature=-1, top_p=1.0, input_extra=[], n_predict=4)


def test_what_plugins_ask_about_a_server(client: httpx2.Client, trained: Model) -> None:
    assert client.get("/v1/health").json() == {"status": "ok"}
    props = client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == trained.config.max_positions
    slots = client.get("/slots").json()
    assert len(slots) == props["total_slots"]
    assert not any(slot["is_processing"] for slot in slots)
