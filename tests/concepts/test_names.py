"""What names stand for: as Python finds it when it runs, and by rule where it cannot know."""

from __future__ import annotations

import ast
import gc
import importlib
import random
import sys
import weakref
from typing import Any

import pytest

from daguerre.concepts.detectors.lexical import whole_tokens
from daguerre.concepts.labels import label_source
from daguerre.concepts.names import BUILTINS
from daguerre.concepts.source import Block, SourceText
from daguerre.concepts.taxonomy import taxonomy

RUNS = {
    "an import": "import json\nsee(json); see(json.loads)\n",
    "another name": "import os.path as p\nfrom os import path as q\nsee(p); see(q.join)\n",
    "the first part": "import os.path\nsee(os); see(os.path.join)\n",
    "a built-in": "see(len); see(dict.fromkeys)\nfrom builtins import len as n\nsee(n)\n",
    "a parameter": "import json\ndef f(json): see(json)\nf(1)\nsee(json)\n",
    "a default": "import json\ndef f(json=see(json)): see(json)\nf(1)\n",
    "a lambda": "import json\n(lambda json: see(json))(1)\n(lambda x=see(json): see(json))()\n",
    "a local import": (
        "def f():\n    import json\n    see(json)\n    def g(): see(json)\n    g()\nf()\njson = 1\nsee(json)\n"
    ),
    "a local assignment": "import json\ndef f():\n    json = 1\n    see(json)\n    def g(): see(json)\n    g()\nf()\n",
    "a class": (
        "import json\nclass A:\n    json = see(json) and 1\n    see(json)\n    def f(self): see(json)\nA().f()\n"
    ),
    "a class import": "json = 1\nclass A:\n    import json\n    see(json)\n    def f(self): see(json)\nA().f()\n",
    "a method": "class A:\n    def list(self, x=see(list)): see(list)\n    see(list)\nA().list()\n",
    "a base": "import json\nclass A(see(object)):\n    object = 1\n    see(object)\nsee(object)\n",
    "a comprehension": "import json\n[see(json) for json in [1, see(json) and 2]]\nsee(json)\n",
    "a nested comprehension": (
        "import json\n[see(json) for x in [1] for json in [see(x)]]\n{see(json): 1 for x in [json]}\n"
    ),
    "in a class": "class A:\n    len = 1\n    [see(len) for x in [see(len)]]\n",
    "a walrus": "import json\ndef f():\n    [see(json := x) for x in [1]]\n    see(json)\nf()\nsee(json)\n",
    "global": (
        "import json\ndef f():\n    json = 1\n    def g():\n        global json\n        see(json)\n    g()\nf()\n"
    ),
    "a global import": "def f():\n    global json\n    import json\nf()\nsee(json)\n",
    "a nonlocal": (
        "import json\ndef f():\n    json = 1\n    def g():\n        nonlocal json\n        see(json)\n    g()\nf()\n"
    ),
    "an exception": "import json\ndef f():\n    try: 1 / 0\n    except Exception as json: see(json)\nf()\nsee(json)\n",
    "a pattern": "import json\ndef f():\n    match 1:\n        case json: see(json)\nf()\nsee(json)\n",
    "patterns": (
        "import json, re\ndef f():\n    match [1], {}:\n        case [*json], {**re}: see(json); see(re)\nf()\n"
    ),
    "a decorator": "class A:\n    @(see(len) and staticmethod)\n    def len(): pass\n    see(len)\n",
    "a loop": "import json\ndef f():\n    for json in [1]: see(json)\nf()\nsee(json)\n",
    "a definition": "import json\ndef f():\n    def json(): pass\n    class len: pass\n    see(json); see(len)\nf()\n",
    "an annotation": "import json\ndef f(json: see(json), *len: see(len)) -> see(json): see(len)\nf(1)\n",
}


