"""`daguerre concepts` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import Done, daguerre
from daguerre.concepts.labels import label


def run(*arguments: object) -> Done:
    return daguerre("concepts", *map(str, arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.py").write_text("try:\n    f()\nexcept:\n    pass\n")
    (tmp_path / "deep" / "b.py").write_text("def f(:\n", encoding="utf-8")
    (tmp_path / "deep" / "c.py").write_bytes("\ufeffx = 'ü'\r\n".encode())
    (tmp_path / "d.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "e.txt").write_text("x = 1\n")
    return tmp_path


def test_files_are_labeled_and_an_interrupted_run_goes_on(folder: Path) -> None:
    out = folder / "labels.jsonl"
    done = run("label", folder, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["files"], summary["unparsed"], summary["unreadable"], summary["skipped"]) == (3, 1, 1, 0)
    assert summary["prevalence"]["bare_except"] == 0.5
    first, *lines = out.read_text().splitlines()
    records = {Path(one["file"]).name: one for one in map(json.loads, lines)}
    assert records.keys() == {"a.py", "b.py", "c.py"}
    assert records["a.py"]["spans"] == label((folder / "a.py").read_text()).spans.tolist()
    assert [one["parses"] for one in records.values()] == [True, False, True]

    out.write_text("\n".join([first, lines[0], lines[1][:20]]))  # killed while it wrote
    again = json.loads(run("label", folder, "--out", out, "--json").stdout)
    assert (again["files"], again["skipped"]) == (2, 1)
    assert sorted(out.read_text().splitlines()[1:]) == sorted(lines)
    told = run("label", folder, "--out", out)
    assert "files that were labeled before: 3" in told.stdout


def test_labels_of_another_taxonomy_are_not_mixed(folder: Path) -> None:
    out = folder / "labels.jsonl"
    out.write_text('{"taxonomy": "0"}\n')
    done = run("label", folder, "--out", out)
    assert done.returncode == 2 and "labels of another taxonomy: name another file" in done.stderr
    out.write_text("hello\n")
    done = run("label", folder, "--out", out)
    assert done.returncode == 2 and "is no file of labels" in done.stderr


def test_labels_that_cannot_be_written_are_one_line(folder: Path) -> None:
    for out in (folder / "nowhere" / "labels.jsonl", folder / "deep"):
        done = run("label", folder, "--out", out)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert str(out) in done.stderr and "Traceback" not in done.stderr


def test_a_path_without_files_is_one_line(folder: Path) -> None:
    for path, message in ((folder / "nowhere", "is no file and no folder"), (folder / "deep" / "c.py", "")):
        done = run("label", path)
        assert (done.returncode == 0) == (not message)
        assert message in done.stderr and done.stderr.count("\n") <= 1


def test_concepts_are_listed_and_shown() -> None:
    listed = run("list", "--group", "risk")
    assert listed.returncode == 0 and "bare_except" in listed.stdout and "for_loop" not in listed.stdout
    facts = json.loads(run("list", "--json").stdout)
    assert {one["name"] for one in facts["concepts"]} >= {"bare_except", "for_loop"}
    shown = run("show", "for_loop", "--num", 2)
    assert shown.returncode == 0 and shown.stdout.count(", line ") == 2 and "for " in shown.stdout
    examples = json.loads(run("show", "docstring", "--num", 1, "--json").stdout)["examples"]
    assert examples[0]["text"][examples[0]["start"] : examples[0]["end"]].lstrip("rRbu")[:1] in "\"'"
    wrong = run("show", "for_lop")
    assert wrong.returncode == 2 and "did you mean 'for_loop'" in wrong.stderr
