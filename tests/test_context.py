"""What is shown of texts that are longer than the context, around any number of gaps."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daguerre
from daguerre.decoding.context import OUTLINE_SHARE, Context, choose, context_of, share
from daguerre.decoding.text_spans import enclosing, imports
from daguerre.errors import ContextError, InputError
from daguerre.models.tokenizer import Tokenizer

TOKENIZER = Tokenizer.default()
LINES = ["", "x = 1", "    return self.value", "def f(a, b):", "# ünïcödé ☃", "y" * 40, "\t\t", "import os", "class A:"]
texts = st.builds(
    lambda lines, last: "\n".join([*lines, last]),
    st.lists(st.sampled_from(LINES), max_size=30),
    st.sampled_from(["", "    ret", "z" * 90]),
)
MODULE = """\
from __future__ import annotations

import os
import json as js
from pathlib import (
    Path,
    PurePath,
)

LIMIT = 3


class Store:
    # a comment
    def __init__(
        self,
        path: str,
    ) -> None:
        self.path = Path(path)

    async def load(self, name: str) -> dict:
        for each in names:
            if each == name:
                with open(self.path) as file:
"""


def count(parts: tuple[str, ...]) -> int:
    return sum(len(TOKENIZER.encode(part, begins=not number)) for number, part in enumerate(parts))


def ranges(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in spans]


@settings(max_examples=200, deadline=None)
@given(st.lists(texts, min_size=2, max_size=5), st.integers(1, 200))
def test_what_is_shown_fits_and_is_the_text_in_order(around: list[str], room: int) -> None:
    shown = choose(TOKENIZER, around, [""] * (len(around) - 1), room)

    assert count(shown.texts) <= room or room <= len(around)
    for text, part, spans in zip(around, shown.texts, shown.shown, strict=True):
        assert part == "".join(text[start:end] for start, end in spans)
        assert all(0 <= start < end <= len(text) for start, end in spans)
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))
    assert shown.complete == (list(shown.texts) == around)


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, min_size=2, max_size=5), st.integers(60, 200))
def test_what_is_next_to_a_gap_is_shown(around: list[str], room: int) -> None:
    shown = choose(TOKENIZER, around, [""] * (len(around) - 1), room)

    for number, (text, part) in enumerate(zip(around, shown.texts, strict=True)):
        if text and number < len(around) - 1 and len(around) * 40 < room:
            assert part.endswith(text[-1])
        if text and number and len(around) * 40 < room:
            assert part.startswith(text[0])


def test_everything_is_shown_where_there_is_room() -> None:
    around = ["a\nb\n", "c\n", "d\n"]
    assert choose(TOKENIZER, around, ["", ""], 100) == context_of(around, ["", ""])
    assert str(context_of(around, ["", ""])) == "all 4 lines"


def test_gaps_share_the_room() -> None:
    text = "".join(f"value_{number} = {number}\n" for number in range(400))
    for room in (80, 200, 400):
        parts = share(TOKENIZER, [text, text, text, text], room)
        before = [len(TOKENIZER.encode(part.end)) for part in parts[:-1]]
        after = [len(TOKENIZER.encode(part.beginning)) for part in parts[1:]]

        line = len(TOKENIZER.encode("value_399 = 399\n"))

        assert max(before) - min(before) <= 2 * line
        assert max(after) - min(after) <= 2 * line
        assert all(2 * a <= b for a, b in zip(after, before, strict=True)) or room < 200
        assert room - 2 * line <= sum(before) + sum(after) <= room


def test_a_short_text_leaves_its_room_to_the_others() -> None:
    text = "".join(f"value_{number} = {number}\n" for number in range(400))
    first, second, third = share(TOKENIZER, [text, "x\n", text], 200)

    assert second.end == "x\n"
    assert first.num_tokens > 130
    assert first.num_tokens + second.num_tokens + third.num_tokens > 190


def test_signatures_that_enclose_the_gap() -> None:
    end = MODULE.index("        for each")

    assert ranges(MODULE, enclosing(MODULE, end)) == [
        "class Store:\n",
        "    async def load(self, name: str) -> dict:\n",
    ]
    inside = MODULE[: MODULE.index("    async")]
    assert ranges(inside, enclosing(inside, inside.index("        self.path"))) == [
        "class Store:\n",
        "    def __init__(\n        self,\n        path: str,\n    ) -> None:\n",
    ]
    assert enclosing(MODULE + "x = 1\n", end) == []
    assert enclosing("", 0) == enclosing("def f():\n", 0) == []


SIGNATURES: list[tuple[str, list[str]]] = [
    ("export async function load(a) {\n  const x = 1\n", ["export async function load(a) {\n"]),
    ("pub fn load(\n    a: u8,\n) -> u8 {\n    let x = 1;\n", ["pub fn load(\n    a: u8,\n) -> u8 {\n"]),
    ("func (s *Store) Load(a int) error {\n\tx := 1\n", ["func (s *Store) Load(a int) error {\n"]),
    ("public class Store {\n    int x;\n", ["public class Store {\n"]),
    ("def f(\n    a,\n):\n    x = 1\n", ["def f(\n    a,\n):\n"]),
    (
        "static int load(const char *path, int n) {\n    int x = 1;\n",
        ["static int load(const char *path, int n) {\n"],
    ),
    ("struct node *find(int key)\n{\n\tif (key)\n\t{\n\t\tx();\n", ["struct node *find(int key)\n"]),
    ("int\nmain (void)\n{\n  return 0;\n", ["main (void)\n"]),
    ("int sum(\n    int a,\n    int b)\n{\n    return a;\n", ["int sum(\n    int a,\n    int b)\n"]),
    (
        "std::vector<int> Store::load(int a) const {  // all\n  x();\n",
        ["std::vector<int> Store::load(int a) const {  // all\n"],
    ),
    ("Store::Store(int a)\n    : a_(a) {\n  x();\n", ["Store::Store(int a)\n    : a_(a) {\n"]),
    (
        "public class Store {\n    @Override\n    public Map<String, int[]> load(String name)\n"
        "            throws IOException {\n"
        "        for (int i : x) {\n            y();\n",
        [
            "public class Store {\n",
            "    public Map<String, int[]> load(String name)\n            throws IOException {\n",
        ],
    ),
    ("class Store\n{\n    Store(int a)\n    {\n        x();\n", ["class Store\n", "    Store(int a)\n"]),
    ("class Store {\n  load(a) {\n    x();\n", ["class Store {\n", "  load(a) {\n"]),
    # What begins like a definition and is none.
    ("if (x) {\n    y();\n", []),
    ("int load(int a);\n  {\n    y();\n", []),
    ("load(x, function () {\n    y();\n", []),
    ("auto f = make(3) {\n    y();\n", []),
    ("while (more(x))\n{\n    y();\n", []),
    ("return make({\n    'a': 1,\n", []),
    ("with open(path) as file:\n    x = {\n        1: 2,\n", []),
]
"""Code of other languages, and the signatures that enclose its end; those of C and the like begin with a type."""


def test_signatures_of_other_languages(subtests: pytest.Subtests) -> None:
    for code, signatures in SIGNATURES:
        with subtests.test(code):
            assert ranges(code, enclosing(code, len(code) - 1)) == signatures


def test_imports_of_names_that_are_used() -> None:
    end = MODULE.index("LIMIT")

    assert ranges(MODULE, imports(MODULE, end)) == ["from pathlib import (\n    Path,\n    PurePath,\n)\n"]
    assert imports(MODULE + "js.dumps(os.environ)\n", end)[0] == (
        MODULE.index("import os"),
        MODULE.index("import json"),
    )
    other = 'import { a, b } from "./x"\nconst fs = require("fs")\n#include <stdio.h>\n'
    assert len(imports(other + "fs.a(stdio)", len(other))) == 3


def test_the_outline_takes_a_small_part_of_the_room() -> None:
    body = "".join(f"            Path(value_{number}, os, js)\n" for number in range(300))
    text, room = MODULE + body, 240
    shown = choose(TOKENIZER, [text, ""], [""], room)
    far = "".join(text[a:b] for a, b in shown.shown[0][:-1])

    assert "class Store:\n    async def load" in far
    assert "import os\n" in far
    assert len(TOKENIZER.encode(far)) <= OUTLINE_SHARE * room + 8
    assert shown.texts[0].endswith("Path(value_299, os, js)\n")
    assert re.fullmatch(r"lines 3.*, 13.* and \d+-324 of 324", str(shown))


@pytest.fixture(scope="module")
def model() -> daguerre.Model:
    return daguerre.load()


LONG = "".join(f"def function_{number}(a, b):\n    return a + b + {number}\n\n\n" for number in range(200))


def test_calls_show_a_part_of_a_long_text_and_give_all_of_it_back(model: daguerre.Model) -> None:
    line = LONG[: LONG.index("def function_100")].count("\n") + 2
    edited = model.edit(LONG, lines=[(line, line)])
    start, end = edited.spans[0]

    assert edited.context is not None
    assert not edited.context.complete
    assert edited.text[:start] == LONG[:start]
    assert edited.text[end:] == LONG[len(LONG) - len(edited.text) + end :]
    assert any(first <= line <= last + 1 for first, last in edited.context.lines)
    assert edited.usage.prompt_tokens <= 1024

    filled = model.fill(LONG + "x = <gap>\n" + LONG + "y = <gap>\n" + LONG, 4)
    assert filled.context is not None
    assert filled.text.startswith(LONG + "x = ")
    assert filled.text.endswith("\n" + LONG)
    assert all("function_" in text for text in filled.context.texts)

    written = model.generate(LONG, 4)
    assert written.context is not None
    assert LONG.endswith(written.context.texts[0])
    assert written.text == model.generate(written.context.texts[0], 4).text


def test_a_text_that_fits_is_shown_whole(model: daguerre.Model) -> None:
    result = model.infill("x = ", "\ny = 2\n", 4)
    assert result.context == context_of(["x = ", "\ny = 2\n"], [""])
    assert result.context.complete
    assert model.generate([5, 6, 7], 2).context is None


def test_whole_refuses_as_before(model: daguerre.Model) -> None:
    refused = "positions and the model has 1024: shorten the text"
    for call in (
        lambda: model.generate(LONG, 8, context="whole"),
        lambda: model.infill(LONG, LONG, 8, context="whole"),
        lambda: model.fill(LONG + "<gap>", 8, context="whole"),
        lambda: model.edit(LONG, lines=[(1, 1)], context="whole"),
        lambda: list(model.stream(LONG, 8, context="whole")),
        lambda: model.start(LONG, 8, context="whole"),
        lambda: model.generate(model.tokenizer.encode(LONG), 8),
        lambda: model.generate("x", 1024),
    ):
        with pytest.raises(ContextError, match=refused if call is not None else ""):
            call()
    with pytest.raises(InputError, match="unknown context 'half'"):
        model.generate("x", 4, context="half")


def test_streams_and_running_requests_show_as_much(model: daguerre.Model) -> None:
    *_, last = model.stream(LONG, 4)
    running = model.start(LONG, 4).result()
    assert last.result is not None
    for result in (last.result, running):
        assert isinstance(result.context, Context)
        assert not result.context.complete
