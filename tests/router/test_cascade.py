"""Cascades over real sockets: who answers, what is accepted, what the other backend is told, and what is charged."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from daguerre.errors import DataError
from daguerre.router.cascade import MOST_CHECKS, MOST_SMALL, likelihood_of, without_logprobs
from daguerre.router.config import Config, parse_config
from daguerre.router.log import replay
from router.test_proxy import SAY, Held, Log, ask, get, routed
from router.test_shadow import FORMAT, SCHEMA, says
from scripted_backends import Reply, Scripted, answer
from server.processes import wait_until

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
NEEDS = ["tools", "schema", "strict_schema", "suffix", "daguerre", "logprobs"]


def said(text: str, chance: float | None = 0.9, finish: str = "stop") -> bytes:
    """A whole answer of two tokens, each as likely, in chat's shape."""
    value = json.loads(answer(text))
    value["choices"][0] |= {"finish_reason": finish, "logprobs": None if chance is None else nats(chance)}
    return json.dumps(value).encode()


def nats(chance: float) -> dict[str, Any]:
    return {"content": [{"token": "x", "logprob": math.log(chance)}] * 2}


def streamed(text: str, chance: float, ends: bool = True) -> list[bytes]:
    """The same as a stream of two words."""
    parts = [{"index": 0, "delta": {"content": word}, "logprobs": nats(chance)} for word in (text[:2], text[2:])]
    parts += [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    lines = [b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [one]}).encode() for one in parts]
    return [line + b"\n\n" for line in lines[: 3 if ends else 2]] + ([b"data: [DONE]\n\n"] if ends else [])


def small(body: bytes, **more: Any) -> Scripted:
    return Scripted(reply=lambda asked: Reply(body=body, **more))


@contextmanager
def cascaded(one: Scripted, two: Scripted, **more: Any) -> Iterator[tuple[str, Log]]:
    """A router where "b" has all requests, and "a" answers first."""
    cascade = {"small": "a", "least": {"default": 0.8}} | more.pop("cascade", {})
    each = {"a": {"needs": NEEDS, "price": {"request": 0.01}}, "b": {"drafts": ["chat", "completions"]}}
    for name, how in more.pop("each", {}).items():
        each[name] = each[name] | how
    each["b"] = {"quality": {"default": 0.9}, "price": {"request": 0.1}} | each["b"]
    steps = {"plan": {"quality": 0.8}} | more.pop("steps", {})
    with routed(one, two, each=each, steps=steps, cascade=cascade, **more) as found:
        yield found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_likely_answer_of_the_small_backend_is_the_answer(stream: bool) -> None:
    reply = {"stream": streamed("hello", 0.9)} if stream else {}
    one, two = small(said("hello"), **reply), Scripted()
    with cascaded(one, two) as (url, log):
        found = ask(url, SAY | {"stream": stream})
        (line,) = log.of_requests()
    assert one.asked[0]["logprobs"] is True and not two.asked
    assert (text_of(found.text) if stream else found.json()["choices"][0]["message"]["content"]) == "hello"
    assert '"logprob"' not in found.text  # which the client has not asked for
    assert (found.headers["x-route-backend"], found.headers["x-route-cascade"]) == ("a", "accepted")
    assert (line["backend"], line["decision"]["backend"], line["cost"]) == ("a", "b", 0.01)
    told = {name: line["cascade"][name] for name in ("small", "accepted", "likelihood", "least")}
    assert told == {"small": "a", "accepted": True, "likelihood": 0.9, "least": 0.8}


