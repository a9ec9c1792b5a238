"""What goes wrong in a server's life: each fault harms its own request alone."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.errors import InputError
from daguerre.http.settings import Settings
from daguerre.model import Model
from daguerre.sampling.constrained import COMPILERS
from daguerre.sampling.constraints import compile as compile_module
from daguerre.sampling.constraints.budget import Budget
from daguerre.server.app import make_app
from daguerre.server.bounds import COMPILING
from daguerre.server.models import ModelPool
from daguerre.server.streams import COMMENT, WAITING, deltas, event_stream, guarded
from server.conftest import running
from server.processes import wait_until

ASK = {"prompt": "def f(", "max_tokens": 4}
JSON = {"content-type": "application/json"}


@contextmanager
def served(model: Model, limits: dict[str, Any] | None = None, **settings: Any) -> Iterator[tuple[FastAPI, str]]:
    """An application with one model, "tiny", and its address."""
    app = make_app(ModelPool({"tiny": lambda: model}, **(limits or {})), Settings(**settings))
    with running(app) as url:
        yield app, url


def ask(url: str, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{url}/v1/completions", json=ASK | body, timeout=60)


def test_once_the_engine_has_died_everybody_is_told_so(tiny: Model, caplog: pytest.LogCaptureFixture) -> None:
    with served(tiny) as (app, url):
        assert ask(url).status_code == 200
        engine, streamed = app.state.pool.get().engine, list[str]()
        stopped, reading = threading.Event(), threading.Event()

        def stream() -> None:
            body = ASK | {"stream": True, "max_tokens": 240, "daguerre": {"mode": "ar", "min_tokens": 240}}
            with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
                for line in response.iter_lines():
                    streamed.append(line)
                    reading.set()

        def die() -> bool:
            stopped.set()
            raise MemoryError("no memory in the engine's own code")

        reader = threading.Thread(target=stream)
        reader.start()
        assert reading.wait(60)
        engine._scheduler._admit = die
        assert stopped.wait(60)
        reader.join(60)
        assert any('"error"' in line and "has stopped" in line for line in streamed), streamed[-3:]
        for _ in range(3):
            refused = ask(url)
            assert refused.status_code == 503 and refused.headers["retry-after"]
        for path in ("ready", "health"):
            response = httpx2.get(f"{url}/{path}")
            assert response.status_code == 503 and response.json() == {"status": "failed", "models": ["tiny"]}
    assert "the engine has stopped" in caplog.text


def test_a_client_that_never_reads_is_cut_off_and_holds_nothing(tiny: Model) -> None:
    sent, ended = [0], threading.Event()

    async def flood() -> AsyncIterator[bytes]:
        try:
            while True:
                sent[0] += 1 << 16
                yield b"x" * (1 << 16)
        finally:
            ended.set()

    async def endless() -> StreamingResponse:
        return event_stream(flood())

    with served(tiny, write_timeout=0.3) as (app, url):
        app.add_api_route("/v1/endless", endless)
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            client.sendall(b"GET /v1/endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert ask(url).status_code == 200
            assert ended.wait(60)
            assert ask(url).status_code == 200
            wait_until(lambda: app.state.num_running == 0)
    assert sent[0] < 32 << 20  # what the system's buffers take


def test_a_stream_that_has_nothing_to_send_says_that_it_is_there(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daguerre.server.streams.SILENCE", 0.01)
    heard, ended = threading.Event(), threading.Event()

    async def silent() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
            await asyncio.to_thread(heard.wait, 60)
            yield b"data: 2\n\n"
            raise InputError("no third")
        finally:
            ended.set()

    async def answer() -> StreamingResponse:
        return event_stream(guarded(silent()))

    with served(tiny) as (app, url):
        app.add_api_route("/v1/silent", answer)
        with httpx2.stream("GET", f"{url}/v1/silent", timeout=60) as response:
            lines = [line for line in _told(response.iter_lines(), heard) if line]
    assert lines[0] == "data: 1" and lines[1] == COMMENT.decode().strip()
    assert [line for line in lines if line != lines[1]][1] == "data: 2" and "no third" in lines[-1]
    assert ended.is_set()


def _told(lines: Iterator[str], heard: threading.Event) -> Iterator[str]:
    """The lines; the first comment is told."""
    for line in lines:
        if line.startswith(":"):
            heard.set()
        yield line


def test_news_that_nobody_reads_are_not_piled_up(tiny: Model) -> None:
    async def read_late(engine: Engine) -> str:
        job = engine.generate("def f(", 100, mode="ar", min_tokens=100)
        news = deltas([job], every=True)
        first = await anext(news)
        while not job.done:  # the engine is done with it, whoever reads
            await asyncio.sleep(0.01)
        held = news.ag_frame.f_locals["queue"].qsize()
        assert held <= WAITING
        return first.text + "".join([delta.text async for delta in news])

    with Engine(tiny) as engine:
        assert asyncio.run(read_late(engine)) == tiny.generate("def f(", 100, mode="ar", min_tokens=100).text


def test_a_request_whose_time_is_up_ends_and_frees_its_place(tiny: Model) -> None:
    with served(tiny, {"max_running": 1}) as (app, url):
        assert ask(url).status_code == 200
        engine, ended = app.state.pool.get().engine, threading.Event()
        bounds, end = engine._bounds, engine._watch._end

        def noted(job: Job, seconds: float) -> None:
            end(job, seconds)
            ended.set()

        engine._watch._end, engine._bounds = noted, lambda: Settings(timeout=0.05)
        engine.call(lambda: ended.wait(60))  # until then the engine's thread stands still
        late = ask(url)
        assert late.status_code == 408 and late.json()["error"]["code"] == "timeout"
        assert "daguerre.timeout" in late.json()["error"]["message"]
        engine._bounds = bounds
        assert ask(url).status_code == 200


def test_a_body_of_10_megabytes_is_refused_whichever_way_it_comes(tiny: Model) -> None:
    body = json.dumps(ASK | {"prompt": "x" * 10_000_000}).encode()
    with served(tiny) as (_, url), httpx2.Client(base_url=url, timeout=60) as client:
        for content in (body, iter([body[at : at + 65536] for at in range(0, len(body), 65536)])):
            try:
                response = client.post("/v1/completions", content=content, headers=JSON)
                assert response.status_code == 413
                assert response.json()["error"]["code"] in ("request_too_large", None)
            except httpx2.TransportError:  # the answer came, and the connection went, while the client still sent
                pass
            assert client.post("/v1/completions", json=ASK).status_code == 200


UNSOUND = (
    b'{"prompt": "\xff\xfe\xfa", "max_tokens": 4}',
    b'{"prompt": "\xed\xa0\x80", "max_tokens": 4}',
    b'{"prompt": "\\ud800", "max_tokens": 4}',
    b'{"prompt": "a", "max_tokens": 4, "stop": ["\\udc00"]}',
    b'{"prompt": "a", "max_tokens": 4, "model": "\\udc00"}',
    b"\x00",
    b"\xef\xbb\xbf{",
    b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"prompt": "a", "response_format": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    b'{"prompt": "a", "daguerre": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
    b'{"prompt": "a", "max_tokens": 1e400}',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "logit_bias": {"9999999999999999999999": 1}}',
    b'{"prompt": [99999999], "max_tokens": 4}',
    b'{"prompt": [-1], "max_tokens": 4}',
    b"[]",
    b"null",
    b"",
)
"""What is no body of a request."""


def test_what_is_no_sound_body_is_refused(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for content in UNSOUND:
        with subtests.test(str(content[:80])):
            sent = content.replace(b'"prompt"', b'"model": "tiny", "prompt"', 1)
            response = client.post("/v1/completions", content=sent, headers=JSON)
            assert response.status_code in (400, 404), response.text
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_headers_and_paths_of_any_bytes_are_answered(tiny: Model) -> None:
    with served(tiny) as (_, url):
        host, port = url.removeprefix("http://").split(":")
        for head in (
            b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: \xff\xfe\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n",
            b"\x00\x01\x02\r\n",
        ):
            with socket.create_connection((host, int(port)), timeout=60) as client:
                client.sendall(head + b"Connection: close\r\n\r\n")
                status = client.recv(1 << 16).split(b" ")[1][:3]
            assert status in (b"200", b"400", b"404"), (head, status)
        assert ask(url).status_code == 200


def while_asking(url: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[int, httpx2.Response]:
    """How many answers /health gave while the engine planned this body, and the answer to it."""
    at_work, done, plan = threading.Event(), threading.Event(), Engine.submit

    def noted(engine: Engine, *values: Any, **more: Any) -> Any:
        at_work.set()
        try:
            return plan(engine, *values, **more)
        finally:
            done.set()

    monkeypatch.setattr(Engine, "submit", noted)
    answers, num = list[httpx2.Response](), 0
    asking = threading.Thread(target=lambda: answers.append(ask(url, **body)))
    asking.start()
    assert at_work.wait(60)
    with httpx2.Client(base_url=url, timeout=60) as client:
        while not done.is_set():
            assert client.get("/health").status_code == 200
            num += not done.is_set()
    asking.join(60)
    return num, answers[0]


@pytest.mark.parametrize("regex", ["(a|b)*a(a|b){20}", "(((a{1,99}){1,99}){1,99}){1,99}"])
def test_a_hostile_pattern_is_refused_and_others_are_answered_meanwhile(
    server: str, regex: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less time for a pattern than it has by default."""
    monkeypatch.setattr(compile_module, "Budget", partial(Budget, seconds=0.3))
    num, response = while_asking(server, {"model": "tiny", "daguerre": {"regex": regex}}, monkeypatch)
    assert response.status_code == 400
    assert "constraint" in response.json()["error"]["message"]
    assert num >= 2


