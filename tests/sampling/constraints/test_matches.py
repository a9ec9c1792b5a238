r"""Matches of patterns are those of `re`, and take steps that are linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import pytest

from daguerre.cancellation import Cancellation, current_cancellation, use_cancellation
from daguerre.errors import CancelledError, InputError
from daguerre.sampling.constraints import matches
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.matches import find_matches

ATOMS = (
    *("a", ".", "[^a]", "(?:a|ab)", "(?:b|)", "a*", "a*?", "(?:ab)*", "a??", "(?:a|b*)*", "^", "$", r"\b", r"\B"),
    *("(?:a*)*", "(?:a*?)*?", "(?:a|){1,2}", "a{0,2}?", "(?:|a){0,2}"),
)
TEXTS = ("", "ab", "aab", "bba a")
USUAL = (
    r'".*?"',
    r"\bdef (\w+)\(",
    r"(?:foo|bar)+?baz",
    r"[A-Z]\w*|\d+",
    r"^\s*#.*$",
    r"(?i)todo.{0,9}",
    r"(\w+) = (?P<value>[^\n]*)",
    r"x{2,3}|y{2,}?",
    r"é+|\u00fc",
)
SOURCE = '# TODO: "a" and "b"\ndef Foo(x):\n    foobarbaz = xx + yyy  # todo later\n    return "é" + Ü + 42\n'


def patterns() -> Iterator[str]:
    yield from ATOMS
    yield from map("".join, product(ATOMS, repeat=2))


def test_matches_are_those_of_re() -> None:
    for pattern in patterns():
        for text in TEXTS:
            if not text and "\\B" in pattern:  # which Python reads otherwise before 3.14
                continue
            wanted = [found.span() for found in re.finditer(pattern, text, re.ASCII)]
            assert find_matches(pattern, text) == wanted, (pattern, text)
    for pattern in USUAL:
        wanted = [found.span() for found in re.finditer(pattern, SOURCE, re.ASCII)]
        assert find_matches(pattern, SOURCE) == wanted, pattern


def test_steps_are_linear_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = list[int]()
    kept = matches._Search._spend
    monkeypatch.setattr(matches._Search, "_spend", lambda self, num: (spent.append(num), kept(self, num))[1])
    for pattern in (r"(a+)+$", r"(?:a|aa)*b", r"a*b|a", r"(?:a|a|a)*?c", r"(?:(?:a*)*)*b", r"(?:a{0,9}){0,9}b", "a??"):
        counts = []
        for size in (250, 500, 1000):
            spent.clear()
            find_matches(pattern, "a" * size + "!")
            counts.append(sum(spent))
        assert counts[2] - counts[1] <= 2.05 * (counts[1] - counts[0]), (pattern, counts)


def test_what_is_not_there_is_refused_by_name(subtests: pytest.Subtests) -> None:
    wanted = {
        r"(a)\1": "a back-reference",
        "(?=a)": "lookahead",
        "a(?!b)": "lookahead",
        "(?<!a)b": "lookbehind",
        r"\Aa": "write ^",
        "(?m)^a": "flags other than i",
        "(?&rule)": "calls no rules",
        "a)": "a closing parenthesis",
    }
    for pattern, name in wanted.items():
        with subtests.test(pattern=pattern), pytest.raises(InputError, match=re.escape(name)):
            find_matches(pattern, "ab")


def test_too_many_steps_and_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches, "MAX_STEPS", 10_000)
    with pytest.raises(InputError, match=r"takes more than 10,000 steps through this text: write a simpler one"):
        find_matches("(a+)+$", "a" * 5_000 + "!")
    with pytest.raises(InputError, match="MiB of memory"):
        find_matches("(?:a|b)*c", "ab" * 500_000, Budget(max_bytes=1 << 20))
    with pytest.raises(InputError, match="steps when written out"):
        find_matches("(a{1000}){1000}", "a")


def test_a_search_ends_once_nobody_waits() -> None:
    before, cancellation = current_cancellation(), Cancellation()
    use_cancellation(cancellation)
    cancellation.cancel()
    try:
        with pytest.raises(CancelledError):
            find_matches("(a+)+$", "a" * 5_000 + "!")
    finally:
        use_cancellation(before)


@pytest.mark.parametrize(
    "pattern", ["(?m)^a", "(?s)a.b", "(?x)a b", r"\Aa", r"a\Z", "a{,2}", "a++", "(?>a)b", "(?#c)a", "(?(1)a|b)"]
)
def test_what_serving_md_says_is_refused_is(pattern: str) -> None:
    with pytest.raises(InputError):
        find_matches(pattern, "ab")


def test_the_end_of_a_text_is_behind_its_last_line_break() -> None:
    assert find_matches("x$", "x\n") == [] and find_matches("x$", "\nx") == [(1, 2)]
