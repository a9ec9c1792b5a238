"""The definitions that an instruction names, shown as a small file and put back in place."""

from __future__ import annotations

import ast

import pytest

from daguerre.editing.answers import UnreadableAnswer
from daguerre.editing.definitions import SmallFile, small_file
from daguerre.editing.trees import PythonFile, members
from daguerre.heldout import load_frozen

FILE = '''"""A file."""

from __future__ import annotations

import json
from os import path

__all__ = ["load", "Store"]
TIMEOUT = 30


# how it is read
def load(name):
    return json.load(open(name))


def save(name, what):
    load_twice = load(name), load(name)
    return path.exists(name), load_twice


class Store(dict):
    """Values."""

    size = 3

    @property
    def total(self):
        return sum(self.values())

    @total.setter
    def total(self, value):
        self.kept = value

    def get_all(self):
        return [self.get_one(key) for key in self]

    def get_one(self, key):
        return self[key] if self.total else None


def run(load=load):
    return load, Store().get_one(1), Store.get_one
'''


def small(instruction: str, file: str = FILE) -> SmallFile:
    found = small_file(file, instruction)
    assert found is not None
    return found


def changed(instruction: str, old: str, new: str, file: str = FILE) -> str:
    """The file after an answer that has a new text in place of an old one."""
    shown = small(instruction, file)
    assert old in shown.text
    return shown.merged(shown.text.replace(old, new))


def test_what_is_named_is_shown_with_its_class_and_imports() -> None:
    assert small("Log in `load`.").text == (
        "import json\n\n\n# how it is read\ndef load(name):\n    return json.load(open(name))\n"
    )
    assert small("Log in `get_one` of `Store`.").text == (
        "class Store(dict):\n    def get_one(self, key):\n        return self[key] if self.total else None\n"
    )
    assert small("Log in `save` and get_one.").text.startswith(
        "from os import path\n\n\ndef save(name, what):\n    load_twice = load(name), load(name)\n"
    )
    assert small("Make Store() faster.").text.count("def ") == 4


@pytest.mark.parametrize(
    "instruction",
    ["load it faster", "Add types.", "Log in every function that calls `load`.", "Rename `load` and all its uses.",
     "Use `os` in `nothing`.", "Add docstrings to the functions other than `load`.", "Move `load` below `save`.",
     "Rename the constant TIMEOUT of `load` and `TIMEOUT`.", "Use `json.dump` for it.", "Log in `Missing.load`."],
)  # fmt: skip
def test_what_names_nothing_or_is_for_more_is_for_the_whole_file(instruction: str) -> None:
    assert small_file(FILE, instruction) is None


@pytest.mark.parametrize(
    ("instruction", "names"),
    [("In `load`, add a check for each key.", "load"), ("In `load`, log all errors and re-raise them.", "load"),
     ("Make `load` so that it calls `open` with utf-8.", "load"), ("Make sure `save` uses `json.dumps`.", "save"),
     ("Rename the parameter `run` of `load(name)` to `path`.", "load"), ("Log in `Store.get_one`.", "get_one")],
)  # fmt: skip
def test_only_what_is_named_as_a_definition_is_shown(instruction: str, names: str) -> None:
    text = small(instruction, FILE.replace("def run", "def get_one(): pass\n\n\ndef run")).text
    shown = [node.name for node, _ in members(ast.parse(text).body)]
    assert [name for name in shown if name != "Store"] == [names] and text.count("get_one(") <= 1


@pytest.mark.parametrize(
    ("file", "instruction"),
    [("def f(): pass\n", "`f` " + "move " * 400 + "x"), ("def f(): pass\n", "`f` " * 20_000),
     ("def f(): pass\n" * 40_000, "Log in `f`.")],
)  # fmt: skip
def test_what_is_long_is_for_the_whole_file(file: str, instruction: str) -> None:
    """At once: it comes from strangers."""
    assert small_file(file, instruction) is None


def test_any_word_names_loosely() -> None:
    assert small_file(FILE, "load it faster") is None
    assert small_file(FILE, "load it faster", loosely=True) is not None


