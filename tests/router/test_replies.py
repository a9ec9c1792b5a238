"""What backends send is cut into whole events and read into checked types, however it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daguerre.router import replies
from daguerre.router.replies import BackendError, EventCheck, num_choices, passed_back, tokens_of
from scripted_backends import events

WHOLE = b": hi\n\n" + b"".join(events("one", "two")).replace(b"\n\n", b"\r\n\r\n", 1)


def passed(chunks: Iterable[bytes], check: EventCheck | None = None) -> tuple[bytes, bool]:
    """What a client gets of a stream, and whether it ends with an error."""

    async def sent() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def read() -> tuple[bytes, bool]:
        out = b""
        try:
            async for some in (check or EventCheck("a")).passed(sent()):
                out += some
        except BackendError:
            return out, True
        return out, False

    return asyncio.run(read())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(WHOLE)), max_size=12), st.binary(max_size=9))
def test_whole_events_pass_however_they_are_cut_and_nothing_else_does(cuts: list[int], rest: bytes) -> None:
    places = [0, *sorted(cuts), len(WHOLE)]
    chunks = [WHOLE[one:two] for one, two in zip(places, places[1:], strict=False)]
    check = EventCheck("a")
    assert passed(chunks, check) == (WHOLE, False)
    assert check.whole and check.events == 4 and check.finish == "stop"
    out, _ = passed([*chunks, rest.replace(b"\n", b"")])
    assert out == WHOLE


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_no_bytes_are_another_error_than_a_backends(chunks: list[bytes]) -> None:
    out, _ = passed(chunks)
    whole = b"".join(chunks).startswith(out.rstrip(b"\r\n"))
    assert whole and (not out or out.endswith((b"\n\n", b"\n\r\n")))


def test_a_last_event_that_lacks_only_its_blank_line_passes_with_one(subtests: pytest.Subtests) -> None:
    begun, end = b'data: {"choices": [{"index": 0, "delta": {}}]}\n\n', b'data: {"type": "response.completed"}'
    for rest in (b"data: [DONE]", end, b"event: x\r\n" + end):
        for cut in (b"", b"\n", b"\r\n"):
            with subtests.test(rest=rest, cut=cut):
                check = EventCheck("a")
                assert passed([begun, rest, cut], check) == (begun + rest + b"\n\n", False)
                assert check.whole
    for rest in (b"data: [DON", end[:-1], b"event: x\n", b": hi", b"\n", b"data: [DONE]\n" + end):
        with subtests.test(rest=rest):
            check = EventCheck("a")
            assert passed([begun, rest], check) == (begun, False)
            assert not check.whole


def test_a_stream_is_whole_with_all_choices_that_were_asked_for() -> None:
    def choice(index: int, reason: str | None) -> bytes:
        value = {"choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": reason}]}
        return b"data: " + json.dumps(value).encode() + b"\n\n"

    check = EventCheck("a", choices=2)
    for index, reason, whole in ((0, "stop", False), (1, None, False), (1, "length", True)):
        check.add(choice(index, reason))
        assert check.whole is whole
    done = EventCheck("a", choices=2)
    passed([choice(0, "stop"), b"data: [DONE]\n\n"], done)
    assert done.whole, "a backend that says so has ended the stream, however many choices it gave"


def test_a_request_asks_for_n_choices_of_each_prompt(subtests: pytest.Subtests) -> None:
    given: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": None, "prompt": "x"}, 1),
        ({"n": "2"}, 1),
        ({"n": 0}, 1),
        ({"n": 2, "prompt": ["a", "b", "c"]}, 6),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": []}, 1),
    ]
    for body, num in given:
        with subtests.test(body=body):
            assert num_choices(body) == num


def test_an_event_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MOST_EVENT", 100)
    good = b'data: {"a": 1}\n\n'
    assert passed([good + b"x" * 60, b"x" * 60]) == (good, True)
    assert passed([good * 50]) == (good * 50, False)


FIELDS = (
    *("choices", "delta", "message", "tool_calls", "id", "usage", "response", "output", "error", "type", "index"),
    *("finish_reason", "object", "function", "content", "item"),
)
NUMBERS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    NUMBERS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_an_answer_of_any_shape_is_read_or_a_backends_error(value: Any) -> None:
    whole, streamed = EventCheck("a"), EventCheck("a", lambda: None)
    with suppress(BackendError):
        whole.answer(value)
    passed([b"data: " + json.dumps(value).encode() + b"\n\n"], streamed)
    for check in (whole, streamed):
        assert all(isinstance(one, str) and one for one in check.tool_calls)
        assert check.finish is None or isinstance(check.finish, str)
        counted = tokens_of(check.usage, 1000)
        assert counted is None or all(0 <= one <= 1000 for one in counted)


def test_counts_that_cannot_be_are_none(subtests: pytest.Subtests) -> None:
    for into in (-1, 1001, 10**30, True, None, "7", 7.0, [7]):
        with subtests.test(into=into):
            assert tokens_of({"prompt_tokens": into, "completion_tokens": 1}, 1000) is None
    assert tokens_of({"input_tokens": 7, "output_tokens": 0}, 1000) == (7, 0) == tokens_of({"prompt_tokens": 7}, 1000)
    assert tokens_of({"prompt_tokens": 7, "completion_tokens": -1}, 1000) is None


def test_headers_that_cannot_be_written_do_not_pass() -> None:
    given = {"retry-after": "später", "content-type": "application/json\u0447", "openai-processing-ms": "3", "x": "1"}
    assert passed_back(given, False) == {"content-type": "application/json", "openai-processing-ms": "3"}
    assert passed_back({"retry-after": "7" * 300}, True) == {"content-type": "text/event-stream"}
