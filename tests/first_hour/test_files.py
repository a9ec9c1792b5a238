"""Files that are longer than the context: completed, filled, edited and written by real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from commands import daguerre

SHORT = ("--max-tokens", "4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of the standard library of 1,000 lines, which is not this project's."""
    (tmp_path / "src dir").mkdir()
    for name in ("big.py", "src dir/big.py"):
        shutil.copy(os.path.join(os.path.dirname(json.__file__), "..", "configparser.py"), tmp_path / name)
        os.chmod(tmp_path / name, 0o640)
    return tmp_path


def test_a_file_is_completed_at_a_place(folder: Path) -> None:
    lines = (folder / "big.py").read_text().split("\n")
    done = daguerre("complete", "big.py:700:9", *SHORT, cwd=folder)
    end = daguerre("complete", "big.py", *SHORT, cwd=folder)
    piped = daguerre("complete", "-", *SHORT, cwd=folder, stdin="\n".join([*lines[:699], lines[699][:8]]))

    assert done.returncode == 0, done.stderr
    assert done.stdout == piped.stdout
    assert "the model was shown lines" in done.stderr
    assert f"of {len(lines) - 1:,}" in end.stderr
    for place, words in (("big.py:9000", "lines 9000 to 9000"), ("big.py:1:900", "column 900")):
        wrong = daguerre("complete", place, cwd=folder)
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert words in wrong.stderr


def test_a_gap_in_a_file(folder: Path) -> None:
    before = (folder / "big.py").read_bytes()
    shown = daguerre("infill", "big.py", "--at", "700:9", *SHORT, cwd=folder)
    diff = daguerre("infill", "big.py", "--lines", "700:700", "--diff", *SHORT, cwd=folder)
    whole = daguerre("infill", "big.py", "--lines", "700:700", "--whole", *SHORT, cwd=folder)

    assert shown.returncode == diff.returncode == whole.returncode == 0, shown.stderr + diff.stderr
    assert (folder / "big.py").read_bytes() == before
    lines, new = before.decode().split("\n"), whole.stdout.split("\n")
    assert new[:699] == lines[:699]
    assert new[-(len(lines) - 700) :] == lines[700:]
    assert diff.stdout.startswith("--- ./big.py\n+++ ./big.py\n@@ -697,7 ") or not diff.stdout


@pytest.mark.parametrize("name", ["big.py", "src dir/big.py"])
def test_a_difference_is_applied_by_git_and_patch(folder: Path, name: str) -> None:
    how = ("--pattern", r"self\._\w+ = \w+", "--max-tokens", "4", "--diff")
    short = folder / name
    short.write_text(
        "".join(short.read_text().splitlines(keepends=True)[600:660]) + "x = 1"
    )  # no line break at its end
    old, diff = short.read_text(), daguerre("edit", name, *how, "--temperature", "1", cwd=folder)
    assert diff.returncode == 0, diff.stderr
    assert diff.stdout.startswith(f"--- ./{name}")
    new = daguerre("edit", name, *how[:-1], "--temperature", "1", cwd=folder).stdout
    assert new != old
    tools = [tool for tool in ("git", "patch") if shutil.which(tool)]
    if not tools:
        pytest.skip("neither git nor patch is installed")
    for tool in tools:
        apply = ["git", "apply"] if tool == "git" else ["patch", "-p0"]
        done = subprocess.run(apply, cwd=folder, input=diff.stdout, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        assert short.read_text() == new, tool
        short.write_text(old)


def test_a_file_is_written_whole_with_its_permissions(folder: Path) -> None:
    path = folder / "big.py"
    (folder / "link.py").symlink_to("big.py")
    old = path.read_text()
    how = ("edit", "link.py", "--lines", "700:700", "--temperature", "1", *SHORT)
    printed = daguerre(*how, cwd=folder).stdout
    done = daguerre(*how, "--write", "--backup", cwd=folder)

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert path.read_text() == printed != old
    assert (folder / "big.py.bak").read_text() == old
    assert path.stat().st_mode & 0o777 == 0o640
    assert (folder / "link.py").is_symlink()
    assert "wrote link.py" in done.stderr
    assert sorted(each.name for each in folder.iterdir()) == ["big.py", "big.py.bak", "link.py", "src dir"]


def test_json_says_what_was_shown(folder: Path) -> None:
    body = json.loads(daguerre("edit", "big.py", "--lines", "700:700", *SHORT, "--json", cwd=folder).stdout)
    (first, last), *_ = [pair for pair in body["context"]["lines"] if pair[0] <= 700 <= pair[1] + 1]

    assert body["context"]["complete"] is False
    assert first < 700 <= last
    refused = daguerre("edit", "big.py", "--lines", "700:700", "--context", "whole", cwd=folder)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "1024" in refused.stderr


def test_a_dictionary_is_no_gap(folder: Path) -> None:
    template = "known = {}\nname = <gap>\n"
    done = daguerre("fill", template, *SHORT, cwd=folder)
    other = daguerre("fill", "known = {}\n", cwd=folder)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("known = {}\nname = ")
    assert (other.returncode, other.stdout) == (2, "")
    assert 'mark="{}"' in other.stderr
