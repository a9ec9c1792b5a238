"""Shadows over real sockets: a second backend is asked in the background, and both answers are graded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from daguerre.errors import DataError
from daguerre.router.config import parse_config
from daguerre.router.requests import draw_of
from router.test_proxy import SAY, Held, Log, ask, routed
from scripted_backends import Reply, Scripted, answer, events
from server.processes import wait_until

ALL = {"share": 1.0}


def shadows(log: Log, num: int = 1) -> list[dict[str, Any]]:
    """The lines of shadows, once there are so many."""
    return log.having("shadow_of", num)


def says(text: str, **how: Any) -> Callable[[dict[str, Any]], Reply]:
    return lambda body: Reply(body=answer(text), **how)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_second_backend_has_the_request_too_and_its_answer_is_compared(stream: bool) -> None:
    first = (lambda body: Reply(stream=events("hel", "lo"))) if stream else says("hello")
    for text, grade in (("hello\n", 1.0), ("goodbye", 0.0)):
        one, two = Scripted(reply=first), Scripted(reply=says(text))
        with routed(one, two, shadow=ALL) as (url, log):
            found = ask(url, SAY | {"stream": stream, "stream_options": {"include_usage": True}})
            (line,) = shadows(log)
        assert found.headers["x-route-backend"] == "a" and len(one.asked) == len(two.asked) == 1
        assert not {"stream", "stream_options"} & two.asked[0].keys()
        assert two.asked[0]["messages"] == SAY["messages"] and two.asked[0]["model"] == "model-1"
        assert (line["shadow_of"], line["backend"], line["status"]) == (found.headers["x-route-id"], "b", 200)
        assert (line["grade"], line["main_grade"], line["grader"]) == (grade, None, "exact")
        assert line["cost"] == 0.01 and line["tokens"] == {"input": 7, "output": 3, "counted": True}
        assert "hello" not in json.dumps([line, *log.of_requests()])


def test_a_shadow_that_is_slow_or_fails_changes_nothing_for_the_client() -> None:
    stall = Reply(body=b"", ends="stall")
    with routed(Scripted(), Scripted(reply=lambda body: stall), shadow=ALL, each={"b": {"timeout": 60}}) as (url, log):
        assert ask(url).status_code == 200
        assert not [line for line in log if "shadow_of" in line]
    for reply, error in ((Reply(500, b"{}"), "status"), (Reply(body=b"{"), "body"), (stall, "timeout")):
        two, wait = Scripted(reply=lambda body, r=reply: r), {"b": {"timeout": 0.1 if reply is stall else 60}}
        with routed(Scripted(), two, shadow=ALL, each=wait) as (url, log):
            assert ask(url).content == answer()
            (line,) = shadows(log)
        assert line["error"] == error and "grade" not in line


def test_shadows_that_fail_or_wait_leave_a_backend_to_clients() -> None:
    """They open no circuit, and a client's request has the place that they take."""
    two = Scripted(reply=lambda body: Reply(500, b"{}"))
    with routed(Scripted(), two, shadow=ALL | {"most_in_flight": 9}, overrides=["backend"]) as (url, log):
        for number in range(5):
            ask(url)
            shadows(log, number + 1)
        two.reply = lambda body: Reply()
        assert ask(url, **{"x-route-backend": "b"}).headers["x-route-backend"] == "b"
    two = Held(reply=says("late"), may=lambda: len(two.asked) == 2)  # the answers come once both are asked for
    one_at_a_time, to_b = {"b": {"most_in_flight": 1, "timeout": 60}}, ALL | {"backend": "b"}
    with routed(Scripted(), two, shadow=to_b, each=one_at_a_time, overrides=["backend"]) as (url, log):
        ask(url)
        wait_until(lambda: len(two.asked) == 1)
        ask(url)  # whose shadow finds the place taken
        assert [line["error"] for line in shadows(log)] == ["busy"]
        assert ask(url, **{"x-route-backend": "b"}).headers["x-route-backend"] == "b"
        assert [line.get("error") for line in shadows(log, 2)] == ["busy", None]


def test_no_more_shadows_run_than_are_allowed() -> None:
    go = threading.Event()
    two = Held(reply=says("late"), may=go.is_set)
    with routed(Scripted(), two, shadow=ALL | {"most_in_flight": 2}, each={"b": {"timeout": 60}}) as (url, log):
        for _ in range(5):
            ask(url)
        go.set()
        shadows(log, 2)
        ask(url)
        assert len(shadows(log, 3)) == 3 == len(two.asked)