def meaning(name: str) -> Any:
    """The object of a dotted name."""
    parts = name.split(".")
    for num in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:num]))
        except ModuleNotFoundError:
            continue
        for part in parts[num:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def test_a_name_stands_for_what_python_finds_when_it_runs(subtests: pytest.Subtests) -> None:
    for what, text in RUNS.items():
        with subtests.test(what):
            check_run(text)


def check_run(text: str) -> None:
    """`see` notes the object that it gets, by the place of its call in the text."""
    source = SourceText(text)
    seen = dict[tuple[int, int], Any]()

    def see(value: Any) -> Any:
        frame = sys._getframe(1)
        line, _, column, _ = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        assert line is not None and column is not None
        seen[line, column] = value
        return value

    exec(compile(text, "<text>", "exec", dont_inherit=True), {"see": see})
    calls = [call for call in source.of(ast.Call) if isinstance(call.func, ast.Name) and call.func.id == "see"]
    checked = 0
    for call in calls:
        found = source.names.meanings(call.args[0])
        value = seen[call.lineno, call.col_offset]
        if found:
            assert value == meaning(found[0]) and len(found) == 1, ast.unparse(call)
        elif isinstance(call.args[0], ast.Name):
            assert value not in (meaning("json"), meaning("re"), len, list, object), ast.unparse(call)
        checked += 1
    assert checked == len(seen) > 0


MEANINGS: dict[str, tuple[str, ...]] = {
    "try: import ujson as json\nexcept ImportError: import json\nX = json.loads": ("ujson.loads", "json.loads"),
    "try: import json\nexcept ImportError: json = None\nX = json": ("json",),
    "from .a import b\nX = b.c": (".a.b.c",),
    "from json import *\nX = loads": (),
    "import json\nloads = json.loads\nX = loads": (),
    "import json\ndef f(): import os\nX = os": (),
    "X = len": ("builtins.len",),
    "X = __builtins__.eval": ("builtins.eval",),
    "from a import len\nX = len": ("a.len",),
    "try: unicode\nexcept NameError: str = unicode = 1\nX = str": (),
    "import json\nX = f().json": (),
    "X = nothing": (),
}


def test_a_name_may_stand_for_each_import_of_its_scope_and_for_nothing_else(subtests: pytest.Subtests) -> None:
    for text, want in MEANINGS.items():
        with subtests.test(text):
            source = SourceText(text)
            last = next(one for one in source.of(ast.Assign) if ast.unparse(one.targets[0]) == "X")
            assert source.names.meanings(last.value) == want
            if want:
                assert source.names.last(last.value) == tuple(one.split(".")[-1] for one in want)


def test_the_built_ins_are_those_of_python() -> None:
    assert all(hasattr(importlib.import_module("builtins"), name) for name in BUILTINS)
    assert not BUILTINS & {"exit", "quit", "copyright", "True", "None"}


def test_what_is_kept_for_a_source_goes_with_it() -> None:
    first, second = SourceText("import re\nre.x(len)\n"), SourceText("yy = 2\n")
    assert whole_tokens(first) is whole_tokens(first)
    assert [one.string for one in whole_tokens(second)][:1] == ["yy"]
    label_source(first, taxonomy())
    gone = weakref.ref(first)
    gc.disable()
    try:
        del first
        assert gone() is None, "a cycle keeps it"
    finally:
        gc.enable()


def test_headers_end_at_their_colon_whatever_colons_there_are(subtests: pytest.Subtests) -> None:
    for seed in range(20):
        with subtests.test(seed=seed):
            check_headers(seed)


def check_headers(seed: int) -> None:
    """Blocks with colons, keywords and marks in strings, comments, slices and lambdas: each header is its line."""
    draw = random.Random(seed)
    noise = ["x[1:2]", "lambda: 1", "{1: 2}", "'else: @ case'", "(a if b else c)", "a @ b"]
    headers = ["if {}:", "while {}:", "for x in {}:", "with {}:", "class A({}):", "def f(x={}):"]
    lines, depth = list[str](), 0
    for _ in range(12):
        lines.append("    " * depth + draw.choice(headers).format(draw.choice(noise)) + "  # else: @ case x:")
        depth += 1
    lines.append(
        "    " * depth + "match x:\n" + "    " * (depth + 1) + "case (1):  # case\n" + "    " * (depth + 2) + "pass"
    )
    source = SourceText("\n".join(lines))
    blocks: list[Block]
    blocks = source.of(ast.If, ast.While, ast.For, ast.With, ast.ClassDef, ast.FunctionDef, ast.Match, ast.match_case)
    got = sorted(source.text[slice(*source.header(one))] for one in blocks)
    assert got == sorted(line.partition("  #")[0].strip() for line in "\n".join(lines).split("\n")[:-1])
