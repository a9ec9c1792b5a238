"""Hedged requests over real sockets, and what is known of backends that wait or are cold."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from daguerre.router.attempts import patience
from daguerre.router.choose import Candidate
from daguerre.router.config import Backend
from daguerre.router.upstream import Upstream
from router.test_proxy import SAY, Held, ask, client, gated, routed
from scripted_backends import Reply, Scripted, answer, events
from server.processes import wait_until

SOON = {"latency": {"first_p95": 100.0, "token_p95": 0.0}}
"""A tenth of a second is predicted."""
STALL = Reply(body=b"", ends="stall")


def hedged(*backends: Scripted, share: float = 1.0, **more: Any) -> Any:
    return routed(*backends, each={"a": SOON | {"timeout": 60}, "b": SOON}, hedge={"share": share}, **more)


@contextmanager
def waiting(url: str, num: int, until: bytes = b"", **more: Any) -> Iterator[None]:
    """So many requests have been sent, and have got `until`. They end with the block: their clients leave."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(SAY | more).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    open_now = [socket.create_connection((host, int(port)), timeout=60) for _ in range(num)]
    try:
        for one in open_now:
            one.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        for one in open_now:
            got = b""
            while until not in got:
                data = one.recv(65536)
                assert data, got
                got += data
        yield
    finally:
        for one in open_now:
            one.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_backend_that_is_late_is_joined_by_a_second_and_the_first_answer_wins(stream: bool) -> None:
    one = Scripted(reply=lambda body: STALL)
    two = Scripted(reply=lambda body: Reply(stream=events("hi")) if stream else Reply())
    with hedged(one, two) as (url, log):
        found = ask(url, SAY | {"stream": stream})
        wait_until(lambda: one.num_left > 0)
    assert found.status_code == 200 and found.headers["x-route-backend"] == "b"
    assert found.content == (b"".join(events("hi")) if stream else answer())
    assert one.num_left == 1, "the request to the first is ended"
    (line,) = log.of_requests()
    first, second = line["attempts"]
    assert (first["backend"], second["backend"], second["hedge"]) == ("a", "b", True)
    assert "error" not in first
    assert second["begun_ms"] >= 99.0, "uvloop counts whole milliseconds"
    assert line["status"] == 200 and line["tokens"]["input"] == 7


def test_a_backend_that_is_in_time_is_not_joined() -> None:
    one, two = Scripted(), Scripted()
    with hedged(one, two) as (url, log):
        for _ in range(3):
            assert ask(url).headers["x-route-backend"] == "a"
    assert not two.asked and len(log.of_requests(3)[0]["attempts"]) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_first_may_still_win_and_then_the_second_is_ended(stream: bool) -> None:
    said = Reply(stream=events("hi")) if stream else Reply()
    two = Scripted(reply=lambda body: STALL)
    one = Held(reply=lambda body: said, may=lambda: bool(two.asked))
    with hedged(one, two) as (url, log):
        found = ask(url, SAY | {"stream": stream})
        wait_until(lambda: two.num_left > 0)
    assert found.status_code == 200 and found.headers["x-route-backend"] == "a" and two.num_left == 1
    assert [each["backend"] for each in log.of_requests()[0]["attempts"]] == ["a", "b"]


def test_where_both_fail_the_next_backend_is_tried() -> None:
    one, two, three = Scripted(reply=lambda body: Reply(503, b"{}")), Scripted(), Scripted()
    one.reply = lambda body: Reply(body=b"", ends="reset", headers={"content-length": "9"})
    two.reply = lambda body: Reply(500, b"{}")
    with hedged(one, two, three) as (url, log):
        found = ask(url)
    assert found.status_code == 200 and found.headers["x-route-backend"] == "c"
    assert [each["backend"] for each in log.of_requests()[0]["attempts"]] == ["a", "b", "c"]


def test_no_more_requests_are_hedged_than_the_budget_has() -> None:
    one, two = Scripted(reply=lambda body: STALL), Scripted()
    with routed(
        one, two, each={"a": SOON | {"timeout": 0.4}, "b": SOON}, hedge={"share": 0.01}, overrides=["backend"]
    ) as (url, log):
        for _ in range(2):
            assert ask(url).status_code == 200
        lines = log.of_requests(2)
    assert [[bool(each.get("hedge")) for each in line["attempts"]] for line in lines] == [[False, True], [False, False]]
    assert lines[1]["attempts"][0]["error"] == "timeout"


