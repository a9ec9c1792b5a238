"""Backends that lie, break off and never end, and clients that send too much: others are served, and nobody pays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attacks.routers import BACKEND, PATH, SAY, Routed, bearer, refused, routed
from scripted_backends import Reply, answer, events

STREAM = SAY | {"stream": True}
ERROR = b'{"error": {"message": "no"}}'
FAULTLESS = "[circuit]\nfailures = 100000\n[retry]\nbackoff = 0.0\n"


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    limits = "[keys.ana]\noperator = true\n"
    with routed(tmp_path_factory.mktemp("router"), "ana", "ben", more=FAULTLESS + limits) as one:
        yield one


@pytest.fixture(autouse=True)
def lives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever is done, the router goes on and its log has no error of its own."""
    yield
    if "router" in request.fixturenames:
        router: Routed = request.getfixturevalue("router")
        router.a.reply = router.b.reply = lambda body: Reply()
        assert router.process.client.get("/health").status_code == 200
        assert router.ask().content == answer()


def data(content: bytes) -> list[Any]:
    """The events of a stream, as a client that believes in whole ones reads them."""
    parts = [part for part in content.decode().split("\n\n") if part]
    assert content.endswith(b"\n\n") and all(part.startswith("data: ") for part in parts), content
    return [part[6:] if part[6:] == "[DONE]" else json.loads(part[6:]) for part in parts]


def test_a_stream_that_dies_inside_an_event_ends_with_whole_ones(router: Routed, subtests: pytest.Subtests) -> None:
    first, last = events("one", done=False)[0], events("two")[0]
    for cut in (1, 8, len(last) - 2, len(last) - 1):
        for ends in ("reset", "well"):
            with subtests.test(cut=cut, ends=ends):
                router.a.reply = lambda body, cut=cut, ends=ends: Reply(stream=[first, last[:cut]], ends=ends)
                *said, error = data(router.ask(STREAM).content)
                whole = ends == "well" and cut >= len(last) - 2  # only its blank line is missing
                texts = [one["choices"][0]["delta"]["content"] for one in said]
                assert texts == (["one", "two"] if whole else ["one"])
                assert error["error"]["code"] == "backend_failed"


def test_events_that_come_in_pieces_are_passed_on_whole(router: Routed) -> None:
    whole = b"".join(events("one", "two")).replace(b"\n\n", b"\r\n\r\n")
    router.a.reply = lambda body: Reply(stream=[whole[place : place + 1] for place in range(len(whole))])
    assert router.ask(STREAM).content == whole


def test_a_stream_with_a_reason_for_its_end_is_whole(router: Routed) -> None:
    router.a.reply = lambda body: Reply(stream=events("one", done=False))
    found = router.ask(STREAM)
    assert found.content == b"".join(events("one", done=False)) and router.line(found)["status"] == 200


ONLY_ERRORS: dict[str, Reply] = {
    "an error": Reply(body=ERROR),
    "null": Reply(body=b"null"),
    "a list": Reply(body=b"[]"),
    "a text": Reply(body=b'"ok"'),
    "a first event that is an error": Reply(stream=[b"data: " + ERROR + b"\n\n", b"data: [DONE]\n\n"]),
    "an error after a comment": Reply(stream=[b": wait\n\n", b"data: " + ERROR + b"\n\n"]),
    "an error by its name": Reply(stream=[b'event: error\ndata: {"type": "error", "message": "no"}\n\n']),
    "a first event that is null": Reply(stream=[b"data: null\n\n"]),
    "a first event that is a list": Reply(stream=[b"data: [1]\n\n"]),
    "no event": Reply(stream=[b"data: [DONE]\n\n"]),
    "an event that never ends": Reply(stream=[b"data: " + b"x" * (1 << 20)] * 100),
    "a line that never ends": Reply(stream=[b"x" * (1 << 20)] * 100),
}


