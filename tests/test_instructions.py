"""Listings of files and snippets, and what a model's folder says that it was trained to do."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import daguerre
from daguerre.errors import CheckpointError, InputError
from daguerre.instructions import (
    MARKER,
    apply_pattern,
    apply_prompt,
    bounds_of,
    lettered,
    lines_of,
    listing,
    read_listing,
    read_merge,
    tasks_in,
)

LINES = st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=12), min_size=1, max_size=30)


@given(LINES)
def test_a_listing_is_read_back(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    assert lines_of(text) == lines
    assert read_listing(listing(lines)) == text
    assert read_listing("".join(f"b {line}\n" if line else "b\n" for line in lines)) == text


def test_what_has_no_label_stays_as_it_is() -> None:
    assert read_listing("") == ""
    assert read_listing("12\n13 x\nreturn 1\n1.5\n") == "\nx\nreturn 1\n1.5\n"
    assert read_listing("1 x") == "x\n"  # cut by the most tokens


def test_markers_of_models_are_known_and_other_lines_are_none() -> None:
    for line in ("# ... existing code ...", "    # ... existing code ...", "// ... rest of code ...", "# ..."):
        assert MARKER.fullmatch(line), line
        assert lettered(["x = 1", line]) == "a x = 1 #\n...\n", line
    for line in ("...", "# existing code", "x = 1  # ... existing code ...", "# ... and so on"):
        assert not MARKER.fullmatch(line), line


def test_a_snippet_has_as_many_lines_as_there_are_letters() -> None:
    assert lettered([""] * 52).endswith("Y\nZ\n")
    with pytest.raises(InputError, match="52 lines"):
        lettered([""] * 53)


CODE = ["import os", "", "x = 1", "print(x)"]


def test_any_text_may_be_in_a_snippet() -> None:
    snippet = ["# ...", "\x000\x00", "\x007\x00 (a|b)*", "\r\\ #3", "# ..."]
    pattern = apply_pattern(CODE, snippet)
    assert re.fullmatch(pattern, lettered(snippet, ["", "+1", "", "+1", ""]))
    assert not re.fullmatch(pattern, lettered(snippet, ["", "+1", "", "+5", ""]))


NUMBERS = [f"{sign}{number}" for sign in ("", "+") for number in range(6)]
PLACES = [number for number in NUMBERS if number not in ("0", "5")]
"""Those that a file of four lines has, and one too many."""


CHUNKS: list[tuple[list[list[str]], bool]] = [
    ([["a", "new", "d"], ["c"]], True),
    ([["a"], ["new"], ["c", "e"]], True),
    ([["a"], ["", "new"], ["a"]], True),
    ([["b", "new"], ["c"]], False),
    ([["new", "a"], ["e", "f"]], True),
    ([["new", "b", "a"], ["c", "f"]], True),
    ([["a", "b", "new"], ["e"]], False),
    ([["c"], ["b"]], True),
]


def test_numbers_are_those_of_equal_lines_or_any_that_are_in_order(subtests: pytest.Subtests) -> None:
    """A snippet with a gap at both ends, only at its end, and only at its beginning."""
    for (chunks, equal), whole in product(CHUNKS, (slice(None), slice(1, None), slice(0, -1))):
        snippet = ([line for chunk in chunks for line in ("# ...", *chunk)] + ["# ..."])[whole]
        with subtests.test(str(snippet)):
            check_numbers(snippet, equal)


def check_numbers(snippet: list[str], equal: bool) -> None:
    code = ["a", "b", "a", "c"]
    bounds = [i for i, bound in enumerate(bounds_of(snippet)) if bound]
    pattern = re.compile(apply_pattern(code, snippet, equal))
    edits, allowed = set(), set()
    for numbers in product(NUMBERS if len(bounds) < 4 else PLACES, repeat=len(bounds)):
        placed = dict(zip(bounds, numbers, strict=True))
        answer = lettered(snippet, [placed.get(i, "") for i in range(len(snippet))])
        if pattern.fullmatch(answer):
            allowed.add(numbers)
        with suppress(InputError):
            read_merge(code, answer)
            if all(_may_be(code, snippet[i], number) or not equal for i, number in placed.items()):
                edits.add(numbers)
    if edits:
        assert edits <= allowed
        for place in range(len(bounds)):  # none that no edit has
            assert {one[place] for one in allowed} == {one[place] for one in edits}
    else:
        assert allowed == {("4", "2")}  # the snippet has the lines in another order: the answer is no edit


def _may_be(code: list[str], line: str, number: str) -> bool:
    if not line.strip() or line not in code:  # none of them is like it
        return number.startswith("+")
    return not number.startswith("+") and 0 < int(number) <= 4 and code[int(number) - 1] == line


def test_a_new_line_removes_none_that_its_chunk_does_not_have() -> None:
    """A file whose last lines are new, or whose new line stands before one of its own."""
    code, gap = ["import os", "", "", "def f():", "    return 1"], "# ..."
    for snippet, numbers in (
        ([gap, "x = 1", "def f():", gap], {("+3", "4")}),  # not +1 or +2: two blank lines, or one, would go
        ([gap, "", "x = 1", "def f():", gap], {("+2", "4"), ("+3", "4")}),
        ([gap, "", "y = 2"], {("+5",)}),  # not +1: all behind it would go
    ):
        pattern = re.compile(apply_pattern(code, snippet))
        bounds = [at for at, bound in enumerate(bounds_of(snippet)) if bound]
        found = set[tuple[str, ...]]()
        for numbered in product([f"{sign}{n}" for sign in ("", "+") for n in range(6)], repeat=len(bounds)):
            placed = dict(zip(bounds, numbered, strict=True))
            if pattern.fullmatch(lettered(snippet, [placed.get(at, "") for at in range(len(snippet))])):
                found.add(numbered)
        assert found == numbers


def test_a_line_replaces_none_but_the_one_that_is_most_like_it() -> None:
    code, gap = ["import os", "def area(self):", "def total(self):", "    return 1"], "# ..."
    for whole, numbers in (
        (["# ...", "def area(self, unit):", gap], {"2", "+0", "+1", "+2", "+3", "+4"}),
        (["# ...", "print(os)", gap], {"+0", "+1", "+2", "+3", "+4"}),
        (["import abc", gap], {"+0"}),
        ([gap, "    return 2"], {"4", "+4"}),
    ):
        pattern = re.compile(apply_pattern(code, whole))
        answers = {
            number: lettered(whole, ["" if line == gap else number for line in whole]) for number in [*NUMBERS, "5"]
        }
        assert {number for number, answer in answers.items() if pattern.fullmatch(answer)} == numbers


def test_a_merge_shows_numbers_at_the_ends_of_lines() -> None:
    snippet = ["# ... existing code ...", "x = 1", "", "y = 2 #7", "print(x)"]
    assert apply_prompt(CODE, snippet) == (
        "#> file\nimport os #1\n#2\nx = 1 #3\nprint(x) #4\n"
        "#> apply\n...\na x = 1 #\nb\nc y = 2 #7\nd print(x)\n#> result\n"
    )
    answer = "...\na x = 1 #3\nb\nc y = 2 #7\nd print(x)\n"
    assert re.fullmatch(apply_pattern(CODE, snippet), answer)
    for other in (
        answer + "x",
        answer.replace("x = 1", "x = 2"),
        answer.replace("#3", "#5"),
        answer.replace("#7", "#8"),
    ):
        assert not re.fullmatch(apply_pattern(CODE, snippet), other)
    free = apply_pattern(CODE, snippet, equal=False)
    assert re.fullmatch(free, answer) and re.fullmatch(free, answer.replace("#3", "#2"))
    assert not re.fullmatch(apply_pattern(CODE, snippet), answer.replace("#3", "#2"))
    assert bounds_of(snippet) == [False, True, False, False, False]
    assert lettered(["x = 1", "# ...", ""], [1, 0, 12]) == "a x = 1 #1\n...\nb #12\n"


MADE: list[tuple[str, list[str]]] = [
    ("...\na x = 1 #3\nb\nc y = 2 #7\nd print(x)\n", ["import os", "", "x = 1", "", "y = 2 #7", "print(x)"]),
    ("...\na x = 1 #3\nb y #4\n...\n", ["import os", "", "x = 1", "y"]),
    ("a import re\nb import os #1\n...\n", ["import re", *CODE]),
    ("...\na #2\nb z\n", ["import os", "", "z"]),
    ("...\na x = 2 #3\n...\n", ["import os", "", "x = 2", "print(x)"]),
    ("...\na import os #1\n...\nb x = 1 #3\n...\n", CODE),
    ("a y\nb z\n", ["y", "z"]),
    ("a import re #+0\n...\n", ["import re", *CODE]),
    ("...\na y #+4\n", [*CODE, "y"]),
    ("...\na y #+2\nb x = 1\nc print(x)\n", ["import os", "", "y", "x = 1", "print(x)"]),
    ("...\na x = 1 #3\nb print(x)\nc y #+4\n...\n", [*CODE, "y"]),
    ("a import os\nb y #+1\n...\n", ["import os", "y", *CODE[1:]]),
    ("...\na y #+1\nb\nc x = 1 #3\n...\n", ["import os", "y", *CODE[1:]]),
    ("...\na import os #1\nb x = 1 #3\n...\n", ["import os", "x = 1", "print(x)"]),
    ("a x\nb y #2\n...\n", ["x", "y", *CODE[2:]]),
    ("...\na x = 2 #3\nb y #3\n...\n", ["import os", "", "x = 2", "y", "print(x)"]),
    ("...\na y #+1\nb z #+1\n...\n", ["import os", "y", "z", "", "x = 1", "print(x)"]),
    ("...\na y #+2\nb x = 1 #3\n...\nc z #4\n", ["import os", "", "y", "x = 1", "z"]),
    ("...\na x = 1 #3\nb y #+3\n...\n", ["import os", "", "x = 1", "y", "print(x)"]),
    ("...\na y #+1\n...\nb #+2\nc x = 1\nd z #4\n...\n", ["import os", "y", "", "", "x = 1", "z"]),
    ("...\na #+1\nb x = 1\nc z #4\n...\n", ["import os", "", "x = 1", "z"]),
    ("...\n", CODE),
]
"""Answers, and the files that they make of CODE."""


def test_an_edit_makes_a_file(subtests: pytest.Subtests) -> None:
    for answer, made in MADE:
        with subtests.test(answer):
            assert read_merge(CODE, answer) == made
            lines = answer.splitlines(keepends=True)
            certain = [read_merge(CODE, "".join(lines[:num]), ended=False) for num in range(1, len(lines) + 1)]
            assert all(made[: len(part)] == part for part in certain)


NO_EDITS: list[tuple[str, str]] = [
    ("...\na x = 1\n...\n", "without its number: 'x = 1'"),
    ("...\na x = 1 #9\n...\n", "lines 9 to 9 are not there"),
    ("...\na x = 1 #0\n...\n", "not there"),
    ("...\na print(x) #4\nb x = 1 #3\n...\n", "lines 4 to 3"),
    ("...\na x = 1 #3\n...\nb x = 1 #3\n", "come twice"),
    ("...\na x #99999999\n", "without its number"),
    ("...\na x #+5\n", "not there"),
    ("...\na y #+0\nb x = 1 #3\n...\n", "lines 1 to 3"),  # line 1 is not in the chunk
    ("...\na x = 1 #3\nb y #+4\n...\n", "lines 3 to 4"),
    ("...\na x = 2 #3\nb y #+3\n...\n", "lines 3 to 3"),
    ("...\na y #+1\nb y #+3\n...\n", "lines 2 to 3"),
    ("...\na y #+3\n", "lines 4 to 4"),
    ("...\na y #1\nb x = 1 #3\n...\n", "lines 1 to 3"),  # more lines than the chunk has, behind another one
    ("a y #2\n...\n", "lines 1 to 2"),
    ("a y #+1\n...\n", "lines 1 to 1"),
]


def test_what_is_no_edit_of_the_file_is_refused(subtests: pytest.Subtests) -> None:
    for answer, why in NO_EDITS:
        with subtests.test(answer), pytest.raises(InputError, match=why):
            read_merge(CODE, answer)


def test_a_folder_says_what_its_model_was_trained_to_do(tmp_path: Path) -> None:
    assert tasks_in(tmp_path) == daguerre.load().tasks == ()
    config, training = tmp_path / "config.json", tmp_path / "training.json"
    config.write_text(json.dumps({"extra": {"tasks": ["next_edit", "apply", "dance"]}}))
    training.write_text(json.dumps({"tasks": ["fix"]}))
    assert tasks_in(tmp_path) == ("apply", "next_edit")
    assert tasks_in(tmp_path, tmp_path) == ("fix",)
    config.write_text(json.dumps({"extra": {"tasks": "apply"}}))
    assert tasks_in(tmp_path) == ()
    config.write_text("{")
    with pytest.raises(CheckpointError):
        tasks_in(tmp_path)