def text_of(events: str) -> str:
    values = [json.loads(line[6:]) for line in events.split("\n") if line.startswith("data: {")]
    return "".join(value["choices"][0]["delta"].get("content", "") for value in values)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_unlikely_answer_is_a_draft_for_the_other_backend(stream: bool) -> None:
    reply = {"stream": streamed("hello", 0.5)} if stream else {}
    one, two = small(said("hello", 0.5), **reply), Scripted(reply=says("good day"))
    with cascaded(one, two) as (url, log):
        found = ask(url, SAY | {"stream": stream})
        (line,) = log.of_requests()
    assert "hello" not in found.text and "good day" in found.text
    assert (found.headers["x-route-backend"], found.headers["x-route-cascade"]) == ("b", "rejected")
    assert two.asked[0]["prediction"] == {"type": "content", "content": "hello"} and "logprobs" not in two.asked[0]
    assert line["cost"] == pytest.approx(0.11) and "likelihood" in line["cascade"]["why"]
    assert [each["backend"] for each in line["attempts"]] == ["a", "b"]


def test_drafts_go_where_they_are_taken_and_never_in_place_of_the_clients() -> None:
    text = {"object": "text_completion", "choices": [{"index": 0, "text": "x = 1", "finish_reason": "stop"}]}
    text["choices"][0]["logprobs"] = {"token_logprobs": [None, math.log(0.5)]}  # type: ignore[index]
    one, two = small(json.dumps(text).encode()), Scripted()
    fill = {"prompt": "def f():\n", "suffix": "\n", "daguerre": {"seed": 1}}
    with cascaded(one, two) as (url, _):
        ask(url, fill, "/v1/completions")
        ask(url, fill | {"daguerre": {"draft": "x = 2"}}, "/v1/completions")
        ask(url, {"prompt": "def f():\n", "suffix": "\n"}, "/v1/fim/completions")
        ask(url, SAY | {"tools": TOOLS})
    assert one.asked[0]["logprobs"] == 0
    drafts = [(body.get("daguerre") or {}).get("draft") for body in two.asked]
    assert drafts == ["x = 1", "x = 2", None, None] and two.asked[0]["daguerre"]["seed"] == 1
    assert not any("prediction" in body for body in two.asked)


def test_the_other_backend_may_take_an_unlikely_answer_by_its_own_score() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "completion_tokens_details": {"accepted_prediction_tokens": 3}}
    taken = json.dumps(json.loads(answer("hello")) | {"usage": usage}).encode()
    for body, told in ((said("hello", 0.5), {"accept_draft": 0.6}), (said("hello", 0.9, "length"), None)):
        two = Scripted(reply=lambda asked: Reply(body=taken))
        with cascaded(small(body), two, cascade={"score": 0.6}) as (url, log):
            assert ask(url).headers["x-route-backend"] == "b"
            (line,) = log.of_requests()
        assert two.asked[0].get("daguerre") == told and two.asked[0]["prediction"]["content"] == "hello"
        assert line["cascade"]["draft_accepted"] == 3
    with cascaded(small(said("hello", 0.5)), two := Scripted(), cascade={"score": 0.6}) as (url, _):
        ask(url, SAY | {"daguerre": {"mode": "block"}})  # which takes no draft
    assert two.asked[0]["daguerre"] == {"mode": "block"} and "prediction" not in two.asked[0]


def test_what_cannot_be_accepted_is_not() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"n": "three"}'}}]
    called = json.loads(said(""))
    called["choices"][0]["message"]["tool_calls"], called["choices"][0]["finish_reason"] = calls, "tool_calls"
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (said("hello", None), {}, "no log-probabilities"),
        (said("hello", finish="length"), {}, "ended by length"),
        (said('{"n": "three"}'), FORMAT, "schema"),
        (json.dumps(called).encode(), {"tools": TOOLS}, "its calls have no log-probabilities"),
    ]
    for body, more, why in cases:
        with cascaded(small(body), two := Scripted()) as (url, log):
            assert ask(url, SAY | more).headers["x-route-cascade"] == "rejected"
            assert why in log.of_requests()[0]["cascade"]["why"] and len(two.asked) == 1
    by_schema = {"accept": ["schema"], "least": {}}
    with cascaded(small(json.dumps(called).encode()), Scripted(), cascade=by_schema) as (url, log):
        assert ask(url, SAY | {"tools": TOOLS}).headers["x-route-cascade"] == "rejected"
        assert "schema" in log.of_requests()[0]["cascade"]["why"]
    with cascaded(small(said('{"n": 3}')), Scripted(), cascade=by_schema) as (url, _):
        assert ask(url, SAY | FORMAT).headers["x-route-cascade"] == "accepted"
        assert "x-route-cascade" not in ask(url).headers  # nothing says whether the answer is good


