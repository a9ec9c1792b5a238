"""`daguerre serve` as its users start and stop it: a process, real sockets, real signals."""

from __future__ import annotations

import builtins
import hashlib
import json
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from commands import Running
from daguerre.cli import app
from daguerre.commands.serving import need_serve
from daguerre.errors import InputError, MissingExtra
from daguerre.http.settings import hash_of
from server.processes import Serving, run, wait_until

LONG = {"prompt": "def add(a, b):\n", "max_tokens": 600, "stream": True, "daguerre": {"mode": "ar", "min_tokens": 600}}
SHORT = {"prompt": "def add(a, b):\n", "max_tokens": 4}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    """A server with bounds and a key, whose log has texts."""
    bounds = ("--max-tokens", "950", "--max-context", "1000", "--max-schema", "500", "--timeout", "30")
    key = {"DAGUERRE_API_KEYS": "sk-test"}
    with Serving("--model", "small=default", "--log-text", *bounds, environment=key) as one:
        one.client.headers["authorization"] = "Bearer sk-test"
        yield one


BOUNDS: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({}, 200, None, ""),
    ({"max_tokens": 951}, 400, "max_tokens", "at most 950"),
    ({"prompt": "word " * 503}, 400, "prompt", "of at most 1000 on this server"),
    ({"prompt": "word " * 5000}, 400, "prompt", "shorten the text"),
    ({"daguerre": {"timeout": 31}}, 400, "daguerre.timeout", "at most 30 seconds"),
    ({"daguerre": {"choices": ["x" * 500]}}, 413, "daguerre.choices", "of at most 500"),
    ({"response_format": {"type": "text", "more": "x" * 500}}, 413, "response_format", "of at most 500"),
    ({"prompt": "\ud800"}, 400, "prompt", "surrogate"),
    ({"model": "other"}, 404, None, "small"),
]
"""Changes of a request, the status of its answer, the field that is named, and what is said of it."""


def test_what_is_beyond_the_bounds_is_refused_by_the_name_of_its_field(
    serving: Serving, subtests: pytest.Subtests
) -> None:
    for change, status, param, says in BOUNDS:
        with subtests.test(says, change=change):
            response = serving.client.post("/v1/completions", content=json.dumps(SHORT | change), headers=JSON)
            assert response.status_code == status, response.text
            if status != 200:
                assert response.json()["error"]["param"] == param
                assert says in response.json()["error"]["message"]


def test_no_site_may_ask_from_a_browser_unless_it_is_named(serving: Serving) -> None:
    asked = {"origin": "https://example.com", "access-control-request-method": "POST"}
    for response in (
        serving.client.options("/v1/completions", headers=asked),
        serving.client.get("/v1/models", headers={"origin": "https://example.com"}),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_pages_of_a_site_that_is_named_may_ask(serve: Callable[..., httpx2.Client]) -> None:
    client = serve(origins=("https://good.example",))
    for site, allowed in (("https://good.example", "https://good.example"), ("https://bad.example", None)):
        asked = {"origin": site, "access-control-request-method": "POST"}
        assert client.options("/v1/completions", headers=asked).headers.get("access-control-allow-origin") == allowed
        answered = client.get("/v1/models", headers={"origin": site})
        assert answered.headers.get("access-control-allow-origin") == allowed


def test_it_listens_on_this_machine_alone(serving: Serving) -> None:
    assert serving.url.startswith("http://127.0.0.1:")


def test_it_drains_and_ends_with_status_0_and_its_log_is_whole(serving: Serving) -> None:
    """The last test of this server."""
    client = serving.client
    with client.stream("POST", "/v1/completions", json=LONG) as response:
        chunks = response.iter_lines()
        next(chunks)
        serving.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx2.get(f"{serving.url}/ready").status_code == 503)
        assert httpx2.get(f"{serving.url}/ready").json() == {"status": "draining"}
        assert httpx2.get(f"{serving.url}/health").status_code == 200
        refused = httpx2.post(f"{serving.url}/v1/completions", json=SHORT, headers=client.headers)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        assert refused.headers["retry-after"] and refused.headers["connection"] == "close"
        rest = [line for line in chunks if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert serving.process.wait(60) == 0
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(serving.url)
    log = serving.log()
    done = [line for line in log if line.get("status") == 200 and line.get("path") == "/v1/completions"]
    assert "def add" in done[0]["request"] and '"text"' in done[0]["answer"]
    assert done[-1]["stream"] is True and done[-1]["key"] == f"key {hash_of('sk-test')[:8]}"
    assert {"time", "id", "method", "path", "status", "seconds"} <= set(done[0])
    assert "sk-test" not in json.dumps(log)


def test_a_second_signal_ends_it_at_once() -> None:
    with (
        Serving(forked=True) as serving,
        serving.client.stream("POST", "/v1/completions", json=LONG | {"n": 8}) as response,
    ):
        chunks = response.iter_lines()  # held, or the client would go away
        next(chunks)
        serving.process.send_signal(signal.SIGINT)
        wait_until(lambda: httpx2.get(f"{serving.url}/ready").status_code == 503)
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(60) == 128 + signal.SIGTERM


def test_a_full_disk_for_the_log_breaks_no_answers_and_a_drain_has_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open("/dev/full", "w") as full:
        process = Running(("serve", "--port", str(port), "--drain", "0.2"), (full.fileno(),) * 3)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url))
        assert httpx2.post(f"{url}/v1/completions", json=SHORT, timeout=60).status_code == 200
        assert httpx2.post(f"{url}/v1/completions", content=b"{", timeout=60).status_code == 400
        with httpx2.stream("POST", f"{url}/v1/completions", json=LONG | {"n": 8}, timeout=60) as response:
            chunks = response.iter_lines()
            next(chunks)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in chunks if line]
        assert json.loads(rest[-1][6:])["error"]["message"].startswith("the engine was closed")
        assert process.wait(60) == 0
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)


def test_a_taken_port_is_one_line_and_is_found_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "--port", str(taken.getsockname()[1]), "--model", "none/such")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "choose another --port" in done.stderr


def test_the_hash_of_a_key_is_printed_and_the_key_is_not() -> None:
    ask = CliRunner()
    done = ask.invoke(app, ["serve", "--hash-key"], input="sk-secret\n")
    assert done.stdout == hashlib.sha256(b"sk-secret").hexdigest() + "\n"
    assert isinstance(ask.invoke(app, ["serve", "--hash-key"], input="\n").exception, InputError)
    assert ask.invoke(app, ["serve", "--drain", "-1"]).exit_code == 2


def test_without_the_extra_the_message_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def hide(name: str, *more: Any, **named: Any) -> Any:
        if name == "uvicorn":
            raise ImportError(name)
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", hide)
    with pytest.raises(MissingExtra, match=r"pip install 'daguerre\[serve\]'"):
        need_serve()


def answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/ready").status_code == 200
    except httpx2.TransportError:
        return False
