"""Unified diffs and search-and-replace blocks: applied exactly, or refused."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from daguerre.decoding.text_spans import unified_diff
from daguerre.editing.changes import MOST_CHANGES, applied, is_changes, read_changes
from daguerre.errors import InputError

TEXT = "import os\n\nx = 1\ny = 2\nprint(x)\n"


def change(text: str, changes: str) -> str:
    (one,) = read_changes(changes)
    return applied(text, one.changes)


def block(old: str, new: str, path: str = "") -> str:
    return f"{path}\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n"


def test_a_diff_of_any_two_texts_makes_the_one_of_the_other() -> None:
    rng = random.Random(0)
    for _ in range(300):
        pieces = ["a\n", "b\n", "\n", "c \r\n", "-- \n", "+++ x\n", "@@\n"]
        old = "".join(rng.choices(pieces, k=rng.randrange(1, 30))) + rng.choice(["", "end"])
        new = "".join(line for line in old.splitlines(keepends=True) if rng.random() < 0.8) + rng.choice(
            ["", "z", "z\n"]
        )
        if old != new:
            assert change(old, unified_diff(old, new, "./a.py")) == new


def test_what_git_writes_is_read(tmp_path: Path) -> None:
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(TEXT * 5)
    new.write_text("# first\n" + TEXT * 2 + TEXT * 2 + TEXT.replace("x", "z").removesuffix("\n"))
    command = ["git", "diff", "--no-index", "--no-color", str(old), str(new)]
    made = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert change(old.read_text(), made) == new.read_text()


def test_a_diff_of_a_text_that_has_moved_on_is_found_where_it_is_once() -> None:
    diff = unified_diff(TEXT, TEXT.replace("y = 2", "y = 3"), "a.py")
    assert change("# new\n\n" + TEXT, diff) == "# new\n\n" + TEXT.replace("y = 2", "y = 3")
    with pytest.raises(InputError, match=r"a\.py: the lines .* more than once"):
        change("# new\n" + TEXT + TEXT, diff)
    with pytest.raises(InputError, match="not there as they are given"):
        change(TEXT.replace("print(x)", "print( x)"), diff)


def test_blocks_replace_whole_lines_that_are_there_once() -> None:
    assert change(TEXT, block("x = 1\n", "x = 5\n")) == TEXT.replace("x = 1", "x = 5")
    assert change(TEXT, block("x = 1\n", "") + block("print(x)\n", "print(y)\n")) == "import os\n\ny = 2\nprint(y)\n"
    assert change(TEXT.removesuffix("\n"), block("print(x)\n", "print(y)\n")) == TEXT[:-9] + "print(y)"
    assert change("", block("", "new\n")) == "new\n"
    crlf = TEXT.replace("\n", "\r\n")
    assert change(crlf, block("x = 1\ny = 2\n", "z = 1\n")) == "import os\r\n\r\nz = 1\r\nprint(x)\r\n"
    for wrong in (block("= 1\n", "= 2\n"), block("x = 1", "x = 2\n"), block("", "x\n"), block("x = 1 \n", "\n")):
        with pytest.raises(InputError):
            change(TEXT, wrong)


def test_changes_that_overlap_are_refused() -> None:
    with pytest.raises(InputError, match="two changes are of the same lines, at line 4"):
        change(TEXT, block("x = 1\ny = 2\n", "a\n") + block("y = 2\nprint(x)\n", "b\n"))
    with pytest.raises(InputError, match="the same lines"):
        change(TEXT, block("y = 2\n", "a\n") * 2)


def test_each_change_has_its_file() -> None:
    found = read_changes(
        f"Here:\n\n`src/a.py`\n```python{block('a' + chr(10), 'b' + chr(10))}```\n{block('c' + chr(10), '', 'b.py')}"
    )
    assert [(one.path, len(one.changes)) for one in found] == [("src/a.py", 1), ("b.py", 1)]
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n--- /dev/null\n+++ b/y.py\n@@ -0,0 +1 @@\n+new\n"
    diff += "--- a/z.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
    found = read_changes(diff)
    assert [(one.path, one.created, one.deleted) for one in found] == [
        ("x.py", False, False),
        ("y.py", True, False),
        ("z.py", False, True),
    ]
    assert [applied(text, one.changes) for text, one in zip(("a\n", "", "old\n"), found, strict=True)] == [
        "b\n",
        "new\n",
        "",
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ("", "there is no change"),
        ("hello\n", "there is no change"),
        ("<<<<<<< SEARCH\nx\n", "has no ======="),
        ("<<<<<<< SEARCH\nx\n=======\ny\n<<<<<<< SEARCH\n", "has no >>>>>>> REPLACE"),
        ("--- a\n+++ b\n@@ -1,2 +1,2 @@\n x\n", "ends before"),
        ("--- a\n+++ b\n@@ -1,1 +1,1 @@\n-x\n-y\n+z\n", "more lines than it says"),
        ("--- a\n+++ b\n@@ -1,2 +1,2 @@\n x\n*y\n", "begins with none of"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n@@ -1 +1 @@\n-x\n+y\n", "apply it with git"),
        ("@@ -999999999,1 +1,1 @@\n-x\n+y\n@@ -1,0 +1,1 @@\n", "ends before"),
        (block("x\n", "y\n") * (MOST_CHANGES + 1), "apply them in parts"),
    ],
)
def test_damaged_changes_are_refused(changes: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_changes(changes)


def test_hostile_changes_take_little_time() -> None:
    text = "x\n" * 100_000
    for changes in (
        "<<<<<<< SEARCH\n" * 100_000,
        "@@ -1,999999999 +1,999999999 @@\n" + " x\n" * 200_000,
        block("x\n" * 100_000 + "y\n", "z\n"),
        "".join(block("x\n" * 1_000 + f"{n}\n", "z\n") for n in range(50)),
        "--- a\n+++ b\n" * 100_000 + "@@ -5 +5 @@\n-y\n+z\n",
    ):
        with pytest.raises(InputError):
            change(text, changes)
    assert not is_changes("x\n" * 500_000)