@pytest.mark.parametrize(
    "file", ["def f(:\n", "def f(): pass\r\nx = 1\n", "def f(): pass\n\f\n", "if x:\n    def f(): 1\n"]
)
def test_what_is_not_read_is_for_the_whole_file(file: str) -> None:
    assert small_file(file, "Log in `f`.") is None


def test_a_definition_takes_the_place_of_its_own_and_the_rest_stays() -> None:
    """In real files: as if its lines were replaced."""
    num = 0
    for document in load_frozen()[:60]:
        if "\r" in document.text or "\f" in document.text:
            continue
        source = PythonFile(document.text)
        functions = [node for node, _ in members(source.tree.body) if not isinstance(node, ast.ClassDef)]
        names = [node.name for node in functions]
        for node in [one for one in functions if names.count(one.name) == 1][:2]:
            found = small_file(document.text, f"In `{node.name}`, add a line.")
            last = source.lines[(node.end_lineno or 0) - 1]
            alone = node.body[-1].lineno == node.end_lineno and last.startswith(" " * node.body[0].col_offset)
            if found is None or not alone or found.text.count(f"\n{last}\n") != 1:
                continue
            more, end = " " * node.body[0].col_offset + "...", node.end_lineno or 0
            want = "\n".join([*source.lines[:end], more, *source.lines[end:]])
            assert found.merged(found.text) == document.text
            assert found.merged(found.text.replace(f"\n{last}\n", f"\n{last}\n{more}\n")) == want
            num += 1
    assert num > 50


def test_new_imports_and_constants_come_to_the_files_own() -> None:
    new = "import logging\nLIMIT = 2\nimport json\n\n\n# how"
    made = changed("Log in `load`.", "import json\n\n\n# how", new)
    assert made == FILE.replace("import json\n", "import logging\nimport json\n").replace(
        "from os import path\n", "from os import path\n\nLIMIT = 2\n"
    )
    shown = small("Log in `save`.")
    assert shown.merged(shown.text.replace("import path", "import path, sep")) == FILE.replace(
        "import path", "import path, sep"
    )
    for name in ("from json import load", "import os as json", "from x import json", "from typing import int"):
        with pytest.raises(UnreadableAnswer, match="is something else already"):
            shown.merged(f"{name}\n{shown.text}")
    assert shown.merged("import json.tool\n" + shown.text) == FILE.replace(
        "import json\n", "import json.tool\nimport json\n"
    )
    alone = small("Log in `f`.", "def f():\n    pass\n")
    assert alone.merged("import os\nA = 1\n" + alone.text) == "import os\n\n\nA = 1\n\n\ndef f():\n    pass\n"


def test_another_name_is_used_everywhere() -> None:
    made = changed("Rename `save` to `keep`.", "def save", "def keep", FILE + "\n\nprint(save(1, save), 'save')\n")
    assert made == FILE.replace("save", "keep") + "\n\nprint(keep(1, keep), 'save')\n"
    made = changed("Rename `get_one` to `one`.", "def get_one", "def one")
    assert made == FILE.replace("get_one", "one")
    made = changed("Rename the class `Store` to `Box`.", "class Store", "class Box")
    assert made == FILE.replace("Store", "Box")


@pytest.mark.parametrize(
    "more",
    ["def g(f=f): pass", "def g():\n    from a import f\n    f()", "def g():\n    def f(): 1\n    return f()",
     "class A:\n    f: int = 3\n    g = f", "def g(h): return f(h)",
     "try: pass\nexcept E as f: print(f)",
     "try: from c import f\nexcept E: 1", "h(f)", "def g(): return h", "def g():\n    global f\n    f = 1",
     "g = lambda f: f()"],
)  # fmt: skip
def test_a_name_of_something_else_is_not_changed(more: str) -> None:
    shown = small("Rename `f` to `h`.", f"def f(): pass\n{more}\n")
    with pytest.raises(UnreadableAnswer, match="cannot be changed"):
        shown.merged("def h(): pass\n")


