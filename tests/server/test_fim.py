"""Mercury's routes for editors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from daguerre.decoding.context import room_for, window
from daguerre.model import Model

BEFORE = "import os\n\ndef read(path):\n    with open(path) as f:\n        "
AFTER = "\n    return text\n"
NUM = 12
ASK = {"model": "default", "prompt": BEFORE, "suffix": AFTER, "max_tokens": NUM}


def ask(client: httpx2.Client, **body: Any) -> Any:
    response = client.post("/v1/fim/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chunks(client: httpx2.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_gap_has_the_text_that_the_library_gives(client: httpx2.Client, trained: Model) -> None:
    answer = ask(client, **ASK)
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == trained.infill(BEFORE, AFTER, NUM).text
    assert answer["choices"][0]["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    everything = {"characters": len(BEFORE), "lines": 5, "complete": True}
    assert answer["daguerre"]["shown"]["before"] == everything
    assert answer["daguerre"]["shown"]["max_tokens"] == NUM


def test_a_whole_file_is_shown_around_the_gap(client: httpx2.Client, trained: Model) -> None:
    before = "".join(f"value_{number} = {number}\n" for number in range(400)) + BEFORE
    answer = ask(client, **{**ASK, "prompt": before, "suffix": AFTER * 200, "max_tokens": 4})
    shown = window(trained.tokenizer, before, AFTER * 200, room_for(trained.config, 4))
    assert answer["daguerre"]["shown"]["before"]["characters"] == len(shown.before) < len(before)
    assert answer["daguerre"]["shown"]["after"]["lines"] == shown.shown_after.lines
    assert answer["choices"][0]["text"] == trained.infill(shown.prefix, shown.suffix, 4).text
    assert answer["usage"]["prompt_tokens"] == shown.num_tokens


def test_without_a_suffix_it_is_a_completion(client: httpx2.Client, trained: Model) -> None:
    for suffix in (None, "", "<|endoftext|>"):
        answer = ask(client, model="default", prompt=BEFORE, suffix=suffix, max_tokens=10)
        assert answer["choices"][0]["text"] == trained.generate(BEFORE, 10).text


def test_the_most_tokens_are_bounded_by_the_model(client: httpx2.Client, tiny: Model) -> None:
    answer = ask(client, model="tiny", prompt=BEFORE, max_tokens=8192)
    assert answer["daguerre"]["shown"]["max_tokens"] == tiny.config.max_positions // 2
    assert answer["usage"]["completion_tokens"] <= tiny.config.max_positions // 2
    assert ask(client, **{**ASK, "max_tokens": 512})["daguerre"]["shown"]["max_tokens"] == 48
    own = {"mode": "block"}
    longer = ask(client, **{**ASK, "model": "tiny", "max_tokens": 60, "daguerre": own})
    assert longer["daguerre"]["shown"]["max_tokens"] == 60


def test_a_stop_string_cuts_the_text_that_was_found(client: httpx2.Client, trained: Model) -> None:
    whole = trained.infill(BEFORE, AFTER, NUM).text
    stop = whole[6:9]
    answer = ask(client, **ASK, stop=[stop, "never there"])
    assert answer["choices"][0]["text"] == whole[:6]
    parts = chunks(client, "/v1/fim/completions", {**ASK, "stop": stop, "stream": True})
    assert "".join(part["choices"][0]["text"] for part in parts) == whole[:6]


@pytest.mark.parametrize("options", [{}, {"daguerre": {"mode": "block"}}, {"suffix": ""}, {"temperature": 0.8}])
def test_a_stream_has_the_text_of_the_answer(client: httpx2.Client, options: dict[str, Any]) -> None:
    body = {**ASK, "seed": 3, **options}
    whole = ask(client, **body)
    *parts, last = chunks(
        client, "/v1/fim/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["choices"][0]["text"]
    assert parts[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert parts[-1]["daguerre"] == whole["daguerre"]
    assert all(part["usage"] is None for part in parts)
    assert last["choices"] == [] and last["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


def test_frames_of_the_draft_come_when_they_are_asked_for(client: httpx2.Client) -> None:
    body = {**ASK, "max_tokens": 32, "daguerre": {"mode": "block"}}
    frames = chunks(client, "/v1/fim/completions", {**body, "diffusing": True})
    whole = ask(client, **body)
    assert all(frame["diffusion_meta"]["diffusion_content"] for frame in frames)
    assert [frame["diffusion_meta"]["diffusion_progress"] for frame in frames] == [0.0] * (len(frames) - 1) + [1.0]
    assert len(frames) > 1 and frames[-1]["choices"][0]["text"] == whole["choices"][0]["text"]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/edit/completions", "<|current_file_content|>\nx\n<|/current_file_content|>"),
        (
            "/v1/apply/completions",
            "<|original_code|>\nx\n<|/original_code|>\n<|update_snippet|>\ny\n<|/update_snippet|>",
        ),
    ],
)
def test_what_no_model_was_trained_for_is_said(client: httpx2.Client, path: str, content: str) -> None:
    messages = [{"role": "user", "content": content}]
    response = client.post(path, json={"model": "default", "messages": messages})
    assert response.status_code == 400
    error = response.json()["error"]
    assert "default" in error["message"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "model", "unsupported")
    for wrong in ([], messages * 2, [{"role": "user"}], [{"role": "assistant", "content": "x"}]):
        assert client.post(path, json={"model": "default", "messages": wrong}).status_code == 400
    assert client.post(path, json={"model": "nobody", "messages": messages}).status_code == 404


def test_two_requests_of_one_engine_do_not_mix(client: httpx2.Client, serve: Callable[..., httpx2.Client]) -> None:
    answers = [ask(client, **{**ASK, "n": 2, "temperature": 0.9, "seed": 5}) for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert [choice["index"] for choice in answers[0]["choices"]] == [0, 1]


def test_what_is_shown_and_written_keeps_to_the_operator_s_bounds(serve: Callable[..., httpx2.Client]) -> None:
    client = serve(max_tokens=20, max_context=100)
    for suffix in ("", "\ny = 2\n"):
        answer = ask(client, model="tiny", prompt="x = 1\n" * 500, suffix=suffix)
        assert answer["daguerre"]["shown"]["max_tokens"] == 20
        assert 60 < answer["usage"]["prompt_tokens"] <= 80
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
    assert client.post("/v1/messages", json=body).status_code == 200


def test_no_text_is_too_long_or_too_short(client: httpx2.Client) -> None:
    for prompt in ("x " * 3000, "", "☃" * 2000):
        ask(client, model="default", prompt=prompt, suffix=prompt, max_tokens=4)
