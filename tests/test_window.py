"""What is shown of texts that are longer than the context."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daguerre.decoding.context import BETWEEN, Window, joined_files, room_for, window
from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer

TOKENIZER = Tokenizer.default()
LINES = ["", "x = 1", "    return self.value", "def f(a, b):", "# ünïcödé ☃ text", "y" * 40, "\t\t", "import os", "  "]
texts = st.builds(
    lambda lines, last: "\n".join([*lines, last]),
    st.lists(st.sampled_from(LINES), max_size=30),
    st.sampled_from(["", "    ret", "z" * 90, "☃☃"]),
)
rooms = st.integers(1, 200)


def count(text: str, *, begins: bool = True) -> int:
    return len(TOKENIZER.encode(text, begins=begins)) if text else 0


def size(shown: Window) -> int:
    return count(shown.prefix) + count(shown.suffix, begins=False)


def cut_inside(part: str, first: str) -> bool:
    """Whether a part is less than the line at the gap."""
    return len(part) < len(first)


@settings(max_examples=100, deadline=None)
@given(texts, texts, rooms)
def test_what_is_shown_ends_at_the_gap_and_fits(before: str, after: str, room: int) -> None:
    shown = window(TOKENIZER, before, after, room)
    assert before.endswith(shown.before)
    assert after.startswith(shown.suffix)
    assert shown.prefix == shown.before
    assert shown.num_tokens == size(shown) <= room


@settings(max_examples=100, deadline=None)
@given(texts, texts, rooms)
def test_lines_are_whole_but_for_one_at_the_gap_that_is_too_long(before: str, after: str, room: int) -> None:
    shown = window(TOKENIZER, before, after, room)
    hidden = before[: len(before) - len(shown.before)]
    if hidden and not hidden.endswith("\n"):
        line = before.splitlines(keepends=True)[-1]
        assert cut_inside(shown.before, line)
        assert count(line) + count(shown.suffix, begins=False) > room
    if shown.suffix != after and not shown.suffix.endswith("\n"):
        line = after.splitlines(keepends=True)[0]
        assert cut_inside(shown.suffix, line)
        assert count(shown.before) + count(line, begins=False) > room


@settings(max_examples=100, deadline=None)
@given(texts, texts, rooms)
def test_no_line_is_dropped_that_there_is_room_for(before: str, after: str, room: int) -> None:
    shown = window(TOKENIZER, before, after, room)
    hidden = before[: len(before) - len(shown.before)]
    if hidden and hidden.endswith("\n"):
        lines = hidden.splitlines(keepends=True)
        more = "".join(lines[-1 - shown.before.count("\n") // 7 :]) + shown.before
        assert count(more) + count(shown.suffix, begins=False) > room
    rest = after[len(shown.suffix) :]
    if rest and (not shown.suffix or shown.suffix.endswith("\n")):
        more = shown.suffix + rest.splitlines(keepends=True)[0]
        assert count(shown.before) + count(more, begins=False) > room


@settings(max_examples=100, deadline=None)
@given(texts, texts, st.lists(texts, max_size=4), rooms)
def test_other_texts_take_only_what_is_left(before: str, after: str, extra: list[str], room: int) -> None:
    alone = window(TOKENIZER, before, after, room)
    shown = window(TOKENIZER, before, after, room, extra)
    assert (shown.before, shown.suffix) == (alone.before, alone.suffix)
    assert shown.num_tokens == size(shown) <= room
    assert all(text.startswith(part) for part, text in zip(shown.extra, extra, strict=True))
    for part, text in zip(shown.extra, extra, strict=True):
        assert part in ("", text) or part.endswith("\n")
    first = next((i for i in reversed(range(len(extra))) if shown.extra[i] != extra[i]), None)
    if shown.before != before:
        assert not any(shown.extra)
    elif first is not None:
        assert not any(shown.extra[:first])
        more = extra[first][len(shown.extra[first]) :].splitlines(keepends=True)[0]
        tried = joined_files([*shown.extra[:first], shown.extra[first] + more, *shown.extra[first + 1 :]])
        assert count(tried + shown.before) + count(shown.suffix, begins=False) > room


def test_long_texts_are_shown_three_quarters_before_and_one_behind() -> None:
    before = "".join(f"a{number} = {number}\n" for number in range(2000))
    after = "".join(f"b{number} = {number}\n" for number in range(2000))
    shown = window(TOKENIZER, before, after, 800)
    assert count(shown.suffix, begins=False) == pytest.approx(200, abs=12)
    assert 600 * 7 / 8 - 12 < count(shown.prefix) < 612
    assert shown.shown_before.characters == len(shown.before)
    assert shown.shown_before.lines == shown.before.count("\n")
    assert not shown.shown_after.complete


def test_what_one_side_leaves_goes_to_the_other() -> None:
    long = "".join(f"a{number} = {number}\n" for number in range(2000))
    behind = window(TOKENIZER, "x = 1\n", long, 800)
    assert behind.shown_before.complete
    assert count(behind.suffix, begins=False) > 770
    assert count(window(TOKENIZER, long, "", 800).prefix) > 780 * 7 / 8


def test_a_text_that_is_cut_begins_at_the_same_line_for_a_while() -> None:
    """While 256 lines are written below one another, 40 of which have room."""
    lines = [f"a{number} = {number}\n" for number in range(1000, 1256)]
    shown = [window(TOKENIZER, "".join(lines[:num]), "\nb = 1\n", 500).before for num in range(len(lines))]
    begins = [part.partition("\n")[0] for part in shown if part]
    assert len(set(begins)) <= 1 + 256 // 4 and max(part.count("\n") for part in shown) < 64


def test_the_last_of_the_other_texts_comes_first_to_be_shown() -> None:
    small, large = "s = 1\n", "".join(f"l{number} = 1\n" for number in range(500))
    shown = window(TOKENIZER, "x = ", "\n", 100, [small, large, small])
    assert shown.extra[2] == small
    assert shown.extra[1] and large.startswith(shown.extra[1]) and not shown.shown_extra[1].complete
    assert shown.extra[0] == ""
    assert shown.prefix == shown.extra[1].rstrip("\n") + BETWEEN + "s = 1" + BETWEEN + "x = "


class Counting:
    """The tokenizer, which counts the characters that it is given."""

    def __init__(self) -> None:
        self.characters = 0

    def encode(self, text: str, **how: Any) -> list[int]:
        self.characters += len(text)
        return TOKENIZER.encode(text, **how)


def test_a_text_of_millions_of_characters_is_not_all_encoded() -> None:
    for character in ("x", " ", "\n", "é\n"):
        tokenizer = Counting()
        shown = window(tokenizer, character * 2_000_000, character * 2_000_000, 900)  # type: ignore[arg-type]
        assert tokenizer.characters < 1_000_000, character
        assert 800 < shown.num_tokens <= 900


class LongTokens:
    """A tokenizer whose tokens have 64 characters."""

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        return [0] * (-(-len(text) // 64))


def test_lines_are_whole_where_tokens_are_longer_than_thought() -> None:
    lines = ("x" * 149 + "\n") * 30
    for sides in ((lines, ""), ("", lines)):
        shown = window(LongTokens(), *sides, 8)  # type: ignore[arg-type]
        assert (len(shown.before) or len(shown.suffix)) % 150 == 0
        assert 0 < shown.num_tokens <= 8


def test_another_text_of_one_long_line_is_not_encoded() -> None:
    tokenizer = Counting()
    shown = window(tokenizer, "x = 1\n", "", 900, ["x" * 4_000_000])  # type: ignore[arg-type]
    assert tokenizer.characters < 1000
    assert shown.extra == ("",)


def test_a_budget_without_room_is_refused(models: dict[str, object]) -> None:
    config = models["causal"].config  # type: ignore[attr-defined]
    assert room_for(config, 100) == config.max_positions - 100 - len(config.first) - 1
    with pytest.raises(InputError, match="leaves no room"):
        room_for(config, config.max_positions - 2)
    with pytest.raises(InputError, match="room for 0 tokens"):
        window(TOKENIZER, "a", "b", 0)