@pytest.mark.parametrize(
    "more",
    ["class B(A):\n    def f(self): pass", "class B:\n    class A: pass", "class B(A):\n    def h(self): pass",
     "class B(A):\n    def g(self): super().f()", "class B(C):\n    f = 1"],
)  # fmt: skip
def test_neither_is_one_that_other_classes_have(more: str) -> None:
    shown = small("Rename `A.f` to h.", f"class A:\n    x = 1\n\n    def f(self): pass\n{more}\n")
    with pytest.raises(UnreadableAnswer, match="cannot be changed"):
        shown.merged("class A:\n    def h(self): pass\n")


def test_what_is_missing_is_removed_when_it_is_missing_again() -> None:
    shown = small("Remove `save`.")
    with pytest.raises(UnreadableAnswer, match="nothing is left"):
        shown.merged("")
    assert shown.merged("# nothing\n") == FILE[: FILE.index("def save")] + FILE[FILE.index("class Store") :]
    shown = small("Let `save` do what `run` does.")
    with pytest.raises(UnreadableAnswer, match="no `run`"):
        shown.merged(shown.text[: shown.text.index("def run")])
    assert shown.merged(shown.text) == FILE
    last = small("Remove `run`.")
    with pytest.raises(UnreadableAnswer):
        last.merged("")
    assert last.merged("") == FILE[: FILE.index("\n\ndef run")]


def test_another_name_is_not_one_that_python_has() -> None:
    with pytest.raises(UnreadableAnswer, match="`open` is the name of something"):
        small("Rename `f` to `open`.", "def f(): pass\n").merged("def open(): pass\n")


def test_methods_of_other_classes_keep_their_names() -> None:
    uses = "    def g(self): return self.f()\n"
    file = (
        f"class A:\n    def f(self): return 1\n\n    class B:\n    {uses}\n\nclass C(A):\n    x = 1\n\n\nclass D(C):\n"
    )
    made = small("Rename `A.f` to h.", file + uses).merged("class A:\n    def h(self): return 1\n")
    assert made == file.replace("def f", "def h") + uses.replace("self.f", "self.h")


@pytest.mark.parametrize(
    "new",
    ["def b(self, n):\n    return 1\n\n\ndef c(self, n):\n    return 4\n",
     "class Store(dict):\n    def get_one(self, key): 1\n\n\nclass Store:\n    pass\n",
     "class Shop(dict):\n    def get_one(self, key): 1\n", "class Store(list):\n    def get_one(self, key): 1\n",
     "from x import *\nclass Store(dict):\n    def get_one(self, key): 1\n",
     "A = path.sep + late\nclass Store(dict):\n    def get_one(self, key): 1\n",
     "open = 1\nclass Store(dict):\n    def get_one(self, key): 1\n"],
)  # fmt: skip
def test_what_would_change_more_is_refused_twice(new: str) -> None:
    shown = small("Log in `get_one`.")
    for _ in range(2):
        with pytest.raises(UnreadableAnswer):
            shown.merged(new)


def test_what_must_come_first_does() -> None:
    file = "from __future__ import annotations; import os\n\n\ndef f(): return 1\n"
    made = small("Log in `f`.", file).merged("import sys\n\n\ndef f(): return sys\n")
    assert made.startswith("from __future__ import annotations; import os\nimport sys\n")


def test_a_class_that_is_shown_in_part_keeps_the_rest() -> None:
    shown = small("Remove `get_one`.")
    with pytest.raises(UnreadableAnswer, match="nothing is left"):
        shown.merged("")
    made = shown.merged("class Store(dict):\n    pass\n")
    assert made == FILE.replace(FILE[FILE.index("\n    def get_one") : FILE.index("\n\ndef run")], "")
    shown = small("Simplify `Store`.")
    with pytest.raises(UnreadableAnswer, match=r"no `Store\.get_one`"):
        shown.merged(shown.text[: shown.text.index("    def get_one")])
    nested = "class O:\n    x = 1\n\n    class I:\n        y = 2\n\n        def m(self):\n            return 1\n"
    with pytest.raises(UnreadableAnswer, match="not in its class"):
        small("Log in `m`.", nested).merged("class I:\n    def m(self):\n        return 2\n")


