"""`daguerre apply`: changes of files, all or none, without a model where the text says what is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import daguerre

TEXT = "import os\n\nx = 1\ny = 2\nprint(x)\n"
BLOCK = "{}\n<<<<<<< SEARCH\nx = 1\n=======\nx = 5\n>>>>>>> REPLACE\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_bytes(TEXT.replace("\n", "\r\n").encode())
    (tmp_path / "b.py").write_text(TEXT)
    (tmp_path / "snippet.py").write_text("x = 1\nz = 3\ny = 2\n")
    return tmp_path


def test_a_snippet_or_blocks_go_into_a_file(folder: Path) -> None:
    made = daguerre("apply", "b.py", "snippet.py", cwd=folder)
    assert (made.returncode, made.stdout) == (0, TEXT.replace("x = 1\n", "x = 1\nz = 3\n")), made.stderr
    shown = daguerre("apply", "b.py", "-", "--diff", cwd=folder, stdin=BLOCK.format(""))
    assert shown.stdout.startswith("--- ./b.py\n") and "-x = 1\n+x = 5\n" in shown.stdout
    assert (folder / "b.py").read_text() == TEXT
    written = daguerre("apply", "a.py", "-", "--write", "--backup", cwd=folder, stdin=BLOCK.format(""))
    assert (
        written.returncode == 0
        and (folder / "a.py").read_bytes() == TEXT.replace("x = 1", "x = 5").replace("\n", "\r\n").encode()
    )
    assert (folder / "a.py.bak").read_bytes() == TEXT.replace("\n", "\r\n").encode()


def test_several_files_are_changed_together_or_not_at_all(folder: Path) -> None:
    new = "--- /dev/null\n+++ b/sub/c.py\n@@ -0,0 +1 @@\n+new\n"
    gone = "--- a/snippet.py\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-x = 1\n-z = 3\n-y = 2\n"
    change = "--- a/{0}\n+++ b/{0}\n@@ -3 +3 @@\n-x = {1}\n+x = 7\n"
    bad = daguerre("apply", "-", "--write", cwd=folder, stdin=new + change.format("b.py", 1) + change.format("a.py", 2))
    assert bad.returncode == 2 and "a.py" in bad.stderr and len(bad.stderr.splitlines()) == 1
    assert (folder / "b.py").read_text() == TEXT and not (folder / "sub").exists()
    good = new + gone + change.format("b.py", 1)
    shown = daguerre("apply", "-", cwd=folder, stdin=good)
    assert shown.returncode == 0 and "+x = 7" in shown.stdout and (folder / "b.py").read_text() == TEXT
    assert daguerre("apply", "-", "--write", cwd=folder, stdin=good).returncode == 0
    assert (folder / "b.py").read_text() == TEXT.replace("x = 1", "x = 7")
    assert (folder / "sub" / "c.py").read_text() == "new\n" and not (folder / "snippet.py").exists()


@pytest.mark.parametrize("name", ["../out.py", "/tmp/out.py", "link/out.py"])
def test_a_name_that_leads_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "link").symlink_to(folder)
    done = daguerre("apply", "-", "--write", cwd=folder / "in", stdin=BLOCK.format(name))
    assert done.returncode == 2 and "not in this folder" in done.stderr


def test_what_needs_a_model_says_so(folder: Path) -> None:
    done = daguerre("apply", "b.py", "-", cwd=folder, stdin="# ...\nnew = 1\n# ...\n")
    assert done.returncode == 2 and "--model" in done.stderr and (folder / "b.py").read_text() == TEXT
    told = daguerre("edit", "b.py", "rename x to y", "--write", cwd=folder)
    assert told.returncode == 2 and "chat template" in told.stderr and (folder / "b.py").read_text() == TEXT
    both = daguerre("edit", "b.py", "rename x to y", "--pattern", "x", cwd=folder)
    assert both.returncode == 2 and "leave out what else" in both.stderr
