"""The proof's rewards and tasks, against brute force, and its runs and report for a moment."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import ModuleType

import pytest

from recipe_scripts import recipe_scripts

FOLDER = Path(__file__).resolve().parents[3] / "recipes" / "reinforce"


@pytest.fixture(scope="module")
def scripts() -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    """The modules prove, rewards and countdown."""
    with recipe_scripts("reinforce", "prove", "rewards", "countdown") as found:
        yield found.prove, found.rewards, found.countdown


def test_a_filled_grid_is_right_if_every_unit_has_every_digit(scripts: tuple[ModuleType, ...]) -> None:
    sudoku = scripts[1].sudoku
    assert sudoku("", "1234341221434321") == 1
    assert sudoku("", "1234341221434312") == 0  # a row and columns
    assert sudoku("", "1234234134124123") == 0  # its boxes
    assert sudoku("", "123434122143432") == 0
    assert sudoku("", "123456789456789123789123456231564897564897231897231564312645978645978312978312645") == 1


def test_an_expression_is_right_if_it_has_the_numbers_and_the_value(scripts: tuple[ModuleType, ...]) -> None:
    answers = ["3*5+7", "7+(5*3)", "3*5+8", "22", "3*5+7+0", "3*(5+7", "", "3*57", "3**5-7", "__import__('os')"]
    assert [scripts[1].countdown("3 5 7=22:", each) for each in answers] == [1] * 2 + [0] * 8


def test_all_written_answers_are_right_and_no_task_is_on_both_sides(
    scripts: tuple[ModuleType, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rewards, countdown = scripts
    monkeypatch.setattr(sys, "argv", ["countdown.py", "--out", str(tmp_path), "--held", "200"])
    countdown.main()
    seen = {}
    for name in ("held", "train"):
        rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert all(rewards.countdown(row["prompt"], row["completion"]) == 1 for row in rows)
        parts = [row["prompt"].rstrip(":").split("=") for row in rows]
        seen[name] = {(tuple(sorted(numbers.split())), target) for numbers, target in parts}
        assert len(seen[name]) == len(rows)
    assert len(seen["held"]) == 200 and not seen["held"] & seen["train"]
    lines = (tmp_path / "orders.jsonl").read_text().splitlines()
    orders = [json.loads(line)["prompt"].rstrip(":").split("=") for line in lines]
    assert {(tuple(sorted(numbers.split())), target) for numbers, target in orders} == seen["train"]
    wanted = sum(len(set(permutations(numbers))) for numbers, _ in seen["train"])
    assert len({tuple(each) for each in orders}) == len(orders) == wanted


def test_runs_and_report(
    scripts: tuple[ModuleType, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prove = scripts[0]
    few = ("stages.0.sequences=16", "steps=2", "minutes=0")
    task = prove.TASKS["countdown"]
    small = replace(task, steps=2, script=(*task.script, "--held", "20"), sets=(*task.sets, *few))
    monkeypatch.setattr(prove, "TASKS", {"sudoku": prove.TASKS["sudoku"], "countdown": small})
    prove.main(["--out", str(tmp_path), "--minutes", "5", "--only", "countdown/left_to_right"])
    assert "countdown, left_to_right: 0 of 20" in capsys.readouterr().out
    prove.report(tmp_path, tmp_path / "reinforce.json")
    names = [one["run"] for one in json.loads((tmp_path / "reinforce.json").read_text())]
    assert names == ["start", "left_to_right"]
    assert "| countdown | left_to_right |" in (tmp_path / "reinforce.md").read_text()
    assert (tmp_path / "reinforce.png").stat().st_size > 1000