def test_some_requests_are_never_hedged() -> None:
    one, two = Scripted(reply=lambda body: STALL), Scripted()
    each = {"a": SOON | {"timeout": 0.2}, "b": SOON}
    with routed(one, two, each=each, hedge={"share": 1.0, "steps": ["reason"]}) as (url, log):
        ask(url)
        assert "hedge" not in log.of_requests()[0]["attempts"][1]
    one, two = Scripted(reply=lambda body: STALL), Scripted()
    with routed(one, two, each=each, hedge={"share": 1.0}) as (url, log):
        ask(url, {"input": "hi"}, "/v1/responses")
        assert "hedge" not in log.of_requests()[0]["attempts"][1], "its answer is stored where it is made"
    one, two = Scripted(reply=lambda body: STALL), Scripted()
    with hedged(one, two) as (url, log):
        ask(url, {"input": "hi", "store": False}, "/v1/responses")
        assert log.of_requests()[0]["attempts"][1]["hedge"] is True
    one, two = Scripted(reply=lambda body: STALL), Scripted()
    floor = {"steps": {"plan": {"quality": 0.5}}, "hedge": {"share": 1.0}}
    qualities = {"a": each["a"] | {"quality": {"plan": 0.9}}, "b": each["b"] | {"quality": {"plan": 0.1}}}
    with routed(one, two, each=qualities, **floor) as (url, log):
        ask(url)
        assert "hedge" not in log.of_requests()[0]["attempts"][1], "the other is not good enough"


def test_a_decision_knows_how_long_others_have_waited() -> None:
    one, two = Scripted(reply=lambda body: STALL), Scripted()
    rules = {"steps": {"plan": {"slo_ms": 1000.0}}}
    with routed(one, two, each={"a": SOON | {"timeout": 60}, "b": SOON}, **rules) as (url, log), waiting(url, 2):
        wait_until(lambda: len(one.asked) == 2)
        time.sleep(1.1)
        found = ask(url)
        (line,) = log.of_requests()
    assert found.headers["x-route-backend"] == "b" and line["id"] == found.headers["x-route-id"]
    assert line["state"]["a"]["waiting"] >= 300.0 and line["decision"]["rule"] == "latency"


