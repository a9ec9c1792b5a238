"""What was done last, and where the same is due, of lines written by hand and of random ones."""

from __future__ import annotations

import ast
import re
from itertools import combinations
from string import ascii_letters

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daguerre.next_edits import (
    LONGEST,
    RECENT,
    Change,
    last_change,
    next_edit_pattern,
    next_edit_prompt,
    places_due,
    read_next_edit,
)

DONE: list[tuple[str, str, Change | None]] = [
    ("total = a + total", "left = a + left", Change("total", "left")),
    ("x = y", "x = self.y", Change("y", "self.y")),
    ("f(a)", "f(a.name)", Change("a", "a.name")),
    ("x = s", "x = self.s", Change("s", "self.s")),
    ("y = a + a", "y = a + b", Change("a", "b")),
    ("names = name", "names = title", Change("name", "title")),
    ("x = 1", "x = 23", None),
    ("x and y", "x or y", None),
    ("f(x)", "f(-x)", None),
    ("f(x)", "f(y + 1)", None),
    ("f(a)", "f(a, b=1)", Change("f", "b=1", True)),
    ("f(a) + f(c, d)", "f(a, b=1) + f(c, d, b=1)", Change("f", "b=1", True)),
    ("x.open()", "x.open('r')", Change("open", "'r'", True)),
    ("g(f(a), 2)", "g(f(a), 2, 3)", Change("g", "3", True)),
    ("x = f(a)", "x = f(a, g())", Change("f", "g()", True)),
    ("print(x)", "print(x, (1, 2))", Change("print", "(1, 2)", True)),
    ("f('(')", "f('(', k=1)", Change("f", "k=1", True)),
    ("f('it(s', a)", "f('it(s', a, k=1)", Change("f", "k=1", True)),
    ("f() + f()", "f() + f(1)", Change("f", "1", True)),
    ("f(a)  # g(b)", "f(a)  # g(b, c)", None),
    ("x = y", "x = 1 + self.y", None),
    ("f(x)", "f(y, a.x)", None),
    ("f(x)", "f(x.y, z)", None),
    ("x = a", "x = a.b  # note", None),
    ("f(a)", "f(a, 'b)", None),
    ("f(a)", "f(a,)", None),
    ("f()", "f( )", None),
    ("return(a, b)", "return(a, b, c)", None),
    ("f(a)", "f(a, x for x in y)", None),
    ("cafe\u0301 = 1", "tea = 1", None),
    ("def f(a):", "def f(a, b=1):", None),
    ("f(a)", "f(b, a)", None),
    ("f[a]", "f[a, b]", None),
    ("a = b", "c = d", None),
    ("a = b", "a =", None),
    ("a = b", "a = b", None),
    ("x", "", None),
    ("", "x", None),
]
"""A line before and after, and what was done to it."""


def test_what_was_done_is_read_off_the_lines(subtests: pytest.Subtests) -> None:
    for old, new, change in DONE:
        with subtests.test(f"{old} -> {new}"):
            assert last_change([(old, new)]) == change
            earlier = ("a.b", "a.c")
            assert last_change([earlier, (old, new)]) == (change or Change("b", "c"))


WORDS = st.lists(st.sampled_from(["a", "b", "total", "(", ")", ", ", " = ", ".", "'", "é", "1"]), max_size=14)


@settings(deadline=None)
@given(WORDS, st.sampled_from(["left", "self.total", "total.x", "subtotal.total", "total.total", "tot"]))
def test_a_renamed_word_is_found_and_renamed_elsewhere(parts: list[str], text: str) -> None:
    """Whatever line it is in, the change is known, and done to the line it makes the new one; then nothing is due."""
    old, change = " total " + " ".join(parts), Change("total", text)
    new = re.sub(r"\btotal\b", text, old)
    assert last_change([(old, new)]) == change
    places = places_due([old], change, 1, 1)
    assert read_next_edit([old], change, places, " ".join(ascii_letters)) == [new]
    assert not places_due([new], change, 1, 1)


