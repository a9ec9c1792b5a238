"""Python that parses: the rule by which it is judged, pairs of samples, and the proof, run for a moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import daguerre
from daguerre.model import Model
from recipe_scripts import recipe_scripts

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "prefer"


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The scripts of recipes/prefer."""
    with recipe_scripts("prefer", "written", "pairs", "prove") as found:
        yield found


VERDICTS = [
    ("x = 1\n", "y = 2\n", False, "whole"),
    ("def f():\n", "    return 1\n", True, "whole"),
    ("x = 1\n", "y = (\n", False, "open"),
    ("x = 1\n", "def f():\n", False, "open"),
    ("x = 1\n", 'y = """\nabc\n', False, "open"),
    ("try:\n", "    x = 1\n", False, "open"),
    ("x = 1\n", "y = (\n", True, "failed"),
    ("def f():\n", "return 1\n", False, "failed"),
    ("", "return 1\n", False, "failed"),
    ("x = (\n", "]\n", False, "failed"),
    ("x = 1\n", "y = 'a\n", False, "failed"),
    ("x = 1\n", "a b\n", False, "failed"),
    ("if x:\n    y = 1\n", "  z = 1\n", False, "failed"),
    ("x = 1\n", "a b", False, "failed"),
    ("x = 1\n", "y = 2\na b", False, "whole"),
    ("x = 1\n", "y = 2\na b", True, "failed"),
    ("x = 1\n", "\0\n", False, "failed"),
]
"""Prompts, texts, whether the text ended, and what is said of it."""


def test_the_verdict(scripts: SimpleNamespace, subtests: pytest.Subtests) -> None:
    for prompt, text, ended, word in VERDICTS:
        with subtests.test(word, prompt=prompt, text=text, ended=ended):
            one = scripts.written.judged(prompt, text, ended)
            assert one.verdict == word and one.failed == (word == "failed")


def test_where_texts_of_a_pair_are_cut(scripts: SimpleNamespace) -> None:
    written = scripts.written
    assert written.up_to_failure("x = 1\n", "y = 2\nz = )\nw = 3\nv = )\n") == "y = 2\nz = )\n"
    assert written.up_to_failure("", "y = (\n1\n2\n") == "y = (\n1\n2\n"
    assert written.as_long_as("ab\ncd\nef\n", "xxxx\n") == "ab\ncd\n"
    assert written.as_long_as("ab\n", "xxxx\n") == "ab\n"


def test_how_much_of_a_text_is_no_code(scripts: SimpleNamespace) -> None:
    shares = scripts.written.shares
    assert shares("x = 1\n", "# abc\ny = 2\n") == (5, 12)
    assert shares("x = '''\n", "abc\nd'''\ny = 2\n")[0] == len("abc\nd'''")
    assert shares("", "y = '''\nabc\n") == (12, 12)
    assert shares("# abc\n", "y = (1,\n") == (0, 8)


def test_prompts_are_whole_lines_that_can_go_on(scripts: SimpleNamespace, default: Model, tmp_path: Path) -> None:
    written = scripts.written
    held = written.held_out_prompts(default.tokenizer, 12, 0)
    library = written.library_prompts(default.tokenizer, 6, 0, Path(json.__file__).parent)
    assert len(held) == 12 and len(library) == 6
    for prompt in (*held, *library):
        assert prompt.text.endswith("\n") and written.verdict(prompt.text) != "failed"
        assert written.SHORTEST / 2 <= len(default.tokenizer.encode(prompt.text)) <= written.LONGEST
    assert held == written.held_out_prompts(default.tokenizer, 12, 0)
    (tmp_path / "bad.py").write_text("a b\n")
    assert written.library_prompts(default.tokenizer, 6, 0, tmp_path) == []


@pytest.fixture(scope="module")
def default() -> Model:
    return daguerre.load()


def test_the_proof_for_a_moment(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pairs, training, figures before and after, and the report; a step that is done is not repeated."""
    monkeypatch.setattr(scripts.written, "TOKENS", 12)
    monkeypatch.setattr(scripts.prove, "LAYOUTS", ("ar",))
    few_documents = scripts.written.load_frozen()[:3]
    monkeypatch.setattr(scripts.prove, "load_frozen", lambda: few_documents[:1])
    monkeypatch.setattr(scripts.written, "load_frozen", lambda: few_documents)
    scripts.pairs.main(["--out", str(tmp_path), "--prompts", "8", "--samples", "6", "--source", json.__path__[0]])
    texts, rows = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("texts.jsonl", "lines.jsonl")
    )
    assert len(texts) >= len(rows) >= 3
    for row in (*texts, *rows):
        assert scripts.written.verdict(row["prompt"] + row["chosen"]) != "failed"
        assert scripts.written.verdict(row["prompt"]) != "failed"
    whole = {row["prompt"] + row["rejected"] for row in texts}
    assert all(row["prompt"] + row["rejected"] in whole and row["chosen"].count("\n") == 1 for row in rows)
    check_code_pairs(scripts, tmp_path)
    few = ["--prompts", "6", "--samples", "2", "--set", "steps=2", "eval_steps=0", "stages.0.sequences=2"]
    scripts.prove.main(["--data", str(tmp_path), *few])
    assert "| failures to parse |" in capsys.readouterr().out
    before = (tmp_path / "before.json").stat().st_mtime_ns
    assert (tmp_path / "run" / "adapter" / "adapter_config.json").is_file()
    scripts.prove.main(["--data", str(tmp_path), *few])
    assert (tmp_path / "before.json").stat().st_mtime_ns == before
    results = tmp_path / "results.json"
    scripts.prove.report(tmp_path, results)
    values = json.loads(results.read_text())
    assert values["pairs"] == len(rows) and values["training"]["steps"] == 2 and values["change"]["samples"] == 12
    assert "| bits per byte, left to right |" in results.with_suffix(".md").read_text()


def check_code_pairs(scripts: SimpleNamespace, folder: Path) -> None:
    """With --code the same texts give pairs of lines and of rests of lines, and no comment is chosen for a line."""
    (folder / "code").mkdir()
    (folder / "code" / "texts.jsonl").write_bytes((folder / "texts.jsonl").read_bytes())
    scripts.pairs.main(["--out", str(folder / "code"), "--code", "--source", json.__path__[0]])
    rows = [json.loads(line) for line in (folder / "code" / "lines.jsonl").read_text().splitlines()]
    inside = [row for row in rows if not row["prompt"].endswith("\n")]
    assert inside and len(inside) < len(rows)
    for row in rows:
        assert scripts.written.verdict(row["prompt"] + row["chosen"]) != "failed"
        assert row not in inside or scripts.written.verdict(row["prompt"] + row["rejected"]) == "failed"
        assert row["chosen"] != row["rejected"] and row["chosen"].count("\n") == 1
        assert row in inside or not row["chosen"].strip().startswith(scripts.pairs.EVASIONS)


def test_the_change_is_that_of_all_samples_together(scripts: SimpleNamespace) -> None:
    before = {"file": ["a", "a", "b"], "failed": [[True, True], [True, False], [True, False]]}
    after = {"file": ["a", "a", "b"], "failed": [[True, False], [False, False], [True, False]]}
    found = scripts.prove.change(before, after)
    assert found["before"] == pytest.approx(4 / 6) and found["after"] == pytest.approx(2 / 6)
    assert found["relative"] == pytest.approx(-0.5)
    assert found["low"] == pytest.approx(-2 / 3) and found["high"] == pytest.approx(0.0)
    assert np.isfinite(list(found.values())).all()