def test_a_test_that_the_request_names_says_alone_whether_an_answer_is_accepted() -> None:
    tests = {"tests": {"right": ["/bin/sh", "-c", "grep -q right"]}}
    one = Scripted(reply=lambda asked: Reply(body=said(asked["messages"][0]["content"], 0.1)))
    with cascaded(one, two := Scripted(), cascade=tests, overrides=["test"]) as (url, _):
        for text, how in (("right", "accepted"), ("wrong", "rejected")):
            body = {"messages": [{"role": "user", "content": text}], "metadata": {"x-route-test": "right"}}
            assert ask(url, body).headers["x-route-cascade"] == how
        assert ask(url, **{"x-route-test": "other"}).status_code == 400
    assert len(two.asked) == 1
    with cascaded(one, Scripted(), cascade=tests) as (url, log):
        ask(url, **{"x-route-test": "right"})
        assert "not allowed" in log.of_requests()[0]["ignored"][0]


def test_what_fails_in_the_small_backend_is_answered_by_the_other() -> None:
    stall = Reply(body=b"", ends="stall")
    long = Reply(body=said("x" * (MOST_SMALL + 1)))
    for reply, stream in (
        (Reply(500, b"{}"), False),
        (Reply(400, b'{"error": {"message": "no"}}'), False),
        (Reply(body=b"{"), False),
        (Reply(body=json.dumps({"choices": []}).encode()), False),
        (long, False),
        (stall, False),
        (Reply(stream=streamed("hello", 0.9, ends=False)), True),
        (Reply(stream=streamed("hello", 0.9, ends=False), ends="reset"), True),
    ):
        one, two = Scripted(reply=lambda body, r=reply: r), Scripted(reply=says("good day"))
        wait = {"a": {"timeout": 0.1 if reply is stall else 60}}
        with cascaded(one, two, each=wait) as (url, log):
            found = ask(url, SAY | {"stream": stream})
            (line,) = log.of_requests()
        assert found.status_code == 200 and "good day" in found.text and found.headers["x-route-backend"] == "b"
        assert line["cascade"]["accepted"] is False and "prediction" not in two.asked[0]
        assert ["error" in each for each in line["attempts"]] == [True, False]
        assert len(one.asked) == len(two.asked) == 1


def test_a_rejected_answer_is_the_last_resort() -> None:
    """And is not kept in the cache."""
    one, two = small(said("hello", 0.5)), Scripted(reply=lambda body: Reply(500, b"{}"))
    how: dict[str, Any] = {"retry": {"backoff": 0.001}, "circuit": {"failures": 99}, "cache": {"ttl": 60}}
    with cascaded(one, two, **how) as (url, log):
        found = ask(url, SAY | {"temperature": 0})
        (line,) = log.of_requests()
        assert len(one.asked) == 1
        assert "x-route-cache" not in ask(url, SAY | {"temperature": 0}).headers
        one.reply = lambda body: Reply(body=said("hello"))
        ask(url, SAY | {"temperature": 0})
        assert ask(url, SAY | {"temperature": 0}).headers["x-route-cache"] == "hit"
    assert found.json()["choices"][0]["message"]["content"] == "hello"
    assert (found.headers["x-route-backend"], found.headers["x-route-cascade"]) == ("a", "rejected")
    assert line["cost"] == 0.01 and line["backend"] == "a"