ARGUMENTS = st.recursive(
    st.sampled_from(["a", "'('", '")"', "[1, 2]", "b=')'", "g(2)"]),
    lambda inner: st.lists(inner, max_size=3, unique=True).map(
        lambda given: f"f({', '.join(sorted(given, key=lambda one: one.startswith('b=')))})"
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(ARGUMENTS)
def test_an_argument_is_added_to_calls_as_a_tree_has_them(text: str) -> None:
    change, line = Change("f", "k=7", True), f"x = {text}"
    places = places_due([line], change, 1, 1)
    calls = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "f"]
    assert sorted(column for _, column in places) == sorted(node.col_offset for node in calls)
    made = ast.parse(read_next_edit([line], change, places, " ".join(ascii_letters))[0])
    want = ast.parse(line)
    for node in ast.walk(want):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "f":
            node.keywords.append(ast.keyword("k", ast.Constant(7)))
    assert ast.dump(made) == ast.dump(want)


def test_only_places_of_the_region_that_lack_the_change_are_shown() -> None:
    code = ["def f(a):", "    return f(", "x = f(1) + f(2, b=3)", "f = g.f(')')", "f(0)"]
    change = Change("f", "b=3", True)
    places = places_due(code, change, 1, 4)
    assert places == [(2, 4), (3, 6)]
    prompt = next_edit_prompt(code, change, places)
    assert prompt.endswith("#> rename f to f(b=3)\n3 x = $a(1) + f(2, b=3)\n4 f = g.$b(')')\n#> result\n")
    assert read_next_edit(code, change, places, "b\n") == [*code[:3], "f = g.f(')', b=3)", code[4]]
    assert len(places_due(["x " * 60], Change("x", "y"), 1, 1)) == 52


def test_long_lines_and_long_histories_are_not_looked_at() -> None:
    """Calls in calls take time that grows with the square of a line's length."""
    long = "f(" * 50_000 + ")" * 50_000
    assert last_change([("a.b", "a.c"), (long, long.replace("f", "g"))]) == Change("b", "c")
    assert last_change([("a.b", "a.c"), *[("x = y", "z = w")] * 10_000]) is None
    assert places_due([long, "f()"], Change("f", "k=1", True), 1, 2) == [(1, 0)]


ADDED: list[tuple[str, str, str]] = [
    ("b=1", "f(c, b=2) + f(b=10) + f(g(b=1))", "f(c, b=2) + f(b=10) + f(g(b=1), b=1)"),
    ("b=1", "f(x for x in y)", "f(x for x in y)"),
    ("b=1", "f(a,  # :)", "f(a,  # :)"),
    ("b=1", "f(**c) + f(d, )", "f(**c, b=1) + f(d, b=1)"),
    ("1", "f(k=2) + f(**c) + f(\t) + f(10)", "f(k=2) + f(**c) + f(1) + f(10, 1)"),
    ("1", "f('a', f(2,)) + g.f(1)", "f('a', f(2, 1), 1) + g.f(1)"),
    ("1", "f(f(f(", "f(f(f("),
    ("1", "x = 'f(2) ' \"f(3)\"", "x = 'f(2) ' \"f(3)\""),
    ("1", "café_f(2) + f (3) + self.f(4)", "café_f(2) + f (3) + self.f(4, 1)"),
]
"""An argument, a line, and the line with the argument wherever it can be."""


def test_an_argument_is_added_where_it_can_be(subtests: pytest.Subtests) -> None:
    for text, line, made in ADDED:
        with subtests.test(line, text=text):
            change = Change("f", text, True)
            places = places_due([line], change, 1, 1)
            assert read_next_edit([line], change, places, " ".join(ascii_letters)) == [made]


def test_the_longest_lines_that_are_looked_at_are_no_change_and_have_few_places() -> None:
    """An earlier version took minutes for fifty such lines. None of them is one change."""
    for old, new in (
        ("a," * 499, "b," * 499),
        ("a " * 499, "a b " * 249),
        ("f(" * 499, "g(" * 499),
        ("f()" * 333, "f(1)" * 249),
    ):
        assert max(len(old), len(new)) in range(900, LONGEST + 1)
        assert last_change([("x.y", "x.z"), *[(old, new)] * (RECENT - 1)]) == Change("y", "z")
        places = places_due([old] * 300, Change("f", "k=1", True), 1, 300)
        assert len(places) == (52 if "f()" in old else 0)


def test_an_answer_is_any_choice_of_the_letters() -> None:
    for num in (0, 1, 4):
        pattern = re.compile(next_edit_pattern(num))
        able = [" ".join(some) + "\n" for size in range(1, num + 1) for some in combinations(ascii_letters[:num], size)]
        assert all(pattern.fullmatch(answer) for answer in ["None\n", *able])
        for wrong in ("", "\n", "b a\n", "a a\n", "a  b\n", "a", "None", f"{ascii_letters[num]}\n"):
            assert not pattern.fullmatch(wrong), (num, wrong)