def test_a_pattern_that_is_nested_too_deep_is_refused(client: httpx2.Client) -> None:
    body = ASK | {"model": "tiny", "daguerre": {"regex": "(" * 5000 + ")" * 5000}}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert "pattern" in response.json()["error"]["message"]


def test_hostile_patterns_are_compiled_two_at_a_time(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most, lock, go_on = [0], [0], threading.Lock(), threading.Event()
    compiler = COMPILERS["regex"]

    def counted(*what: Any) -> Any:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        go_on.wait(60)
        with lock:
            at_once[0] -= 1
        return compiler(*what)

    monkeypatch.setitem(COMPILERS, "regex", counted)
    with served(tiny) as (_, url):
        hostile = [{"regex": f"hostile {number}"} for number in range(12)]
        askers = [threading.Thread(target=ask, args=(url,), kwargs={"daguerre": one}) for one in hostile]
        for asker in askers:
            asker.start()
        assert ask(url).status_code == 200  # while all of them wait
        wait_until(lambda: most[0] == COMPILING)
        go_on.set()
        for asker in askers:
            asker.join(60)
    assert most == [COMPILING]


def test_2000_idle_connections_do_not_keep_a_request_waiting(tiny: Model, many_files: Callable[[int], None]) -> None:
    many_files(4200)
    with served(tiny) as (_, url):
        host, port = url.removeprefix("http://").split(":")
        idle = list[socket.socket]()
        try:
            idle += [socket.create_connection((host, int(port)), timeout=60) for _ in range(2000)]
            for one in idle[::2]:  # half of them have begun a request
                one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
            assert ask(url).status_code == 200
        finally:
            for one in idle:
                one.close()


@pytest.fixture
def many_files() -> Iterator[Callable[[int], None]]:
    """many_files(number): allow as many open files in this test, or skip it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def allow(number: int) -> None:
        if soft < number:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
            except (ValueError, OSError):
                pytest.skip("this machine allows too few open files")

    yield allow
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
