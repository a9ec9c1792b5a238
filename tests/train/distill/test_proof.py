"""The scripts of recipes/distill: tasks and their checker, and runs of a few steps, measured and reported."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe_scripts import recipe_scripts

FOLDER = Path(__file__).resolve().parents[3] / "recipes" / "distill"


@pytest.fixture(scope="module")
def lists() -> Iterator[Any]:
    """The script recipes/distill/lists.py."""
    with recipe_scripts("distill", "lists") as found:
        yield found.lists


def test_the_checker_takes_right_answers_and_no_others(lists: Any) -> None:
    copy = lists.ListQuestion("copy", "abc")
    replace = lists.ListQuestion("replace", "abc", "b", "x")
    shuffle = lists.ListQuestion("shuffle", "abc")
    assert copy.is_right("abc") and not copy.is_right("acb")
    assert replace.is_right("axc") and not replace.is_right("abc") and not replace.is_right("xbc")
    right = {"acb", "bac", "bca", "cab", "cba"}
    texts = {a + b + c for a in "abc" for b in "abc" for c in "abc"}
    assert {text for text in texts if shuffle.is_right(text)} == right
    assert {shuffle.answer(random.Random(seed)) for seed in range(60)} == right


def test_rows_have_right_answers_and_no_held_out_list(lists: Any, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in lists.write_rows(tmp_path / "rows.jsonl", 600).read_text().splitlines()]
    assert 0.85 < len(rows) / 600 < 0.95
    asked = {question.prompt: question for question in lists.questions(600, 0)}
    assert {question.task for question in asked.values()} == set(lists.TASKS)
    for row in rows:
        prompt = row["template"].replace("<gap>", "")
        assert asked[prompt].is_right("".join(row["fills"])) and not lists.held_out(asked[prompt])
    assert len({len(prompt) for prompt in asked}) == 1


def test_runs_are_trained_measured_and_reported(lists: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "POINTS", [("margin", {"steps": 2}), ("threshold", {"threshold": 0.5})])
    few = ["--out", str(tmp_path / "runs"), "--rows", "300", "--num", "5", "--steps", "2", "--more", "2"]
    lists.main([*few, "--only", "start", "more", "sdtt"])
    lists.report(tmp_path / "runs", tmp_path / "made.json")
    values = json.loads((tmp_path / "made.json").read_text())
    assert list(values["runs"]) == ["start", "more", "sdtt"]
    for points in values["runs"].values():
        assert [point["task"] for point in points] == [task for task in lists.TASKS for _ in range(2)]
        assert all(0 <= point["exact"] <= 1 <= point["forwards"] <= 6 for point in points)
        assert [point["forwards"] for point in points if point["policy"] == "margin"] == [2.0] * 3
    assert (tmp_path / "made.md").read_text().count("| sdtt |") == 2
    assert (tmp_path / "made.png").stat().st_size > 1000


def test_blocks_of_the_default_model_are_trained_measured_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recipe_scripts("distill", "blocks") as found:
        blocks, out = found.blocks, tmp_path / "runs"
        monkeypatch.setattr(blocks, "SETTINGS", [blocks.AR, blocks.Decode(mode="block", block_size=8, threshold=0.5)])
        monkeypatch.setattr(blocks, "TOKENS", 16)
        blocks.main(["--out", str(out), "--minutes", "0.3", "--answers", "30", "--num", "2", "--only", "more", "sdtt"])
        blocks.report(out, tmp_path / "made.json")
        rows = [json.loads(line) for line in (out / blocks.ANSWERS).read_text().splitlines()]
        assert len(rows) > 20 and all(row["prompt"].endswith("\n") and row["completion"] for row in rows)
    runs = json.loads((tmp_path / "made.json").read_text())["runs"]
    assert list(runs) == ["start", "more", "sdtt"]
    for name, points in runs.items():
        assert [point["threshold"] for point in points] == [None, 0.5]
        for point in points:
            assert 0 <= point["exact"][1] <= point["exact"][0] <= point["exact"][2] <= 1 and point["tokens"] > 0
        assert name != "start" or points[0]["same"][0] == 1.0
    assert "| mode ar |" in (tmp_path / "made.md").read_text() and (tmp_path / "made.png").stat().st_size > 1000