def test_a_share_of_requests_has_a_shadow_and_the_backend_is_drawn_evenly() -> None:
    backends = Scripted(), Scripted(), Scripted()
    with routed(*backends, shadow={"share": 0.5, "most_in_flight": 64}) as (url, log):
        for _ in range(60):
            ask(url)
        lines = log.of_requests(60)
        chosen = {line["id"] for line in lines if draw_of(line["id"], "shadow:") < 0.5}
        found = shadows(log, len(chosen))
    assert {line["shadow_of"] for line in found} == chosen and 10 < len(chosen) < 50
    assert {line["backend"] for line in found} == {"b", "c"}


def test_a_named_backend_has_all_shadows_and_none_of_its_own_requests() -> None:
    one, two, three = Scripted(), Scripted(), Scripted()
    with routed(one, two, three, shadow=ALL | {"backend": "c"}, overrides=["backend"]) as (url, log):
        ask(url, **{"x-route-backend": "c"})
        found = ask(url)
        assert [line["shadow_of"] for line in shadows(log)] == [found.headers["x-route-id"]]
    assert len(one.asked) == 1 and len(three.asked) == 2 and not two.asked


def test_what_goes_on_with_a_conversation_has_no_shadow() -> None:
    two = Scripted()
    with routed(Scripted(), two, shadow=ALL, step="reason") as (url, log):
        ask(url, {"input": "x", "previous_response_id": "resp_9"}, "/v1/responses")
        ask(url, {"input": "x"}, "/v1/embeddings")
        ask(url, {"input": "x"}, "/v1/responses")
        assert len(shadows(log)) == 1
    assert len(two.asked) == 1 and two.asked[0]["store"] is False
    with routed(Scripted(), two, shadow=ALL | {"steps": ["plan"]}, step="reason") as (url, log):
        ask(url)
    assert not [line for line in log if "shadow_of" in line]


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}


def test_both_answers_are_graded_by_the_schema_of_the_request() -> None:
    one, two = Scripted(reply=says('{"n": 3}')), Scripted(reply=says('{"n": "three"}'))
    with routed(one, two, shadow=ALL, grader={"kind": "schema"}) as (url, log):
        ask(url, SAY | FORMAT)
        (line,) = shadows(log)
    assert (line["main_grade"], line["grade"]) == (1.0, 0.0)


def test_answers_without_a_shadow_are_graded_too_where_a_share_says_so() -> None:
    one, two = Scripted(reply=says('{"n": 3}')), Scripted()
    with routed(one, two, grader={"kind": "schema", "share": 1.0}) as (url, log):
        ask(url, SAY | FORMAT)
        (line,) = shadows(log)
    assert line["backend"] is None and line["main_grade"] == 1.0 and line["grade"] is None and not two.asked
    with pytest.raises(DataError, match="compares two answers"):
        parse_config('backends = [{name = "a", url = "http://h/v1", model = "m"}]\n[grader]\nshare = 0.5', "f")


def test_a_backend_judges_when_it_is_named() -> None:
    judge = Scripted(reply=lambda body: Reply(body=answer('{"score": 8}')))
    with routed(
        Scripted(), Scripted(), judge, shadow=ALL | {"backend": "b"}, grader={"kind": "judge", "judge": "c"}
    ) as (url, log):
        ask(url)
        (line,) = shadows(log)
    assert (line["main_grade"], line["grade"]) == (0.8, 0.8) and len(judge.asked) == 2
    assert all(body["model"] == "model-2" for body in judge.asked)


def test_a_judge_without_the_tags_of_a_request_does_not_see_it() -> None:
    judge, here = Scripted(reply=lambda body: Reply(body=answer('{"score": 8}'))), {"tags": ["eu"]}
    how = {"shadow": ALL, "grader": {"kind": "judge", "judge": "c"}, "steps": {"plan": here}}
    with routed(Scripted(), Scripted(), judge, each={"a": here, "b": here}, **how) as (url, log):
        assert ask(url).status_code == 200
        (line,) = shadows(log)
    assert (line["backend"], line["main_grade"], line["grade"]) == ("b", None, None) and not judge.asked


def test_both_answers_are_graded_by_a_command() -> None:
    grader = {"kind": "tests", "command": ["/bin/sh", "-c", "! grep -q know"]}
    with routed(Scripted(reply=says("I do not know")), Scripted(reply=says("2")), shadow=ALL, grader=grader) as (
        url,
        log,
    ):
        ask(url)
        (line,) = shadows(log)
    assert (line["main_grade"], line["grade"]) == (0.0, 1.0)
