"""Bodies with values that nobody expects: every answer is of status 2xx or 4xx, and no fault of the server."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from daguerre.http.errors import ApiError
from daguerre.server.bodies import check_body

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**64, 10**400, 1.5, 1e999, float("nan"), "", "no", "a\0b", "x" * 5000),
    *([], [None], ["a"], [[1]], {}, {"20": True}, {"a": {"a": 1}}),
)
OPTIONS = ("temperature", "top_p", "seed", "n", "stop", "logit_bias", "max_tokens", "stream", "user", "model")
BODIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "/v1/completions": (
        {"prompt": "x", "max_tokens": 2},
        ("prompt", "suffix", "logprobs", "echo", "best_of", *OPTIONS),
    ),
    "/v1/embeddings": ({"input": "x"}, ("input", "encoding_format", "dimensions", "model")),
    "/v1/daguerre/requests": ({"prompt": "x", "max_tokens": 2}, ("prompt", "text", "spans", "options", "max_tokens")),
    "/v1/decisions": ({"state": "x", "questions": []}, ("state", "questions", "context")),
    "/v1/fim/completions": ({"prompt": "x", "max_tokens": 2}, ("prompt", "suffix", "stop", "max_tokens")),
    "/infill": (
        {"input_prefix": "x", "input_suffix": "y", "n_predict": 2},
        ("input_prefix", "input_extra", "n_predict"),
    ),
    "/completion": ({"prompt": "x", "n_predict": 2}, ("prompt", "temperature", "top_k", "seed", "n_predict", "stop")),
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "x"}]}, ("messages", "tools", *OPTIONS)),
    "/v1/messages": (
        {"max_tokens": 2, "messages": [{"role": "user", "content": "x"}]},
        ("messages", "system", "tools"),
    ),
    "/api/chat": (
        {"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 2}},
        ("messages", "tools", "format", "options", "think", "keep_alive", *OPTIONS),
    ),
    "/api/generate": (
        {"prompt": "x", "options": {"num_predict": 2}, "stream": False},
        ("prompt", "suffix", "system", "format", "raw", "images", "context", "template"),
    ),
    "/api/embed": ({"input": "x"}, ("input", "truncate", "dimensions")),
    "/api/embeddings": ({"prompt": "x"}, ("prompt",)),
    "/api/show": ({"model": "tiny"}, ("model", "name")),
    "/api/pull": ({"model": "tiny"}, ("model", "stream")),
    "/v1/responses": ({"input": "x", "max_output_tokens": 2}, ("input", "tools", "instructions", "max_output_tokens")),
}
TEXTS = (
    b"",
    b"null",
    b"[]",
    b"\xff",
    b"[" * 100_000,
    b'{"prompt":' * 50_000,
    b'{"prompt": "\\ud800", "max_tokens": 2}',
)


def sent_to(path: str) -> list[tuple[str, bytes]]:
    """Fields of a path, and bodies with a hostile value for each. Options of sampling share the values among the paths
    that know them; every other field has all of them.
    """
    body, names = BODIES[path]
    out = list[tuple[str, bytes]]()
    for name in names:
        paths = [one for one, (_, known) in BODIES.items() if name in known]
        some = VALUES[paths.index(path) :: len(paths)] if name in OPTIONS and name != "stop" else VALUES
        out += [(name, json.dumps(body | {name: value}).encode()) for value in some]
    return out


OLLAMA_OPTIONS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "num_predict", "stop", "repeat_penalty", "mirostat"),
    *("repeat_last_n", "frequency_penalty", "num_ctx", "nobody"),
)


def test_no_option_of_ollamas_is_a_fault_of_the_server(client: httpx2.Client) -> None:
    body = {"model": "tiny", "prompt": "x", "raw": True, "stream": False}
    for name in OLLAMA_OPTIONS:
        for value in VALUES:
            sent = json.dumps(body | {"options": {"num_predict": 2} | {name: value}})
            answer = client.post("/api/generate", content=sent)
            assert answer.status_code in (200, 400), (name, value, answer.text)
            assert len(answer.text) < 2000, (name, value)


@pytest.mark.parametrize("before", ["1e2", "NaN", str(2**64), "9" * 4_000])
def test_half_a_pair_of_surrogates_is_found_behind_any_number(before: str) -> None:
    with pytest.raises(ApiError, match="half of a pair of surrogates") as caught:
        check_body(b'{"x": 1, "prompt": [%s, "\\ud800"]}' % before.encode())
    assert (caught.value.http_status, caught.value.param) == (400, "prompt")
    check_body(b'{"prompt": [%s, "\\ud83d\\ude00"]}' % before.encode())


@pytest.mark.parametrize("path", BODIES)
def test_no_body_is_a_fault_of_the_server(path: str, server: str) -> None:
    headers = {"content-type": "application/json"}
    with httpx2.Client(base_url=server, timeout=60, headers=headers) as client:
        sent = sent_to(path)
        for name, content in [*sent, *(("text", text) for text in TEXTS)]:
            answer = client.post(path, content=content)
            assert answer.status_code < 500, (name, content[:80], answer.text)
            assert answer.status_code != 404 or name == "model", (name, content[:80], answer.text)
            if answer.status_code >= 400:
                assert "error" in answer.json(), (name, content[:80], answer.text)
                assert len(answer.text) < 2000, (name, content[:80])
