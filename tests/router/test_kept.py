"""The cache and the limits of keys over real sockets."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

from daguerre.http.settings import Keys, hash_of
from daguerre.router.app import make_app, make_router
from daguerre.router.store import Store
from router.test_proxy import SAY, Log, ask, get, routed
from routing import config
from scripted_backends import Reply, Scripted, answer, events, scripted
from server.conftest import running

COLD = SAY | {"temperature": 0}
CACHE = {"ttl": 3600}


def test_an_equal_request_is_answered_from_the_cache() -> None:
    one = Scripted()
    with routed(one, cache=CACHE) as (url, log):
        first, second = ask(url, COLD), ask(url, dict(reversed(COLD.items())) | {"user": "somebody"})
        other = ask(url, COLD | {"max_tokens": 9})
        lines = log.of_requests(3)
    assert first.content == second.content == answer() and len(one.asked) == 2
    assert "x-route-cache" not in first.headers and second.headers["x-route-cache"] == "hit"
    assert second.headers["x-route-backend"] == "a" and second.headers["content-type"] == "application/json"
    assert int(second.headers["age"]) >= 0 and other.status_code == 200
    assert [line["cache"] for line in lines] == ["miss", "hit", "miss"]
    assert lines[1]["cost"] == 0.0 and lines[1]["attempts"] == [] and lines[1]["status"] == 200


def test_a_stream_is_given_again_byte_for_byte() -> None:
    one = Scripted(reply=lambda body: Reply(stream=events("a", "b")))
    with routed(one, cache=CACHE) as (url, _):
        first, second = (ask(url, COLD | {"stream": True}) for _ in range(2))
    assert first.content == second.content == b"".join(events("a", "b")) and len(one.asked) == 1
    assert second.headers["content-type"] == first.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize(
    "body", [SAY, COLD | {"temperature": 0.3}, COLD | {"tools": [{"type": "function", "function": {"name": "f"}}]}]
)
def test_what_is_warm_or_has_tools_is_never_kept_unless_the_request_says_so(body: dict[str, Any]) -> None:
    one = Scripted()
    with routed(one, cache=CACHE, overrides=["cache"]) as (url, log):
        for _ in range(2):
            assert "x-route-cache" not in ask(url, body).headers
        assert len(one.asked) == 2
        found = [ask(url, body, **{"x-route-cache": "on"}).headers.get("x-route-cache") for _ in range(2)]
        assert found == [None, "hit"] and len(one.asked) == 3
        ask(url, body, **{"x-route-cache": "off"})
        assert len(one.asked) == 4 and "cache" not in log.of_requests(5)[-1]


def test_broken_and_failed_answers_are_not_kept() -> None:
    bad = [Reply(400, b"{}"), Reply(stream=events("a", done=False), ends="reset"), Reply(stream=events("a"))]
    replies = iter(bad)
    one = Scripted(reply=lambda body: next(replies))
    with routed(one, cache=CACHE) as (url, log):
        for _ in range(2):
            ask(url, COLD | {"stream": True})
        assert ask(url, COLD | {"stream": True}).content == b"".join(events("a"))
        lines = log.of_requests(3)
    assert [line["cache"] for line in lines] == ["miss"] * 3 and lines[1]["status"] == 502
    assert lines[1]["tokens"] == {"input": 7, "output": 1, "counted": True}, "what a broken answer cost is known"


def test_an_answer_below_the_floor_is_not_kept() -> None:
    replies = iter([Reply(503, b"{}"), Reply()])
    good, weak = Scripted(reply=lambda body: next(replies)), Scripted()
    each = {"a": {"quality": {"plan": 0.9}}, "b": {"quality": {"plan": 0.2}}}
    with routed(good, weak, each=each, steps={"plan": {"quality": 0.5}}, cache=CACHE) as (url, log):
        found = [ask(url, COLD).headers["x-route-backend"] for _ in range(3)]
        assert found == ["b", "a", "a"]
        assert [line["cache"] for line in log.of_requests(3)] == ["miss", "miss", "hit"]


def test_a_near_request_is_answered_where_it_asks_for_that() -> None:
    one = Scripted()
    long = "Please tell me, as briefly as you can, what the capital of the country of France is called today"
    bodies = [COLD | {"messages": [{"role": "user", "content": text}]} for text in (long, long + " please")]
    with routed(one, cache=CACHE | {"near": 0.8}, overrides=["cache"]) as (url, _):
        ask(url, bodies[0])
        assert "x-route-cache" not in ask(url, bodies[1], **{"x-route-cache": "off"}).headers
        found = ask(url, bodies[1], **{"x-route-cache": "near"})
        assert found.headers["x-route-cache"] == "near" and 0.8 <= float(found.headers["x-route-similarity"]) < 1
        assert len(one.asked) == 2
    with routed(one, cache=CACHE, overrides=["cache"]) as (url, log):
        refused = ask(url, bodies[1], **{"x-route-cache": "near"})
        assert refused.status_code == 400 and "[cache]" in refused.json()["error"]["message"]
        assert log.of_requests()[0]["status"] == 400


@contextmanager
def keyed(*backends: Scripted, **more: Any) -> Any:
    """A router with the keys of two owners, in front of backends that cost a cent a request."""
    log, store = Log(), Store(None)
    keys = Keys(names={hash_of("key-ann"): "ann", hash_of("key-bob"): "bob"})
    with scripted(*backends):
        given = [{"name": f"b{place}", "url": one.url, "model": "m", "price": {"request": 0.01}, "timeout": 60}
                 for place, one in enumerate(backends)]  # fmt: skip
        router = make_router(config(*given, **more), store, lambda reading, body: {"plan": 1.0}, log.append, keys)
        with running(make_app(router, store, log.append)) as url:
            yield url, log


def test_a_key_that_has_spent_its_budget_is_refused_and_others_are_not() -> None:
    limits = {"ann": {"dollars_per_day": 0.02, "operator": True}, "default": {"requests_per_minute": 3}}
    with keyed(Scripted(), keys=limits) as (url, log):
        ann, bob = ({"authorization": f"Bearer key-{name}"} for name in ("ann", "bob"))
        assert [ask(url, **ann).status_code for _ in range(3)] == [200, 200, 429]
        refused = ask(url, **ann)
        assert refused.json()["error"]["code"] == "budget_exceeded" and int(refused.headers["retry-after"]) > 0
        assert [ask(url, **bob).status_code for _ in range(4)] == [200, 200, 200, 429]
        assert ask(url).status_code == 401
        lines = log.of_requests(8)
        all_, own = (get(f"{url}/status", **each).json() for each in (ann, bob))
    used = all_["used_today"]
    assert own["used_today"] == {"bob": used["bob"]} and {one["owner"] for one in own["last"]} == {"bob"}
    assert len(own["last"]) == 4 and len(all_["last"]) == 8
    assert [line["owner"] for line in lines] == ["ann"] * 4 + ["bob"] * 4
    assert used["ann"]["dollars"] == pytest.approx(0.02) and used["bob"]["requests"] == 3
    assert [line["status"] for line in lines] == [200, 200, 429, 429, 200, 200, 200, 429]


def test_answers_of_one_owner_are_not_given_to_another() -> None:
    one = Scripted()
    with keyed(one, cache=CACHE) as (url, _):
        for name, said in (("ann", None), ("bob", None), ("ann", "hit"), ("bob", "hit")):
            found = ask(url, COLD, authorization=f"Bearer key-{name}")
            assert found.headers.get("x-route-cache") == said
    assert len(one.asked) == 2


def test_what_fails_costs_its_owner_nothing() -> None:
    with keyed(Scripted(reply=lambda body: Reply(500, b"{}")), keys={"ann": {"dollars_per_day": 0.02}}) as (url, _):
        found = [ask(url, authorization="Bearer key-ann").status_code for _ in range(4)]
    assert 429 not in found


def test_a_body_that_is_nested_too_deeply_is_the_client_s_mistake() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    with routed(Scripted()) as (url, _):
        found = ask(url, SAY | {"metadata": {"a": deep}})
    assert found.status_code == 400 and "nested" in found.json()["error"]["message"]
