"""Metrics and the status of a router, read over HTTP after real requests."""

from __future__ import annotations

import re
from typing import Any

from router.test_proxy import SAY, ask, get, routed
from router.test_shadow import shadows
from scripted_backends import Reply, Scripted, events


def counters(url: str) -> dict[str, float]:
    text = get(f"{url}/metrics").text
    return {name: float(value) for name, value in re.findall(r"^(daguerre_route\S+) (\S+)$", text, re.MULTILINE)}


def test_counters_say_what_was_asked_and_what_came_of_it() -> None:
    replies = iter([Reply(500, b"{}"), Reply(), Reply(stream=events("a", "b")), Reply(400, b"{}")])
    one, two = Scripted(reply=lambda body: next(replies)), Scripted()
    rules: dict[str, Any] = {"steps": {"plan": {"slo_ms": 50_000}}, "shadow": {"share": 1.0, "backend": "b"}}
    with routed(one, two, **rules) as (url, log):
        assert ask(url).headers["x-route-backend"] == "b"
        assert ask(url).headers["x-route-backend"] == "a"
        ask(url, SAY | {"stream": True})
        assert ask(url).status_code == 400
        log.of_requests(4)
        shadows(log, 2)
        found = counters(url)
    name = "daguerre_route_"
    assert found[name + 'requests_total{backend="b",status="200",step="plan"}'] == 1
    assert found[name + 'requests_total{backend="a",status="200",step="plan"}'] == 2
    assert found[name + 'requests_total{backend="a",status="400",step="plan"}'] == 1
    assert found[name + 'attempts_total{backend="a",outcome="status"}'] == 1
    assert found[name + 'attempts_total{backend="a",outcome="ok"}'] == 3
    assert found[name + 'decisions_total{rule="cost"}'] == 4
    assert found[name + 'cost_dollars_total{backend="b",step="plan"}'] == 0.01
    assert found[name + 'tokens_total{backend="a",kind="output"}'] == 3 + 2
    assert found[name + 'slo_total{met="yes",step="plan"}'] == 3
    assert name + 'slo_total{met="no",step="plan"}' not in found, "a wrong request breaks no SLO"
    assert found[name + 'first_text_seconds_count{backend="a",step="plan"}'] == 1
    assert found[name + 'seconds_count{backend="a",step="plan"}'] == 2
    assert found[name + "decision_seconds_count"] == 4
    assert found[name + 'shadows_total{backend="b",outcome="ok"}'] == 2
    assert found[name + 'grade_count{backend="b"}'] == 2


def test_the_status_has_backends_steps_and_the_last_requests_and_no_text() -> None:
    one, two = Scripted(), Scripted()
    with routed(one, two) as (url, log):
        for _ in range(3):
            ask(url)
        log.of_requests(3)
        found = get(f"{url}/status").json()
    assert set(found["backends"]) == {"a", "b"}
    first, second = found["backends"]["a"], found["backends"]["b"]
    assert (first["requests"], first["failed"], first["circuit"], first["in_flight"]) == (3, 0, "closed", 0)
    assert (second["requests"], second["p95_ms"], second["model"]) == (0, None, "model-1")
    assert first["p95_ms"] >= first["p50_ms"] > 0 and found["steps"]["plan"]["requests"] == 3
    assert found["rules"] == {"cost": 3} and len(found["last"]) == 3
    assert {line["id"] for line in log.of_requests(3)} == {each["id"] for each in found["last"]}
    assert "hello" not in str(found).lower()