def test_what_is_only_an_error_is_no_answer_and_costs_nothing(router: Routed, subtests: pytest.Subtests) -> None:
    for name, reply in ONLY_ERRORS.items():
        with subtests.test(name):
            stream = reply.stream is not None
            router.a.reply = lambda body, reply=reply: reply
            router.b.reply = lambda body, stream=stream: Reply(stream=events("hi")) if stream else Reply()
            found = router.ask(STREAM if stream else SAY)
            assert found.status_code == 200 and found.headers["x-route-backend"] == "b"
            assert found.content == (b"".join(events("hi")) if stream else answer())
            line = router.line(found)
            assert [(each["backend"], "error" in each) for each in line["attempts"]] == [("a", True), ("b", False)]
            assert line["cost"] == pytest.approx(0.01 + 4e-6 * line["tokens"]["output"])


def test_an_error_in_the_middle_ends_the_stream_as_a_failure(router: Routed) -> None:
    first = events("one", done=False)[0]
    router.a.reply = lambda body: Reply(stream=[first + b"data: " + ERROR + b"\n\n", b"data: [DONE]\n\n"])
    found = router.ask(STREAM)
    assert data(found.content)[-1]["error"]["code"] == "backend_failed" and router.line(found)["status"] == 502


def with_(**fields: Any) -> bytes:
    """A whole answer with other fields."""
    return json.dumps(json.loads(answer()) | fields).encode()


def used(into: Any, out: Any) -> bytes:
    return with_(usage={"prompt_tokens": into, "completion_tokens": out})


def message(**fields: Any) -> bytes:
    return with_(choices=[{"index": 0, "message": {"role": "assistant", "content": "x"} | fields}])


LIES: dict[str, Reply] = {
    "tokens below 0": Reply(body=used(-(10**9), -(10**9))),
    "some below 0": Reply(body=used(7, -1)),
    "a billion tokens": Reply(body=used(10**9, 10**9)),
    "more than 64 bits": Reply(body=used(9 * 10**18, 9 * 10**18)),
    "more than any integer": Reply(body=used(10**40, 1)),
    "truth for tokens": Reply(body=used(True, True)),
    "a text for tokens": Reply(body=used("7", None)),
    "a list for usage": Reply(body=with_(usage=[1])),
    "a number for tool calls": Reply(body=message(tool_calls=5)),
    "numbers for tool calls": Reply(body=message(tool_calls=[5, None, {"id": 5}, {"id": ""}, {"id": "x" * 100_000}])),
    "ten thousand tool calls": Reply(body=message(tool_calls=[{"id": str(number)} for number in range(10_000)])),
    "a number for choices": Reply(body=with_(choices=5)),
    "numbers for choices": Reply(body=with_(choices=[5, None])),
    "a number for a message": Reply(body=with_(choices=[{"message": 5}])),
    "an object for a reason": Reply(body=with_(choices=[{"message": {}, "finish_reason": {"a": 1}}])),
    "a response of numbers": Reply(body=with_(object="response", output=5, id=5)),
    "a retry-after in no Latin": Reply(headers={"retry-after": "\u043f\u043e\u0437\u0436\u0435"}),
    "a content type in no Latin": Reply(headers={"content-type": "application/json; \u043f"}),
    "a stream of these": Reply(
        stream=[
            b'data: {"choices": [{"index": {}, "delta": {"tool_calls": 5}}, 7]}\n\n',
            b'data: {"choices": 5, "usage": {"prompt_tokens": -1, "completion_tokens": 1e300}}\n\n',
            b"data: [DONE]\n\n",
        ]
    ),
}


def test_lies_about_an_answer_are_neither_believed_nor_a_fault(router: Routed, subtests: pytest.Subtests) -> None:
    for name, reply in LIES.items():
        with subtests.test(name):
            router.a.reply = lambda body, reply=reply: reply
            found = router.ask(SAY | {"stream": reply.stream is not None})
            line = router.line(found)
            assert found.status_code == 200 and found.headers["x-route-backend"] == "a"
            assert line["status"] == 200 and 0 < line["cost"] < 0.02
            assert 0 <= line["tokens"]["input"] < 1e5 and 0 <= line["tokens"]["output"] < 1e5
    page = router.process.client.get("/status", headers=bearer("ana")).json()
    assert 0 < page["used_today"]["ana"]["dollars"] < 1 and page["backends"]["a"]["cost"] < 1
    assert page["backends"]["a"]["requests"] >= len(LIES)