def test_a_cascade_leaves_the_other_backend_its_time() -> None:
    fast = {"latency": {"first": 1, "first_p95": 1, "token": 0, "token_p95": 0}}
    for slo, latency, num in ((1500, 1000, 0), (5000, 1000, 1)):
        slow = {"latency": {"first": 1, "first_p95": latency, "token": 0, "token_p95": 0}}
        with cascaded(one := small(said("hello")), Scripted(), each={"a": slow, "b": slow}) as (url, _):
            assert ask(url, **{"x-slo-ms": str(slo)}).status_code == 200
        assert len(one.asked) == num
    one = Held(reply=says("late"), may=lambda: False)
    with cascaded(one, Scripted(), each={"a": {"timeout": 60} | fast, "b": fast}) as (url, log):
        assert ask(url, **{"x-slo-ms": "200"}).headers["x-route-backend"] == "b"
        (line,) = log.of_requests()
    assert "SLO" in line["cascade"]["why"]


def test_a_client_that_leaves_ends_the_request_to_the_small_backend() -> None:
    one = small(b"", stream=streamed("hello", 0.9), pause=60.0)
    with cascaded(one, two := Scripted(), each={"a": {"timeout": 60}}) as (url, log):
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{url}/v1/chat/completions", json=SAY | {"stream": True}, timeout=0.3)
        (line,) = log.of_requests()
        wait_until(lambda: one.num_left == 1)
    assert line["status"] == 499 and not two.asked


def test_requests_for_more_than_one_text_have_no_cascade() -> None:
    cases: list[tuple[dict[str, Any], str, dict[str, str]]] = [
        (SAY | {"n": 2}, "/v1/chat/completions", {}),
        (SAY | {"logprobs": True}, "/v1/chat/completions", {}),
        (SAY | {"store": True}, "/v1/chat/completions", {}),
        (SAY, "/v1/chat/completions", {"x-route-backend": "b"}),
        ({"input": "x"}, "/v1/responses", {}),
        ({"prompt": ["x", "y"]}, "/v1/completions", {}),
        ({"prompt": "x", "echo": True}, "/v1/completions", {}),
        ({"prompt": "x", "logprobs": 0}, "/v1/completions", {}),
        ({"prompt": "x", "suffix": "y"}, "/v1/fim/completions", {}),
    ]
    one, able = small(said("hello")), {"needs": NEEDS}
    with cascaded(one, Scripted(), each={"b": able}, overrides=["backend"]) as (url, log):
        for body, path, headers in cases:
            assert "x-route-cascade" not in ask(url, body, path, **headers).headers
        assert not any("cascade" in line for line in log.of_requests(len(cases)))
    other = {"cascade": {"steps": ["edit"]}}
    with cascaded(one, Scripted(), **other) as (url, _):
        assert "x-route-cascade" not in ask(url).headers


def test_decisions_are_accepted_by_the_probability_of_their_label() -> None:
    def decided(chance: float) -> bytes:
        return json.dumps({"answers": {"q": {"type": "choice", "choice": "x", "confidence": chance}}}).encode()

    asked = {"state": "s", "questions": {"q": {"type": "choice", "criteria": {"x": None, "y": None}}}}
    for chance, how in ((0.9, "accepted"), (0.6, "rejected")):
        with cascaded(small(decided(chance)), Scripted(reply=lambda body: Reply(body=decided(1.0)))) as (url, _):
            assert ask(url, asked, "/v1/decisions").headers["x-route-cascade"] == how


def test_the_second_answer_of_a_shadow_is_the_one_that_the_client_did_not_get() -> None:
    how: dict[str, Any] = {"shadow": {"share": 1.0}, "grader": {"kind": "schema"}}
    for chance, backend, grades, num in ((0.9, "b", (1.0, 0.0), 1), (0.5, "a", (0.0, 1.0), 1)):
        one, two = small(said('{"n": 3}', chance)), Scripted(reply=says('{"n": "three"}'))
        with cascaded(one, two, **how) as (url, log):
            ask(url, SAY | FORMAT)
            (line,) = log.having("shadow_of", 1)
        assert line["backend"] == backend and (line["main_grade"], line["grade"]) == grades
        assert len(one.asked) == len(two.asked) == num


