"""The proxy over real sockets: what passes, what is tried again, what is never sent twice, and what the log says."""

from __future__ import annotations

import asyncio
import atexit
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import ClientDisconnect

from daguerre.errors import InputError
from daguerre.router import proxy, routed_request
from daguerre.router.app import make_app, make_router
from daguerre.router.attempts import Opened
from daguerre.router.log import replay
from daguerre.router.proxy import WholeResponse
from daguerre.router.replies import EventCheck
from daguerre.router.store import Store
from daguerre.router.upstream import Upstreams, merged, seconds_of
from routing import config
from scripted_backends import Reply, Scripted, answer, events, scripted
from server.conftest import running
from server.processes import wait_until

SAY = {"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}


class Log(list[dict[str, Any]]):
    """The lines of a router, and a file of them."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def append(self, line: dict[str, Any]) -> None:
        with self._changed:
            super().append(line)
            self._changed.notify_all()

    def of_requests(self, num: int = 1) -> list[dict[str, Any]]:
        """Those of requests, once there are so many."""
        return self.having("decision", num)

    def having(self, name: str, num: int) -> list[dict[str, Any]]:
        """Those with a field, once there are so many."""
        with self._changed:
            found = list[dict[str, Any]]()

            def enough() -> bool:
                found[:] = [line for line in self if name in line]
                return len(found) >= num

            assert self._changed.wait_for(enough, 60), f"{len(found)} lines of {num}"
            return found

    def write(self, path: Path) -> Path:
        path.write_text("".join(json.dumps(line) + "\n" for line in self))
        return path


@contextmanager
def routed(*backends: Scripted, store: Store | None = None, each: Any = None, **more: Any) -> Iterator[tuple[str, Log]]:
    """A router in front of backends "a", "b" and so on, of which each costs more than the one before it."""
    log, step = Log(), more.pop("step", "plan")
    with scripted(*backends):
        given = [
            {"name": "abc"[place], "url": one.url, "model": f"model-{place}", "price": {"request": place / 100}}
            | {"operations": ["chat", "completions", "responses", "embeddings", "fim", "edit", "decisions"]}
            | {"needs": ["tools", "schema", "strict_schema", "suffix", "daguerre"], "timeout": 1.0}
            | (each or {}).get("abc"[place], {})
            for place, one in enumerate(backends)
        ]
        router_store = store or Store(None)
        router = make_router(config(*given, **more), router_store, lambda reading, body: {step: 1.0}, log.append)
        with running(make_app(router, router_store, log.append)) as url:
            yield url, log


@cache
def client() -> httpx2.Client:
    """One for all routers of this process, whose connections stay open."""
    one = httpx2.Client(timeout=60)
    atexit.register(one.close)
    return one


def ask(url: str, body: dict[str, Any] = SAY, path: str = "/v1/chat/completions", **headers: str) -> httpx2.Response:
    return client().post(url + path, json=body, headers=headers)


def get(url: str, **headers: str) -> httpx2.Response:
    return client().get(url, headers=headers)


def gated(chunks: Iterable[bytes], go: threading.Event) -> Iterator[bytes]:
    """A stream whose first chunk comes at once, and all others when `go` is set. Meanwhile its backend stands still."""
    for place, chunk in enumerate(chunks):
        assert not place or go.wait(60)
        yield chunk


@dataclass
class Held(Scripted):
    """A backend that sends nothing before `may` says so."""

    may: Callable[[], bool] = field(default=lambda: True)

    async def _one(self, reader: asyncio.StreamReader, writer: Any) -> bool:
        return await super()._one(reader, Late(writer, self.may))  # type: ignore[arg-type]


class Late:
    """What a backend writes with, which keeps all until `may` says that it may go."""

    def __init__(self, writer: Any, may: Callable[[], bool]) -> None:
        self._writer, self._may, self._kept = writer, may, list[bytes]()

    def write(self, data: bytes) -> None:
        self._kept.append(data)

    async def drain(self) -> None:
        while not self._may():
            await asyncio.sleep(0.005)
        self._writer.write(b"".join(self._kept))
        self._kept.clear()
        await self._writer.drain()


def test_an_answer_passes_with_what_was_decided_in_its_headers() -> None:
    one, two = Scripted(), Scripted()
    with routed(one, two, each={"a": {"body": {"daguerre": {"mode": "ar"}, "seed": 3}}}) as (url, log):
        body = SAY | {"seed": 1, "daguerre": {"steps": 4}}
        found = ask(url, body, authorization="Bearer of-the-client", cookie="c=1", **{"x-route-note": "n"})
    assert found.status_code == 200 and found.content == answer()
    assert (found.headers["x-route-backend"], found.headers["x-route-step"]) == ("a", "plan")
    assert found.headers["x-route-reason"].startswith("it costs least")
    assert one.asked == [body | {"model": "model-0", "seed": 3, "daguerre": {"steps": 4, "mode": "ar"}}]
    assert one.paths == ["/v1/chat/completions"] and not two.asked
    assert not {"authorization", "cookie", "x-route-note"} & one.headers[0].keys()
    (line,) = log.of_requests()
    assert (line["id"], line["status"], line["cost"]) == (found.headers["x-route-id"], 200, 0.0)
    assert line["tokens"] == {"input": 7, "output": 3, "counted": True}
    assert [each["backend"] for each in line["attempts"]] == ["a"]
    assert "hello" not in json.dumps(line) and "Say" not in json.dumps(line)


def test_headers_of_one_hop_reach_no_backend() -> None:
    hop = {
        "connection": "keep-alive, x-hop",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "trailer": "x-after",
        "proxy-authorization": "Basic c2VjcmV0",
        "proxy-connection": "keep-alive",
        "x-hop": "1",
    }
    one = Scripted()
    with routed(one) as (url, _):
        for stream in (False, True):
            assert ask(url, SAY | {"stream": stream}, traceparent="00-1-2-01", **hop).status_code == 200
    for headers in one.headers:
        assert headers["traceparent"] == "00-1-2-01"
        assert not hop.keys() & headers.keys()


def test_every_route_goes_to_its_own_path() -> None:
    one = Scripted()
    paths = ["chat/completions", "completions", "responses", "embeddings", "fim/completions", "edit/completions"]
    with routed(one) as (url, _):
        for path in [*paths, "decisions"]:
            assert ask(url, {"model": "x"}, f"/v1/{path}").status_code == 200, path
        assert ask(url, {}, "/v1/audio").status_code == 404
        models = get(f"{url}/v1/models").json()["data"]
    assert one.paths == [f"/v1/{path}" for path in [*paths, "decisions"]]
    assert [each["id"] for each in models] == ["auto"]


def test_a_model_is_found_by_its_name_and_no_other_is() -> None:
    with routed(Scripted(), Scripted(), overrides=["backend"]) as (url, _):
        for name in ("auto", "a", "b"):
            found = get(f"{url}/v1/models/{name}")
            assert found.status_code == 200
            assert found.json() == {"id": name, "object": "model", "created": 0, "owned_by": "daguerre"}
        listed = get(f"{url}/v1/models").json()
        assert [get(f"{url}/v1/models/{each['id']}").json() for each in listed["data"]] == listed["data"]
        for name in ("c", "org/model", "A"):
            found = get(f"{url}/v1/models/{name}")
            said = found.json()["error"]
            assert found.status_code == 404 and repr(name) in said.pop("message")
            assert said == {"type": "not_found_error", "param": "model", "code": "model_not_found"}
    with routed(Scripted()) as (url, _):
        assert get(f"{url}/v1/models/a").status_code == 404, "the name is no wish that is allowed here"


def test_a_model_that_is_the_name_of_a_backend_is_a_wish_for_it_or_refused() -> None:
    one, two = Scripted(), Scripted()
    with routed(one, two, overrides=["backend"]) as (url, _):
        models = get(f"{url}/v1/models").json()["data"]
        found = [ask(url, SAY | {"model": name}).headers["x-route-backend"] for name in ("b", "gpt-5", "auto", "a")]
    assert [each["id"] for each in models] == ["auto", "a", "b"] and found == ["b", "a", "a", "a"]
    with routed(one, two) as (url, _):
        assert ask(url, SAY | {"model": "gpt-5"}).headers["x-route-backend"] == "a"
        refusal = ask(url, SAY | {"model": "b"})
    assert refusal.status_code == 400 and "send auto" in refusal.json()["error"]["message"]


def test_a_stream_passes_chunk_for_chunk_as_it_comes() -> None:
    chunks = events("Hel", "lo", "é".encode().decode())
    read = [threading.Event() for _ in chunks]

    def each() -> Iterator[bytes]:
        for place, chunk in enumerate(chunks):
            assert not place or read[place - 1].wait(60), "the client has no chunk before the next one is sent"
            yield chunk

    one = Scripted(reply=lambda body: Reply(stream=each()))  # type: ignore[arg-type]
    with (
        routed(one, each={"a": {"timeout": 60}}) as (url, log),
        client().stream("POST", f"{url}/v1/chat/completions", json=SAY | {"stream": True}) as found,
    ):
        assert found.headers["content-type"].startswith("text/event-stream")
        got = b""
        for chunk in found.iter_raw():
            got += chunk
            for place, event in enumerate(read):
                if got.startswith(b"".join(chunks[: place + 1])):
                    event.set()
    assert got == b"".join(chunks)
    (line,) = log.of_requests()
    assert line["finish"] == "stop" and line["tokens"]["output"] == 3
    (attempt,) = line["attempts"]
    assert attempt["first_ms"] < attempt["ms"] and attempt["bytes"] == len(got)


FAULTS: dict[str, Reply] = {
    "status 500": Reply(500, b'{"error": {}}'),
    "status 429": Reply(429, b"{}"),
    "status 401": Reply(401, b"{}"),
    "no JSON": Reply(body=b'{"id": '),
    "no UTF-8": Reply(body=b'{"id": "\xff"}'),
    "an early end": Reply(body=b"", ends="reset", headers={"content-length": "10"}),
    "a stall": Reply(body=b"", ends="stall"),
}
BROKEN: dict[str, Reply] = {
    "status 503": Reply(503, b"{}"),
    "no event": Reply(stream=[]),
    "an event that is no JSON": Reply(stream=[b"data: {oh\n\n"]),
    "text that is no UTF-8": Reply(stream=[b"data: \xff\xfe\n\n"]),
}


def test_before_the_first_byte_another_backend_has_the_request(subtests: pytest.Subtests) -> None:
    some = [(name, reply, False) for name, reply in FAULTS.items()]
    some += [(name, reply, True) for name, reply in BROKEN.items()]
    for name, reply, stream in some:
        with subtests.test(name, stream=stream):
            one = Scripted(reply=lambda body, reply=reply: reply)
            two = Scripted(reply=lambda body, stream=stream: Reply(stream=events("hi")) if stream else Reply())
            waits = {"a": {"timeout": 0.2 if reply.ends == "stall" else 60}, "b": {"timeout": 60}}
            with routed(one, two, each=waits) as (url, log):
                found = ask(url, SAY | {"stream": stream})
            assert found.status_code == 200 and found.headers["x-route-backend"] == "b"
            assert found.content == (b"".join(events("hi")) if stream else answer())
            assert len(one.asked) == len(two.asked) == 1
            (line,) = log.of_requests()
            assert [each["backend"] for each in line["attempts"]] == ["a", "b"]
            assert line["attempts"][0]["error"] in ("status", "body", "broken", "timeout")


def test_a_backend_that_is_not_there_is_passed_over_and_then_left_alone() -> None:
    dead = {"a": {"url": "http://127.0.0.1:9/v1"}}
    with routed(Scripted(), Scripted(), each=dead, circuit={"cool": 60.0}) as (url, log):
        for _ in range(5):
            assert ask(url).headers["x-route-backend"] == "b"
        lines = log.of_requests(5)
    assert [[each["backend"] for each in line["attempts"]] for line in lines] == [["a", "b"]] * 3 + [["b"]] * 2
    assert lines[-1]["decision"]["candidates"][0]["excluded"] == "its circuit is open"


def test_what_the_client_did_wrong_is_not_sent_again() -> None:
    said = b'{"error": {"message": "temperature is wrong"}}'
    one, two = Scripted(reply=lambda body: Reply(400, said)), Scripted()
    with routed(one, two) as (url, _):
        found = ask(url)
    assert (found.status_code, found.content) == (400, said) and not two.asked


def test_where_all_fail_the_client_has_one_error_that_says_so() -> None:
    one, two = (Scripted(reply=lambda body: Reply(500, b"{}")) for _ in range(2))
    with routed(one, two) as (url, log):
        found = ask(url)
    said = found.json()["error"]["message"]
    assert found.status_code == 502 and "a answered with status 500" in said and "b answered with status 500" in said
    assert log.of_requests()[0]["status"] == 502


@pytest.mark.parametrize("attempts", [1, 3])
def test_attempts_are_as_many_as_the_configuration_says(attempts: int) -> None:
    one, two = (Scripted(reply=lambda body: Reply(500, b"{}")) for _ in range(2))
    retry = {"attempts": attempts, "backoff": 0.0}
    with routed(one, two, retry=retry, circuit={"failures": 9}) as (url, log):
        assert ask(url).status_code == 502
        assert len(log.of_requests()[0]["attempts"]) == min(attempts, 2)
    with routed(one, retry=retry, circuit={"failures": 9}) as (url, log):
        ask(url)
        assert len(log.of_requests()[0]["attempts"]) == min(attempts, 2)


@pytest.mark.parametrize("date", [False, True], ids=["seconds", "date"])
def test_the_client_hears_when_a_backend_may_be_asked_again(date: bool) -> None:
    after = formatdate(time.time() + 60, usegmt=True) if date else "60"
    one = Scripted(reply=lambda body: Reply(429, b"{}", headers={"retry-after": after}))
    with routed(one) as (url, _):
        first, then = ask(url), ask(url)
    assert (first.status_code, then.status_code) == (429, 503) and len(one.asked) == 1
    assert all(30 <= int(found.headers["retry-after"]) <= 60 for found in (first, then)), "more than the breaker's own"


def test_a_retry_after_is_a_number_or_a_date() -> None:
    given = {"7": 7.0, "": None, "soon": None, "-1": None, "٣": None}
    assert {text: seconds_of(text, 0.0) for text in given} == given
    assert seconds_of("Thu, 01 Jan 1970 00:01:00 GMT", 45.0) == 15.0
    assert seconds_of("Thu, 01 Jan 1970 00:01:00 GMT", 90.0) == 0.0


def test_a_backends_key_reaches_it_and_is_nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-of-b\n")
    monkeypatch.setenv("KEY_OF_A", "sk-of-a")
    one, two = Scripted(reply=lambda body: Reply(500, b"{}")), Scripted()
    keys = {"a": {"key_env": "KEY_OF_A"}, "b": {"key_file": str(tmp_path / "key")}}
    with routed(one, two, each=keys) as (url, log):
        found = ask(url)
        page = get(f"{url}/status").text + get(f"{url}/metrics").text
    assert [each.headers[0]["authorization"] for each in (one, two)] == ["Bearer sk-of-a", "Bearer sk-of-b"]
    assert "sk-of" not in json.dumps(log) + page + found.text + str(found.headers)
    monkeypatch.delenv("KEY_OF_A")
    with pytest.raises(InputError, match="KEY_OF_A"), routed(one, each=keys):
        pass


def test_a_backend_cannot_send_the_router_elsewhere() -> None:
    inner = Scripted()
    with scripted(inner):
        to = {"location": f"{inner.url}/chat/completions"}
        outer = Scripted(reply=lambda body: Reply(307, b"{}", headers=to))
        with routed(outer) as (url, _):
            found = ask(url)
    assert not inner.asked and "location" not in found.headers


def test_a_body_that_is_too_large_is_refused() -> None:
    one = Scripted()
    with routed(one, server={"most_body": 1000}) as (url, _):
        assert ask(url, SAY | {"user": "u" * 2000}).status_code == 413
        text = json.dumps(SAY | {"user": "u" * 2000}).encode()
        found = client().post(f"{url}/v1/chat/completions", content=iter([text[:500], text[500:]]))  # without a length
        assert found.status_code == 413 and "1000 bytes" in found.json()["error"]["message"]
    assert not one.asked


def test_a_single_backend_is_asked_once_more() -> None:
    replies = iter([Reply(503, b"{}"), Reply()])
    one = Scripted(reply=lambda body: next(replies))
    with routed(one) as (url, _):
        assert ask(url).status_code == 200
    assert len(one.asked) == 2


@pytest.mark.parametrize("ends", ["reset", "stall", "well"])
def test_after_the_first_byte_nothing_is_sent_again_and_the_stream_ends_with_an_error(ends: str) -> None:
    chunks = events("one", "two", done=False)[:2]
    one, two = Scripted(reply=lambda body: Reply(stream=chunks, ends=ends)), Scripted()
    with routed(one, two) as (url, log):
        found = ask(url, SAY | {"stream": True})
    assert found.status_code == 200 and not two.asked
    *whole, last = found.content.split(b"\n\n")[:-1]
    assert [each for each in whole if each] == [chunk.strip() for chunk in chunks]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["code"] == "backend_failed" and error["message"].startswith("a ")
    (line,) = log.of_requests()
    assert line["status"] == 502 and len(line["attempts"]) == 1


def test_a_stream_is_whole_without_a_blank_line_at_its_end_and_cut_off_with_half_of_its_choices() -> None:
    ended, whole = b"data: [DONE]\n", events("one", "two", done=False)
    one = Scripted(reply=lambda body: Reply(stream=[*(whole[:2] if body.get("n") is None else whole), ended]))
    with routed(one) as (url, log):
        found = ask(url, SAY | {"stream": True})
        assert found.content == b"".join(whole[:2]) + ended + b"\n"
        ended = b": cut off"
        found = ask(url, SAY | {"stream": True, "n": 2})
        assert found.content.startswith(b"".join(whole)) and b"backend_failed" in found.content
        assert [line["status"] for line in log.of_requests(2)] == [200, 502]


def test_rubbish_in_the_middle_of_a_stream_is_an_error_to_the_client() -> None:
    for rubbish in (b"data: \xc3\x28\n\n", b"data: {not json}\n\n"):
        go, first, got = threading.Event(), events("one", done=False)[0], b""
        one = Scripted(reply=lambda body, r=rubbish, f=first, g=go: Reply(stream=gated([f, r], g)))  # type: ignore[arg-type]
        with (
            routed(one, Scripted(), each={"a": {"timeout": 60}}) as (url, _),
            client().stream("POST", f"{url}/v1/chat/completions", json=SAY | {"stream": True}) as found,
        ):
            for chunk in found.iter_raw():
                got += chunk
                go.set()
        assert got.startswith(first) and rubbish not in got and b"backend_failed" in got


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_ends_the_request_to_the_backend(stream: bool) -> None:
    begun = Reply(stream=events("a", done=False)[:1], ends="stall") if stream else Reply(body=b"", ends="stall")
    one, two = Scripted(reply=lambda body: begun), Scripted()
    with routed(one, two, each={"a": {"timeout": 60}}) as (url, log):

        async def leave() -> None:
            got = list[bytes]()
            async with httpx2.AsyncClient() as client:
                asking = client.stream("POST", f"{url}/v1/chat/completions", json=SAY | {"stream": stream}, timeout=60)

                async def read() -> None:
                    async with asking as found:
                        async for chunk in found.aiter_raw():
                            got.append(chunk)

                task = asyncio.ensure_future(read())
                while not (task.done() or (got if stream else one.asked)):
                    await asyncio.sleep(0.005)
                task.cancel()
                await asyncio.wait({task})

        asyncio.run(leave())
        wait_until(lambda: one.num_left > 0)
        (line,) = log.of_requests()
    assert one.num_left == 1 and not two.asked
    assert line["status"] == 499
    assert "error" not in line["attempts"][0], "a client that leaves says nothing about the backend"


def test_a_client_that_is_gone_before_the_first_chunk_leaves_nothing_open() -> None:
    """The answer cannot even begin, so nobody reads the chunks that would close the backend's connection."""
    one, log, store = Scripted(reply=lambda body: Reply(stream=events("a", "b"), ends="stall")), Log(), Store(None)
    body = json.dumps(SAY | {"stream": True}).encode()

    async def gone(router: proxy.Router) -> int:
        app = make_app(router, store, log.append)
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"", "root_path": "",
                 "query_string": b"", "headers": [], "http_version": "1.1", "scheme": "http", "server": ("h", 1),
                 "client": ("h", 2), "asgi": {"version": "3.0", "spec_version": "2.4"}, "app": app}  # fmt: skip
        messages, left = iter([{"type": "http.request", "body": body, "more_body": False}]), asyncio.Event()

        async def receive() -> Any:
            for message in messages:
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            left.set()
            raise OSError("the client is gone")

        with pytest.raises((OSError, ClientDisconnect)):
            await app(scope, receive, send)
        return router.upstreams["a"].in_flight

    with scripted(one):
        backend = {"name": "a", "url": one.url, "model": "m", "timeout": 5}
        router = make_router(config(backend), store, lambda reading, body: {"plan": 1.0}, log.append)
        assert asyncio.run(gone(router)) == 0
    assert len(one.asked) == 1
    assert [line["status"] for line in log if "decision" in line] == [499]


