"""What a model may have written in place of a region, and what becomes of the text."""

from __future__ import annotations

import time

import pytest

from daguerre.editing.answers import UnreadableAnswer, check_syntax, fence_for, fenced, fitted, language_of, read_region

OLD = "def f(x):\n    # why\n    return x\n"


def block(text: str, marks: str = "```", language: str = "python") -> str:
    return f"{marks}{language}\n{text}{marks}"


def test_the_only_block_is_the_answer_whatever_is_around_it() -> None:
    new = OLD.replace("x", "y")
    assert read_region(block(new), OLD, "python") == new
    assert read_region(f"Sure!\n\n{block(new)}\n\nI renamed `x`.", OLD, "python") == new
    assert read_region(block(new, language="py"), OLD, "python") == new
    assert read_region(block(new, "~~~~", ""), OLD, "python") == new
    assert read_region(block(f'"""\n```\n{new}```\n"""\n', "````"), OLD, "python") == f'"""\n```\n{new}```\n"""\n'
    assert fence_for("a\n```py\n", "b") == "````" and fence_for("a `b`") == "```"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "no code blocks"),
        (OLD, "no code blocks"),
        (block(OLD) + "\n" + block(OLD), "2 code blocks"),
        (f"```python\n{OLD}", "does not end"),
        (f"````python\n{OLD}```", "does not end"),
        (f"{block(OLD)}\n```", "does not end"),
        (block("\n"), "is empty"),
        (block("fn f() {}\n", language="rust"), "in rust"),
        (block("def f(x):\n    # ... existing code ...\n"), "leaves lines out"),
        (block("def f(x):\n# ... rest of the code ...\n"), "leaves lines out"),
    ],
)
def test_what_is_no_answer_is_refused_with_the_reason(answer: str, reason: str) -> None:
    with pytest.raises(UnreadableAnswer, match=reason) as found:
        read_region(answer, OLD, "python")
    assert found.value.answer == answer


def test_a_marker_that_the_region_has_itself_is_a_line_of_it() -> None:
    old = OLD + "# ...\n"
    assert read_region(block(old), old, "python") == old


@pytest.mark.parametrize("lead", ["", "\n", "\r\n \n"])
@pytest.mark.parametrize("tail", ["", "\n", "\r\n\r\n", "\n\n  \n"])
def test_the_white_space_around_the_region_stays(lead: str, tail: str) -> None:
    old = f"{lead}a = 1\nb = 2{tail}"
    for new in ("a = 1\nb = 3", "\n\na = 1\nb = 3\n\n\n", "a = 1\nb = 3 \n"):
        assert fitted(new, old) == f"{lead}a = 1\nb = {'3 ' if new.endswith(' ' + chr(10)) else '3'}{tail}"


def test_lines_that_stay_are_those_of_the_text_byte_for_byte() -> None:
    old = "a = 1  \r\nb = 2\nc = 3\t\r\nd = 4\r\n"
    assert fitted("a = 1\nb = 2\nc = 3\nd = 5\n", old) == "a = 1  \r\nb = 2\nc = 3\t\r\nd = 5\r\n"
    assert fitted("a = 1\nb = 2\nnew = 0\nc = 3\nd = 4", old) == "a = 1  \r\nb = 2\nnew = 0\r\nc = 3\t\r\nd = 4\r\n"
    assert fitted("b = 2", old) == "b = 2\r\n"


def test_new_lines_are_indented_as_the_text_is() -> None:
    tabs = "def f():\n\tif x:\n\t\treturn 1\n"
    assert (
        fitted("def f():\n    if y:\n        return 1\n      + 2\n", tabs)
        == "def f():\n\tif y:\n\t\treturn 1\n\t  + 2\n"
    )
    spaces = "def f():\n  if x:\n    return 1\n"
    assert fitted("def f():\n\tif x:\n\t\treturn 2\n", spaces) == "def f():\n  if x:\n    return 2\n"
    method = "    def f(self):\n        return 1\n"
    assert fitted("def f(self):\n    return 2\n", method) == "    def f(self):\n        return 2\n"
    assert fitted("    def f(self):\n        return 2\n", method) == "    def f(self):\n        return 2\n"


def test_a_text_that_could_be_read_can_be_read_after() -> None:
    check_syntax("def f(:", "def g(:", "python")
    check_syntax("x = 1", "x = 2", "python")
    check_syntax("no python", "nor this", "")
    for old, new, language in (("x = 1", "x = ", "python"), ("{}", "{,}", "json"), ("a = 1", "a =", "toml")):
        with pytest.raises(UnreadableAnswer, match=f"no {language}"):
            check_syntax(old, new, language)
    with pytest.raises(UnreadableAnswer):
        check_syntax("x = 1", "x = " + "(" * 10_000, "python")
    assert (language_of("a/b.PY"), language_of("x.tsx"), language_of("Makefile")) == ("python", "typescript", "")


def test_hostile_answers_take_little_time() -> None:
    start = time.thread_time()
    for text in ("```\n" * 100_000, "`" * 1_000_000, "x\n" * 200_000, " " * 1_000_000, "```" + "a" * 1_000_000):
        with pytest.raises(UnreadableAnswer):
            read_region(text, OLD, "python")
    for old, new in (("a\n" * 100_000, "a\nb\n" * 50_000), ("\t" * 200_000, "x"), ("x\n" * 3_000, "x\ny\n" * 1_500)):
        assert fitted(new, old)
    assert time.thread_time() - start < 60, "which is bounded, however slow the machine is"
    with pytest.raises(UnreadableAnswer):
        fenced("```\nx")
