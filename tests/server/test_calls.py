"""Calls of functions in a text that comes in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from daguerre.server.calls import CallReader, Said, joined, written

ARGUMENTS = [
    {},
    {"city": "Oslo"},
    {"a": {"b": [1, {"c": "}"}], "d": 'quote " and \\'}, "e": "</tool_call><tool_call>"},
    {"text": '\\"}}</tool_call>'},
]


def read(text: str, size: int, **how: Any) -> list[Said]:
    reader, said = CallReader(**how), list[Said]()
    for start in range(0, len(text), size):
        said += reader.feed(text[start : start + size])
    return said + reader.feed("", last=True)


def test_calls_are_read_however_the_text_is_cut(subtests: pytest.Subtests) -> None:
    text = "".join(written(f"f{number}", json.dumps(value)) for number, value in enumerate(ARGUMENTS))
    for size in (1, 2, 3, 7, 1000):
        with subtests.test(size=size):
            shown, calls = joined(read("See <tool_cal: " + text, size))
            assert shown == "See <tool_cal: "
            assert [(call.index, call.name, json.loads(call.arguments)) for call in calls] == [
                (number, f"f{number}", value) for number, value in enumerate(ARGUMENTS)
            ]
            assert len({call.id for call in calls}) == len(calls)


def test_a_piece_is_shown_as_soon_as_it_can_be_no_mark() -> None:
    reader = CallReader()
    assert reader.feed("a <tool") == [Said("a ")]
    assert reader.feed("s> b") == [Said("<tools> b")]
    assert reader.feed("<tool_call") == []
    (call,) = reader.feed('>{"name":"f","arguments":')
    assert call.call is not None and call.call.name == "f"
    assert reader.feed('{"x":') == [Said(arguments='{"x":')]
    assert reader.feed("1}}</tool") == [Said(arguments="1}")]
    assert reader.feed("_call>", last=True) == []


def test_stop_strings_end_the_text_but_not_the_arguments_of_calls(subtests: pytest.Subtests) -> None:
    for size in (1, 3, 1000):
        with subtests.test(size=size):
            assert joined(read("one STOP two", size, stops=("STOP", "tw")))[0] == "one "
            assert joined(read("one STO", size, stops=("STOP",)))[0] == "one STO"
            text, calls = joined(read(written("f", '{"x":"STOP"}'), size, stops=("STOP",)))
            assert (text, calls[0].arguments) == ("", '{"x":"STOP"}')


def test_in_text_beside_which_calls_are_alone_marks_may_be_anything(subtests: pytest.Subtests) -> None:
    text = '{"a":"<tool_call>{"}'
    for size in (1, 5, 1000):
        with subtests.test(size=size):
            assert joined(read(text, size, alone=True)) == (text, [])
            assert len(joined(read(written("f", "{}") * 2, size, alone=True))[1]) == 2


def test_without_calls_marks_are_text_and_spaces_before_it_may_be_left_out() -> None:
    text = "  \n" + written("f", "{}")
    assert joined(read(text, 1, calls=False, strip=True)) == (text.lstrip(" "), [])
    assert joined(read(text, 1, calls=False)) == (text, [])