def test_both_answers_are_charged_and_a_log_with_cascades_is_decided_again(tmp_path: Any) -> None:
    with cascaded(small(said("hello", 0.5)), Scripted()) as (url, log):
        ask(url)
        log.of_requests()
        used = get(f"{url}/status").json()["used_today"]["all"]
        assert "daguerre_route_cascades_total" in get(f"{url}/metrics").text
        found = replay(log.write(tmp_path / "log.jsonl"))
    assert used["dollars"] == pytest.approx(0.11) and used["tokens"] == 20
    assert (found.decisions, found.differing) == (1, ())


def test_a_configuration_without_a_cascade_has_the_hash_that_older_logs_name() -> None:
    one = {"name": "a", "url": "http://h/v1", "model": "m"}
    assert Config.model_validate({"backends": [one]}).sha256.startswith("ba77f5ac61003f5d")
    plain = Config.model_validate({"backends": [one]})
    assert Config.model_validate({"backends": [one | {"drafts": ["chat"]}]}).sha256 != plain.sha256
    assert Config.model_validate({"backends": [one], "cascade": {"small": "a"}}).sha256 != plain.sha256


def test_a_cascade_that_cannot_work_is_refused() -> None:
    text = 'backends = [{name = "a", url = "http://h/v1", model = "m"}]\n[cascade]\nsmall = "%s"\nleast = {plan = 0.5}'
    with pytest.raises(DataError, match=r"line 3.*names no backend"):
        parse_config(text % "b", "f")
    with pytest.raises(DataError, match=r"line 4.*logprobs"):
        parse_config(text % "a", "f")


def test_likelihoods_are_read_from_all_shapes_and_taken_out_again(subtests: Any) -> None:
    half = math.log(0.5)
    older = {"choices": [{"text": "x", "logprobs": {"token_logprobs": [None, half, 2 * half]}}]}
    second = {"choices": [{"index": 1, "logprobs": {"content": [{"logprob": half}]}}]}
    labels = [{"type": "predicate", "probability": 0.2}, {"type": "choice", "confidence": 0.2}]
    cases: list[tuple[str, Callable[[], bytes], float | None]] = [
        ("chat", lambda: said("x", 0.25), 0.25),
        ("completions", lambda: json.dumps(older).encode(), 0.353553),
        ("chat", lambda: json.dumps(second).encode(), None),
        ("decisions", lambda: json.dumps({"answers": labels}).encode(), 0.4),
        ("decisions", lambda: json.dumps({"answers": [{"type": "new"}]}).encode(), None),
        ("chat", lambda: b"[]", None),
    ]
    for operation, body, likelihood in cases:
        with subtests.test(operation=operation, likelihood=likelihood):
            assert likelihood_of(operation, body(), streamed=False) == likelihood
    stream = b"".join(streamed("hello", 0.25))
    assert likelihood_of("chat", stream, streamed=True) == 0.25
    assert likelihood_of("chat", without_logprobs(stream, streamed=True), streamed=True) is None


def test_only_some_answers_are_checked_at_once_and_one_that_cannot_be_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, most = 0, 0

    async def checked(*given: Any) -> float:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.02)
        now -= 1
        if most == MOST_CHECKS:
            raise OSError("no more processes")
        return 1.0

    monkeypatch.setattr("daguerre.router.cascade.grade", checked)
    how = {"accept": ["schema"], "least": {}}
    with cascaded(small(said('{"n": 3}')), Scripted(), cascade=how) as (url, _), ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: ask(url, SAY | FORMAT), range(24)))
    assert most == MOST_CHECKS and {one.status_code for one in found} == {200}
    assert found[-1].headers["x-route-cascade"] == "rejected"