def test_an_owner_is_told_what_it_used_and_an_operator_what_all_did(router: Routed) -> None:
    for owner in ("ana", "ben", "ben"):
        assert router.ask(owner=owner).status_code == 200
    all_, own = (router.process.client.get("/status", headers=bearer(name)) for name in ("ana", "ben"))
    assert {"ana", "ben"} <= set(all_.json()["used_today"]) and set(own.json()["used_today"]) == {"ben"}
    assert {one["owner"] for one in own.json()["last"]} == {"ben"} and "ana" not in own.text


BODIES = {
    "empty objects for messages": b'{"messages": [' + b"{}," * 2_000_000 + b"{}]}",
    "a hundred thousand messages": b'{"messages": [' + b'{"role":"user"},' * 100_000 + b"{}]}",
    "lists in lists": b'{"messages": [], "x": [' + b"[[]]," * 200_000 + b"[]]}",
    "nested deeply": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


def test_bodies_of_too_many_parts_are_refused_and_reach_no_backend(router: Routed, subtests: pytest.Subtests) -> None:
    asked = len(router.a.asked) + len(router.b.asked)
    for name, body in BODIES.items():
        with subtests.test(name):
            assert router.ask(body).status_code in (400, 413)
    assert len(router.a.asked) + len(router.b.asked) == asked


def peak(pid: int) -> int:
    """The most bytes of memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_a_kept_answer_of_any_size_is_passed_on_as_it_comes(router: Routed) -> None:
    made = b'{"id": "resp_1", "object": "response", "output": []}'
    router.a.reply = lambda body: Reply(body=made)
    asked = {"input": "x", "store": True}
    assert router.process.client.post("/v1/responses", json=asked, headers=bearer("ana")).status_code == 200
    router.a.reply = lambda body: Reply(body=b"7" * (100 << 20))
    before, num = peak(router.process.process.pid), 0
    with router.process.client.stream("GET", "/v1/responses/resp_1", headers=bearer("ana")) as found:
        for chunk in found.iter_raw():
            num += len(chunk)
    assert num == 100 << 20 and peak(router.process.process.pid) - before < 50 << 20
    assert router.process.client.get("/v1/responses/resp_1", headers=bearer("ben")).status_code == 404


def test_requests_that_make_a_backend_fail_close_it_to_nobody_else(tmp_path: Path) -> None:
    bad = Reply(500, b"{}")
    rules = "[circuit]\ncool = 60.0\n[retry]\nbackoff = 0.0\n"

    def poisoned(body: dict[str, Any]) -> Reply:
        return bad if "poison" in json.dumps(body) else Reply()

    with routed(tmp_path, "ana", "ben", "eve", more=rules) as router:
        router.a.reply = poisoned

        def backends(owner: str, *users: str) -> str:
            return "".join(router.ask(SAY | {"user": one}, owner).headers["x-route-backend"] for one in users)

        assert backends("eve", *["poison"] * 5) == "bbbbb", "one request proves nothing"
        assert len(router.a.asked) == 5
        assert backends("ben", "x") == "a"
        assert backends("eve", *(f"poison {number}" for number in range(5))) == "bbbbb"
        assert len(router.a.asked) == 5 + 1 + 2, "eve's own circuit is open after three of her requests"
        assert backends("eve", "x") == "b" and backends("ben", "x") == backends("ana", "x") == "a"
        router.a.reply = lambda body: bad
        assert backends("ben", "1", "2") + backends("ana", "3") == "bbb"
        num = len(router.a.asked)
        assert backends("ana", "4", "5") == "bb" and len(router.a.asked) == num, "it fails for several"


def test_a_state_belongs_to_one_router(tmp_path: Path) -> None:
    with routed(tmp_path) as router:
        assert "another router uses" in refused("route", "--config", tmp_path / "route.toml", "--port", "0")
        assert router.process.client.post(PATH, json=SAY).status_code == 200
    text = BACKEND.format(name="a", url="http://127.0.0.1:1/v1", price=0)
    (tmp_path / "other.toml").write_text(f'{text}[server]\nstate = "{tmp_path}/./state"\n[keys.bob]\n')
    assert "bob" in refused("route", "--config", tmp_path / "other.toml", "--port", "0")
