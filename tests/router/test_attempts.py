"""Hedged requests over real sockets, and what is known of backends that wait or are cold."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import pytest

from daguerre.router.attempts import patience
from daguerre.router.choose import Candidate
from daguerre.router.config import Backend
from daguerre.router.upstream import Upstream
from router.test_proxy import SAY, ask, routed
from scripted_backends import Reply, Scripted, answer, events

SOON = {"latency": {"first_p95": 100.0, "token_p95": 0.0}}
"""A tenth of a second is predicted."""
STALL = Reply(body=b"", ends="stall")


def hedged(*backends: Scripted, share: float = 1.0, **more: Any) -> Any:
    return routed(*backends, each={"a": SOON | {"timeout": 10}, "b": SOON}, hedge={"share": share}, **more)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_backend_that_is_late_is_joined_by_a_second_and_the_first_answer_wins(stream: bool) -> None:
    one = Scripted(reply=lambda body: STALL)
    two = Scripted(reply=lambda body: Reply(stream=events("hi")) if stream else Reply())
    with hedged(one, two) as (url, log):
        found = ask(url, SAY | {"stream": stream})
        for _ in range(300):
            if one.num_left:
                break
            time.sleep(0.01)
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
    one, two = Scripted(reply=lambda body: replace(said, delay=0.4)), Scripted(reply=lambda body: STALL)
    with hedged(one, two) as (url, log):
        found = ask(url, SAY | {"stream": stream})
        for _ in range(300):
            if two.num_left:
                break
            time.sleep(0.01)
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
    each = {"a": SOON | {"timeout": 0.4}, "b": SOON}
    with routed(one, two, each=each, hedge={"share": 1.0, "steps": ["reason"]}) as (url, log):
        ask(url)
        assert "hedge" not in log.of_requests()[0]["attempts"][1]
    one, two = Scripted(reply=lambda body: STALL), Scripted()
    with routed(one, two, each=each, hedge={"share": 1.0}) as (url, log):
        ask(url, {"input": "hi"}, "/v1/responses")
        assert "hedge" not in log.of_requests()[0]["attempts"][1], "its answer is stored where it is made"
        ask(url, {"input": "hi", "store": False}, "/v1/responses")
        assert log.of_requests(2)[1]["attempts"][1]["hedge"] is True
    one, two = Scripted(reply=lambda body: STALL), Scripted()
    floor = {"steps": {"plan": {"quality": 0.5}}, "hedge": {"share": 1.0}}
    qualities = {"a": each["a"] | {"quality": {"plan": 0.9}}, "b": each["b"] | {"quality": {"plan": 0.1}}}
    with routed(one, two, each=qualities, **floor) as (url, log):
        ask(url)
        assert "hedge" not in log.of_requests()[0]["attempts"][1], "the other is not good enough"


def test_a_decision_knows_how_long_others_have_waited() -> None:
    release = threading.Event()
    one, two = Scripted(reply=lambda body: STALL if not release.is_set() else Reply()), Scripted()
    rules = {"steps": {"plan": {"slo_ms": 300.0}}}
    with routed(one, two, each={"a": SOON | {"timeout": 5}, "b": SOON}, **rules) as (url, log):
        threads = [threading.Thread(target=ask, args=(url,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        while len(one.asked) < 2:
            time.sleep(0.01)
        time.sleep(0.6)
        found = ask(url)
        release.set()
        for thread in threads:
            thread.join()
    assert found.headers["x-route-backend"] == "b"
    (line, *_) = [line for line in log.of_requests(3) if line["id"] == found.headers["x-route-id"]]
    assert line["state"]["a"]["waiting"] > 500.0 and line["decision"]["rule"] == "latency"


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


@pytest.mark.parametrize("shape", EARLY)
def test_the_first_text_is_timed_and_what_comes_before_it_passes_at_once(shape: str) -> None:
    path, early, text = EARLY[shape]
    one, got = Scripted(reply=lambda body: Reply(stream=[early, text + DONE], pause=0.2)), list[tuple[float, bytes]]()
    with routed(one) as (url, log):
        with httpx2.stream("POST", f"{url}/v1/{path}", json=SAY | {"stream": True}, timeout=20) as found:
            got += [(time.monotonic(), chunk) for chunk in found.iter_raw()]
        ask(url, SAY | {"stream": True}, f"/v1/{path}")
        lines = log.of_requests(2)
    assert b"".join(chunk for _, chunk in got) == early + text + DONE
    assert got[1][0] - got[0][0] > 0.15, "the early event has passed before the text came"
    assert lines[0]["attempts"][0]["first_ms"] > 190.0
    assert lines[1]["state"]["a"]["first"] > 190.0, "what is predicted is of the text"


def test_the_first_event_of_a_shape_that_is_not_known_counts_as_text_and_a_stream_may_have_none() -> None:
    one = Scripted(reply=lambda body: Reply(stream=[event(type="ping"), TEXT + DONE], pause=0.5))
    with routed(one) as (url, log):
        ask(url, SAY | {"stream": True})
        assert log.of_requests()[0]["attempts"][0]["first_ms"] < 450.0
    one = Scripted(reply=lambda body: Reply(stream=[ROLE, delta(), DONE]))
    with routed(one) as (url, log):
        for _ in range(2):
            assert ask(url, SAY | {"stream": True}).content == ROLE + delta() + DONE
        lines = log.of_requests(2)
    assert "first_ms" not in lines[0]["attempts"][0]
    assert lines[1]["state"]["a"]["first"] is None and lines[1]["state"]["a"]["whole"] > 0


def test_a_stream_waits_until_its_first_text() -> None:
    one = Scripted(reply=lambda body: Reply(stream=[ROLE, TEXT + DONE], pause=1.0))
    with routed(one) as (url, log):
        threads = [threading.Thread(target=ask, args=(url, SAY | {"stream": True})) for _ in range(2)]
        for thread in threads:
            thread.start()
        while len(one.asked) < 2:
            time.sleep(0.01)
        time.sleep(0.3)
        found = ask(url, SAY | {"stream": True})
        for thread in threads:
            thread.join()
        (line,) = [line for line in log.of_requests(3) if line["id"] == found.headers["x-route-id"]]
    assert line["state"]["a"]["waiting"] > 200.0


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
    soon = {"latency": {"first_p95": 50.0, "token_p95": 0.0}, "timeout": 8}
    rules = {"hedge": {"share": 1.0}, "steps": {"plan": {"slo_ms": 800.0}}}
    with routed(one, two, each={"a": soon, "b": SOON}, **rules) as (url, log):
        assert ask(url).headers["x-route-backend"] == "b"
        first, second = log.of_requests()[0]["attempts"]
    assert first["backend"] == "a" and second["hedge"] and second["begun_ms"] >= 699.0  # a timer may be a little early


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
