"""What every request passes: ids, keys, limits, errors and the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from daguerre.errors import InputError
from daguerre.http.incoming import MOST_BYTES
from daguerre.http.settings import Keys, hash_of
from server.processes import wait_until

Serve = Callable[..., httpx2.Client]
ASK = {"prompt": "x = 1\n", "max_tokens": 4}


def test_a_completion_and_its_stream_have_the_same_text(client: httpx2.Client) -> None:
    whole = client.post("/v1/completions", json={**ASK, "max_tokens": 12}).json()
    with client.stream("POST", "/v1/completions", json={**ASK, "max_tokens": 12, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    parts = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    assert "".join(part["text"] for part in parts) == whole["choices"][0]["text"]
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [whole["choices"][0]["finish_reason"]]


def test_every_answer_has_an_id_that_the_client_may_choose(client: httpx2.Client) -> None:
    assert client.get("/health").headers["x-request-id"].startswith("req_")
    assert client.get("/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert client.get("/health", headers={"X-Request-Id": "x" * 200}).headers["x-request-id"].startswith("req_")


ERRORS: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/nope", None, 404, "there is no route GET /nope"),
    ("GET", "/v1/completions", None, 405, "Method Not Allowed"),
    ("POST", "/v1/completions", {"prompt": 5}, 400, "prompt"),
    ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    ("POST", "/v1/completions", {"prompt": "x", "model": "gpt"}, 404, "ask for one of default, tiny"),
    ("POST", "/v1/completions", {"prompt": "x", "daguerre": {"mod": "ar"}}, 400, "daguerre.mod"),
    ("POST", "/v1/completions", {"prompt": "x", "daguerre": {"mode": "blok"}}, 400, "did you mean 'block'"),
    ("POST", "/v1/completions", {"prompt": "x " * 9000}, 400, "positions"),
]
"""Requests, the status of their answer, and what it says."""


def test_errors_are_openai_s_object(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for method, path, body, status, says in ERRORS:
        with subtests.test(says, path=path):
            response = client.request(method, path, json=body)
            assert response.status_code == status
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert says in error["message"]


def test_a_body_that_is_not_json_is_refused(client: httpx2.Client) -> None:
    for content in (b"{", b"\xff\xfe", b"[" * 100_000, b""):
        response = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_only_known_keys_are_let_in(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the team\n{hash_of('sk-one')} ana\n\n{hash_of('sk-two').upper()}\n")
    client = serve(keys=Keys.read(file, "sk-three"))
    for key, status in (("sk-one", 200), ("sk-two", 200), ("sk-three", 200), ("sk-four", 401)):
        headers = {"Authorization": f"Bearer {key}"}
        assert client.post("/v1/completions", json=ASK, headers=headers).status_code == status
    assert client.post("/v1/completions", json=ASK, headers={"x-api-key": "sk-one"}).status_code == 200
    assert client.get("/v1/models").status_code == 401
    assert client.get("/health").status_code == client.get("/metrics").status_code == 200
    file.write_text("sk-plain\n")
    with pytest.raises(InputError, match=r"line 1 .* has no SHA-256 hash"):
        Keys.read(file, None)


def test_a_key_may_ask_so_often_and_no_more(serve: Serve) -> None:
    client = serve(requests_per_minute=2)
    assert [client.post("/v1/completions", json=ASK).status_code for _ in range(3)] == [200, 200, 429]
    refused = client.post("/v1/completions", json=ASK)
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"


def test_a_large_body_is_refused_whether_its_length_is_said_or_not(serve: Serve) -> None:
    client = serve(max_body=2000)
    large = json.dumps({"prompt": "x" * 5000}).encode()
    assert client.post("/v1/completions", content=large).status_code == 413

    def parts() -> object:
        for start in range(0, len(large), 500):
            yield large[start : start + 500]

    response = client.post("/v1/completions", content=parts(), headers={"content-type": "application/json"})  # type: ignore[arg-type]
    assert response.status_code == 413
    assert "2000 bytes" in response.json()["error"]["message"]


def test_a_body_may_be_as_large_as_an_operator_says(serve: Serve) -> None:
    """Also where that is more than all bodies on their way may have otherwise."""
    most = MOST_BYTES + (1 << 20)
    content, headers = json.dumps(ASK).encode().rjust(most), {"content-type": "application/json"}
    client = serve(max_body=most)
    assert client.post("/v1/completions", content=content, headers=headers).status_code == 200


def test_the_log_has_no_text(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    client = serve()
    with caplog.at_level(logging.INFO, "daguerre.access"):
        client.post("/v1/completions", json={"prompt": "a secret", "max_tokens": 3}, headers={"X-Request-Id": "q1"})
        wait_until(lambda: any(record.name == "daguerre.access" for record in caplog.records))  # after the answer
    (line,) = [json.loads(record.message) for record in caplog.records if record.name == "daguerre.access"]
    assert (line["id"], line["path"], line["status"]) == ("q1", "/v1/completions", 200)
    assert "secret" not in json.dumps(line)
