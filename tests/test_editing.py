"""Templates and spans: what is outside them comes back character for character."""

from __future__ import annotations

import difflib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daguerre.decoding.text_spans import find_spans, split_at, split_template, unified_diff
from daguerre.errors import InputError


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="§"), max_size=20), min_size=2, max_size=5))
def test_a_template_is_its_pieces(pieces: list[str]) -> None:
    assert split_template("§".join(pieces), "§") == tuple(pieces)


def test_marks_are_taken_as_they_are() -> None:
    assert split_template("{a}{}b{}", "{}") == ("{a}", "b", "")
    assert split_template("x = {}  # <gap>", "<gap>") == ("x = {}  # ", "")
    with pytest.raises(InputError, match=r"no gap: write \{\}"):
        split_template("x = 1", "{}")


@given(st.text(max_size=60), st.data())
def test_the_pieces_around_spans_and_what_is_in_them_are_the_text(text: str, data: st.DataObject) -> None:
    edges = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=8)))
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    found = find_spans(text, spans[::-1])
    assert list(found) == sorted(spans)
    pieces = split_at(text, found)
    inside = [text[a:b] for a, b in found] + [""]
    assert "".join(p + i for p, i in zip(pieces, inside, strict=True)) == text


@given(st.text(alphabet="ab \t\r\n\ufeffé🙂\x0b\u2028", max_size=40), st.data())
def test_lines_end_at_line_feeds_alone(text: str, data: st.DataObject) -> None:
    lines = text.split("\n")
    first = data.draw(st.integers(1, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    ((start, end),) = find_spans(text, lines=[(first, last)])
    found = text[start:end]
    whole = "\n".join(lines[first - 1 : last])
    assert found == (whole[:-1] if last < len(lines) and whole.endswith("\r") else whole)
    assert text[:start] == "".join(line + "\n" for line in lines[: first - 1])


def test_a_pattern_finds_all_its_matches() -> None:
    text = "a = 1\r\nbb = 22\r\n"
    assert [text[a:b] for a, b in find_spans(text, pattern=r"\d+")] == ["1", "22"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "one way"),
    ({"spans": [(0, 1)], "pattern": "x"}, "one way"),
    ({"spans": []}, "nothing to edit"),
    ({"pattern": "zz"}, "matches nowhere"),
    ({"pattern": "("}, "not a regular expression"),
    ({"spans": [(0, 3), (2, 5)]}, "overlap at character 2"),
    ({"spans": [(3, 2)]}, "not within the text of 6"),
    ({"spans": [(0, 7)]}, "not within the text of 6"),
    ({"spans": [(-1, 2)]}, "not within"),
    ({"lines": [(0, 1)]}, "lines 0 to 1 are not in the text, which has 2"),
    ({"lines": [(1, 3)]}, "which has 2"),
    ({"lines": [(2, 1)]}, "lines 2 to 1 end before they begin"),
]


def test_what_cannot_be_edited_is_one_line(subtests: pytest.Subtests) -> None:
    for how, message in WRONG:
        with subtests.test(str(how)), pytest.raises(InputError, match=re.escape(message)):
            find_spans("abc\nde", **how)


@given(st.text(alphabet="ab\n\r", max_size=30), st.text(alphabet="ab\n\r", max_size=30))
def test_the_diff_gives_back_both_texts(before: str, after: str) -> None:
    diff = unified_diff(before, after)
    assert (diff == "") == (before == after)
    kept = [line for line in diff.split("\n") if line[:1] in ("+", "-")]
    removed = "".join(line[1:] for line in kept if line[0] == "-")
    added = "".join(line[1:] for line in kept if line[0] == "+")
    matcher = difflib.SequenceMatcher(None, _lines(before), _lines(after), autojunk=False)
    changed = [op for op in matcher.get_opcodes() if op[0] != "equal"]
    assert removed == "".join("".join(_lines(before)[a:b]).replace("\n", "") for _, a, b, _, _ in changed)
    assert added == "".join("".join(_lines(after)[c:d]).replace("\n", "") for _, _, _, c, d in changed)


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def test_the_diff_says_where_a_text_does_not_end_its_last_line() -> None:
    assert unified_diff("a\nb", "a\nc\n") == "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"