def test_what_begins_a_file_stays() -> None:
    file = "#!/usr/bin/env python\n# Copyright\ndef f():\n    return 1\n"
    shown = small("Log in `f`.", file)
    made = shown.merged("import logging\n\n\ndef f():\n    return 2\n")
    assert made == "#!/usr/bin/env python\n# Copyright\n\nimport logging\ndef f():\n    return 2\n"
    file = "X = '''\n# end'''\n# why\ndef f():\n    return 1\n    # so\n"
    shown = small("Log in `f`.", file)
    assert shown.text == "# why\ndef f():\n    return 1\n    # so\n"
    assert shown.merged("def f():\n    return 2\n") == file[: file.index("# why")] + "def f():\n    return 2\n"


def test_lines_with_several_statements_are_read_one_by_one() -> None:
    shown = small("Log in `f`.", "from os import path; DEBUG = 1\n\n\ndef f():\n    return path\n")
    made = shown.merged("from os import path, sep\nA = 1; B = 2\n\n\ndef f():\n    return path\n")
    assert made.startswith("from os import path, sep\nfrom os import path; DEBUG = 1\n\nA = 1\nB = 2\n")


def test_a_method_without_its_class_is_refused_where_it_has_strings_of_several_lines() -> None:
    shown = small("Log in `get_one`.")
    with pytest.raises(UnreadableAnswer, match="not as deep"):
        shown.merged("def get_one(self, key):\n    return '''\na'''\n")


def test_deep_trees_are_refused_or_left() -> None:
    deep = "X = " + " + ".join(["1"] * 3000)
    with pytest.raises(UnreadableAnswer):
        small("Log in `f`.", "def f(): pass\n").merged(f"def f():\n    pass\n\n{deep}\n")
    file = f"def f():\n    pass\n\n\n{deep}\n"
    found = small_file(file, "Log in `f`.")
    assert found is None or found.merged(found.text) == file


def test_two_of_a_name_are_told_apart() -> None:
    shown = small("Log in `total`.")
    assert shown.text.count("def total") == 2
    made = shown.merged(shown.text.replace("self.kept = value", "self.kept = value + 1"))
    assert made == FILE.replace("self.kept = value", "self.kept = value + 1")


def test_a_method_may_be_written_without_its_class() -> None:
    made = small("Log in `get_one`.").merged("def get_one(self, key):\n    return 1\n")
    assert made == FILE.replace("return self[key] if self.total else None", "return 1")


def test_a_new_definition_comes_behind_the_one_before_it() -> None:
    shown = small("Split `get_all`.")
    made = shown.merged(shown.text + "\n    def more(self):\n        return 1\n")
    assert "for key in self]\n\n    def more(self):\n        return 1\n\n    def get_one" in made
    assert len(made) == len(FILE) + len("\n    def more(self):\n        return 1\n")


@pytest.mark.parametrize(
    ("instruction", "new", "reason"),
    [
        ("Log in `load`.", "def (", "no Python"),
        ("Log in `load`.", "print(1)\ndef load(name): pass", "`print.1.` is outside of `load`"),
        ("Log in `load`.", "TIMEOUT = 3\ndef load(name): pass", "`TIMEOUT` is something else already"),
        ("Log in `load`.", "def load(name): pass\ndef save(): pass", "`save` is there already"),
        ("Log in `load`.", "def save(): pass", "`save` is there already"),
        ("Log in `load` and `run`.", "def a(): pass", "not clear what `a`"),
        ("Log in `get_one`.", "class Store(dict):\n    'x'\n    def get_one(self): 1", "outside of `get_one`"),
        ("Log in `get_one`.", "class Store(dict):\n    size = 9\n    def get_one(self): 1", "outside of `get_one`"),
        ("Log in `get_one`.", "def Store(): pass", "no class any more"),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_refused(instruction: str, new: str, reason: str) -> None:
    with pytest.raises(UnreadableAnswer, match=reason):
        small(instruction).merged(new, "raw")


def test_ends_of_lines_stay() -> None:
    file = FILE.replace("\n", "\r\n")
    shown = small("Log in `load`.", file)
    assert "\r" not in shown.text and shown.merged(shown.text) == file
