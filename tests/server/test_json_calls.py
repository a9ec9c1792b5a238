"""Calls that an answer has as plain JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from daguerre.server.calls import CallReader, JsonCalls, Said, joined, ordered

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS: dict[str, Any] = {"weather": CITY, "now": None}
OSLO = '{"city":"Oslo","days":2}'


def fits(call: str) -> bool:
    """What the automaton of calls decides elsewhere: here, no city is a number."""
    return '"city":5' not in call


def read(text: str, size: int, several: bool = True, **how: Any) -> tuple[str, list[tuple[str, str]]]:
    reader, said = CallReader(plain=JsonCalls(TOOLS, fits, several), **how), list[Said]()
    for start in range(0, len(text), size):
        said += reader.feed(text[start : start + size])
    shown, calls = joined(said + reader.feed("", last=True))
    assert reader.num_calls == len(calls)
    return shown, [(call.name, call.arguments) for call in calls]


CALL = f'{{"name": "weather", "arguments": {OSLO}}}'
CALLS: list[tuple[str, int]] = [
    (CALL, 1),
    (f"\n{CALL}\n", 1),
    (f"```json\n{CALL}\n```", 1),
    (f"```\n{CALL}\n```\n", 1),
    ('{"parameters": {"days": 2, "city": "Oslo"}, "name": "weather"}', 1),
    (f'{{"type": "function", "function": {CALL}}}', 1),
    (f"{CALL}\n{CALL}", 2),
    (f"[{CALL}, {CALL}]", 2),
    (f"```json\n[{CALL}]\n```", 1),
    (f"{{{CALL}", 1),
    (f"```json\n{{{CALL}}}\n```", 1),
    (f"{{{CALL}}}\n{{{CALL}", 2),
]
TEXTS = [
    f"Here it is: {CALL}",
    f"{CALL} is the call",
    f"```json\n{CALL}\n```\nand more",
    f"```python\n{CALL}\n```",
    '{"name": "other", "arguments": {}}',
    '{"name": "weather", "arguments": {"city": 5}}',
    '{"name": "weather", "arguments": "Oslo"}',
    '{"name": "weather", "arguments": {"city": "Os',
    '{"name": "weather"}',
    '{"city": "Oslo"}',
    '{"name": "weather", "arguments": {}, "city": "Oslo"}',
    "[1, 2]",
    "{}",
    "``",
    "{",
    "",
    "`x` is a name",
    f"{CALL}\n{OSLO}",
    "[" * 10_000,
    " " * 10_000,
    '{"name": "weather", "arguments": {"city": "\\ud800"}}',
]


def test_a_whole_answer_of_calls_is_calls_however_it_is_cut(subtests: pytest.Subtests) -> None:
    for text, num in CALLS:
        for size in (1, 3, 1000):
            with subtests.test(text, size=size):
                assert read(text, size) == ("", [("weather", OSLO)] * num)
    assert read(f"{CALL}\n{CALL}", 5, several=False) == (f"{CALL}\n{CALL}", [])
    assert read('{"name": "now", "arguments": {}}', 4)[1] == [("now", "{}")]


def test_anything_else_stays_text_byte_for_byte(subtests: pytest.Subtests) -> None:
    for text in TEXTS:
        for size in (1, 4, 1000):
            with subtests.test(text, size=size):
                assert read(text, size) == (text, [])


def test_a_text_that_cannot_be_a_call_any_more_is_shown_at_once() -> None:
    for text in ("H", '{"city', '{"name": "other"', "```python\n", "[1", "`x"):
        reader = CallReader(plain=JsonCalls(TOOLS, fits, True))
        shown = [said.text for piece in text for said in reader.feed(piece)]
        assert "".join(shown) == text, text


def test_stop_strings_end_a_text_that_might_have_been_a_call() -> None:
    assert read(f"{CALL} STOP and", 3, stops=("STOP",))[0] == f"{CALL} "


def test_members_are_in_the_order_of_their_schema() -> None:
    schema = {"properties": {"a": {}, "b": {"items": {"properties": {"x": {}, "y": {}}}}}}
    value = {"c": 1, "b": [{"y": 1, "x": 2}], "a": 3}
    assert json.dumps(ordered(value, schema)) == '{"a": 3, "b": [{"x": 2, "y": 1}], "c": 1}'
    assert ordered(value, True) == value


THOUGHTS: list[tuple[str, Any, str, str]] = [
    ("<think>\nIt is two.\n</think>\n\nTwo.", "may", "It is two.", "Two."),
    ("\n<think>a\n\nb</think>Two.", "may", "a\n\nb", "Two."),
    ("It is two.\n</think>\n\nTwo.", "does", "It is two.", "Two."),
    ("Two <think>.", "may", "", "Two <think>."),
    ("<thin ice>", "may", "", "<thin ice>"),
    ("<think>It is", "may", "It is", ""),
    ("<think>\n\n</think>\n\nTwo.", "may", "", "Two."),
    ("<think>a</think>b</think>", "may", "a", "b</think>"),
    ("<think>a</think>b", None, "", "<think>a</think>b"),
]


def test_what_is_thought_before_the_answer_is_told_apart(subtests: pytest.Subtests) -> None:
    for text, thinks, thought, answer in THOUGHTS:
        for size in (1, 2, 5, 1000):
            with subtests.test(text, size=size):
                reader, said = CallReader(calls=False, thinks=thinks), list[Said]()
                for start in range(0, len(text), size):
                    said += reader.feed(text[start : start + size])
                said += reader.feed("", last=True)
                assert ("".join(one.thought for one in said), joined(said)[0]) == (thought, answer)
    assert read(f"<think>Call it.</think>{CALL}", 3, thinks="may")[1] == [("weather", OSLO)]