@pytest.mark.parametrize("error", [TimeoutError, ConnectionResetError, ValueError])
def test_what_fails_with_an_answer_that_has_begun_is_not_the_backends_failure(error: type[Exception]) -> None:
    """A client that takes too long, say: only what fails in asking a backend, and in reading, opens its circuit."""
    one = Scripted(reply=lambda body: Reply(stream=events("a", "b")))

    async def failing(upstreams: Upstreams) -> None:
        try:
            async with upstreams.ask("a", "/chat/completions", SAY, {}) as reply:
                async for _ in reply.chunks:
                    raise error("here")
        finally:
            await upstreams.close()

    with scripted(one):
        upstreams = Upstreams(config({"name": "a", "url": one.url, "model": "m"}, circuit={"failures": 1}))
        with pytest.raises(error, match="here"):
            asyncio.run(failing(upstreams))
    assert upstreams["a"].circuit.state(time.monotonic()) == "closed"


def test_a_conversation_with_an_open_tool_call_stays_with_its_backend() -> None:
    call = {"id": "call_7", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    dear = Scripted(reply=lambda body: Reply(body=answer(None, tool_calls=[call])))  # type: ignore[arg-type]
    cheap, store = Scripted(), Store(None)
    wish = {"overrides": ["backend"]}
    with routed(cheap, dear, store=store, **wish) as (url, log):
        first = ask(url, SAY, **{"x-route-backend": "b"})
        assert first.headers["x-route-backend"] == "b"
        turns = [*SAY["messages"], first.json()["choices"][0]["message"]]  # type: ignore[has-type]
        result = {"role": "tool", "tool_call_id": "call_7", "content": "4"}
        second = ask(url, SAY | {"messages": [*turns, result]})
        assert second.headers["x-route-backend"] == "b"
        third = ask(url, SAY | {"messages": [*turns, result, {"role": "user", "content": "Thanks."}]})
        assert third.headers["x-route-backend"] == "a", "the tool call is closed"
        rules = [line["decision"]["rule"] for line in log.of_requests(3)]
    assert rules == ["wish", "conversation", "cost"]


def test_streamed_tool_calls_and_responses_bind_too() -> None:
    delta = {"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "call_s", "function": {"name": "f"}}]}}
    stream = [f"data: {json.dumps({'choices': [delta]})}\n\n".encode(), *events("x")]
    made = {"id": "resp_1", "object": "response", "output": [{"type": "function_call", "call_id": "call_r"}]}
    store = Store(None)
    with routed(Scripted(reply=lambda body: Reply(stream=stream)), store=store) as (url, _):
        ask(url, SAY | {"stream": True})
        assert routed_request.call_ids("chat", {"messages": [{"role": "tool", "tool_call_id": "call_s"}]}) == ["call_s"]
    store = Store(None)
    with routed(Scripted(reply=lambda body: Reply(body=json.dumps(made).encode())), store=store) as (url, log):
        ask(url, {"input": "hi"}, "/v1/responses")
        for body in ({"previous_response_id": "resp_1", "input": "more"},
                     {"input": [{"type": "function_call_output", "call_id": "call_r", "output": "1"}]}):  # fmt: skip
            ask(url, body, "/v1/responses")
        rules = [line["decision"]["rule"] for line in log.of_requests(3)]
    assert rules == ["only", "conversation", "conversation"]


def test_a_log_decides_again_as_it_did(tmp_path: Path) -> None:
    flaky = iter(range(1000))
    one = Scripted(reply=lambda body: Reply(500, b"{}") if next(flaky) % 4 == 0 else Reply())
    two, three = Scripted(), Scripted()
    with routed(one, two, three, explore={"share": 0.4}, steps={"plan": {"slo_ms": 5000}}) as (url, log):
        for number in range(40):
            assert ask(url, SAY | {"max_tokens": 10 + number, "stream": False}).status_code == 200
        log.of_requests(40)
    path = log.write(tmp_path / "log.jsonl")
    found = replay(path)
    assert (found.decisions, found.differing, found.cut_off) == (40, (), 0)
    assert {line["decision"]["rule"] for line in log if "decision" in line} >= {"cost", "explore"}
    changed = path.read_text().replace('"in_flight": 0', '"in_flight": 64')
    path.write_text(changed)
    assert len(replay(path).differing) == 40


def test_a_line_that_was_cut_off_is_counted(tmp_path: Path) -> None:
    with routed(Scripted()) as (url, log):
        ask(url)
        log.of_requests()
    path = log.write(tmp_path / "log.jsonl")
    path.write_text(path.read_text()[:-40] + "\n")
    found = replay(path)
    assert (found.decisions, found.cut_off) == (0, 1)


def test_a_body_that_is_no_json_object_is_refused(subtests: pytest.Subtests) -> None:
    with routed(Scripted()) as (url, _):
        for body in (b"{", b"[]", b'"x"', b"\xff"):
            with subtests.test(body=body):
                found = client().post(f"{url}/v1/chat/completions", content=body)
                assert found.status_code == 400 and "JSON" in found.json()["error"]["message"]


def test_fields_of_a_backend_go_into_objects_and_over_all_else() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 5}, "d": {"e": 1}}) == {
        "a": {"b": 1, "c": 5},
        "d": {"e": 1},
    }


@pytest.mark.parametrize("gone", [False, True])
def test_an_answer_is_noted_when_it_was_sent_and_where_it_cannot_be(gone: bool) -> None:
    happened = list[object]()
    opened = Opened({"backend": "a"}, 200, {}, b"{}", AsyncExitStack(), None, EventCheck("a"))

    async def send(message: Any) -> None:
        if gone:
            raise ConnectionError
        happened.append(message["type"])

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    answer = WholeResponse(opened, {}, happened.append, 12.5)
    with pytest.raises(ConnectionError) if gone else nullcontext():
        asyncio.run(answer({"type": "http"}, receive, send))
    assert happened == [*([] if gone else ["http.response.start", "http.response.body"]), 12.5]