def event(**value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def delta(**said: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": said}])


DONE = b"data: [DONE]\n\n"
ROLE, TEXT = delta(role="assistant", content=""), delta(content="hi")
CREATED = event(type="response.created", response={"object": "response", "id": "r"})
EARLY: dict[str, tuple[str, bytes, bytes]] = {
    "chat": ("chat/completions", ROLE, TEXT),
    "reasoning before a chat's text": ("chat/completions", delta(reasoning_content="hm"), TEXT),
    "a tool call": ("chat/completions", ROLE, delta(tool_calls=[{"index": 0, "id": "c"}])),
    "completions": ("completions", event(choices=[{"text": ""}]), event(choices=[{"text": "hi"}])),
    "responses": ("responses", CREATED, event(type="response.output_text.delta", delta="hi")),
    "reasoning before a response's text": (
        "responses",
        event(type="response.reasoning_text.delta", delta="hm"),
        event(type="response.output_text.delta", delta="hi"),
    ),
    "a call of responses": (
        "responses",
        event(type="response.output_item.added", item={"type": "message"}),
        event(type="response.output_item.added", item={"type": "function_call", "name": "f"}),
    ),
}
"""Where a stream goes, an event without a text, and the first one with a text."""


def until_text(url: str, path: str, go: threading.Event) -> tuple[bytes, float]:
    """All that a stream sends, and the milliseconds until its first chunk was there. `go` is then set so late that the
    second chunk takes at least twice as long and 20 ms more.
    """
    got, took, began = b"", 0.0, time.perf_counter()
    with client().stream("POST", f"{url}/v1/{path}", json=SAY | {"stream": True}) as found:
        for chunk in found.iter_raw():
            got += chunk
            if not go.is_set():
                took = time.perf_counter() - began
                time.sleep(took + 0.02)
                go.set()
    return got, 1000 * took


def test_the_first_text_is_timed_and_what_comes_before_it_passes_at_once(subtests: pytest.Subtests) -> None:
    for shape, (path, early, text) in EARLY.items():
        with subtests.test(shape):
            go = threading.Event()
            one = Scripted(reply=lambda body, e=early, t=text, go=go: Reply(stream=gated([e, t + DONE], go)))  # type: ignore[arg-type]
            with routed(one, each={"a": {"timeout": 60}}) as (url, log):
                got, early_ms = until_text(url, path, go)
                ask(url, SAY | {"stream": True}, f"/v1/{path}")
                lines = log.of_requests(2)
            assert got == early + text + DONE, "the early event has passed before the text came"
            (attempt,) = lines[0]["attempts"]
            assert attempt["first_ms"] > early_ms, "it is of the text"
            predicted = attempt["first_ms"] - attempt["begun_ms"]
            assert lines[1]["state"]["a"]["first"] == pytest.approx(predicted, rel=0.02), "what is predicted, too"


def test_the_first_event_of_a_shape_that_is_not_known_counts_as_text_and_a_stream_may_have_none() -> None:
    go = threading.Event()
    one = Scripted(reply=lambda body: Reply(stream=gated([event(type="ping"), TEXT + DONE], go)))  # type: ignore[arg-type]
    with routed(one, each={"a": {"timeout": 60}}) as (url, log):
        _, ping_ms = until_text(url, "chat/completions", go)
        assert log.of_requests()[0]["attempts"][0]["first_ms"] <= ping_ms
    one = Scripted(reply=lambda body: Reply(stream=[ROLE, delta(), DONE]))
    with routed(one) as (url, log):
        for _ in range(2):
            assert ask(url, SAY | {"stream": True}).content == ROLE + delta() + DONE
        lines = log.of_requests(2)
    assert "first_ms" not in lines[0]["attempts"][0]
    assert lines[1]["state"]["a"]["first"] is None and lines[1]["state"]["a"]["whole"] > 0


def test_a_stream_waits_until_its_first_text() -> None:
    begun, whole = Reply(stream=[ROLE], ends="stall"), Reply(stream=[ROLE, TEXT + DONE])
    one = Scripted()
    one.reply = lambda body: begun if len(one.asked) <= 2 else whole
    with routed(one, each={"a": {"timeout": 60}}) as (url, log), waiting(url, 2, ROLE, stream=True):
        time.sleep(0.2)
        found = ask(url, SAY | {"stream": True})
        (line,) = log.of_requests()
    assert line["id"] == found.headers["x-route-id"] and line["state"]["a"]["waiting"] >= 200.0


def test_a_backend_is_cold_until_it_answers_and_when_nobody_asks_it() -> None:
    given = Backend.model_validate(
        {"name": "a", "url": "http://h/v1", "model": "m", "latency": {"cold_start": 9.0, "cold_after": 30.0}}
    )
    one = Upstream(given)
    assert one.cold(100.0)
    one.alive = 100.0
    assert not one.cold(130.0) and one.cold(130.5)
    always = Upstream(Backend.model_validate({"name": "a", "url": "http://h/v1", "model": "m"}))
    assert not always.cold(5.0)


def test_a_second_backend_joins_as_late_as_the_slo_allows() -> None:
    one, two = Scripted(reply=lambda body: STALL), Scripted()
    soon = {"latency": {"first_p95": 50.0, "token_p95": 0.0}, "timeout": 60}
    rules = {"hedge": {"share": 1.0}, "steps": {"plan": {"slo_ms": 400.0}}}
    with routed(one, two, each={"a": soon, "b": SOON}, **rules) as (url, log):
        assert ask(url).headers["x-route-backend"] == "b"
        first, second = log.of_requests()[0]["attempts"]
    assert first["backend"] == "a" and second["hedge"] and second["begun_ms"] >= 299.0  # a timer may be a little early


def test_second_requests_are_so_rare_that_they_cost_a_twentieth() -> None:
    def one(p50: float, p95: float, cost: float) -> Candidate:
        return Candidate(name="x", quality=1.0, first_p50=p50, first_p95=p95, p50=p50, p95=p95, cost=cost, load=0.0)

    rng = np.random.default_rng(0)
    took = 100.0 * np.exp(rng.normal(0.0, np.log(3.0) / 1.645, 400_000))
    for first, second in ((1.0, 1.0), (1.0, 0.2), (1.0, 4.0), (1.0, 25.0)):
        wait = patience(one(100.0, 300.0, first), one(50.0, 90.0, second))
        share = float(np.mean(took > wait))
        assert share == pytest.approx(0.05 * min(1.0, first / second), rel=0.05)
        assert share * second <= 0.0525 * max(first, second)
    assert patience(one(100.0, 300.0, 0.0), one(50.0, 90.0, 1.0)) == pytest.approx(300.0, rel=1e-3)
    assert patience(one(100.0, 100.0, 1.0), one(50.0, 90.0, 1.0)) == 100.0
