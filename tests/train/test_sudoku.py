"""Sudoku: puzzles against brute force, what is held out, and the recipes, trained and measured for a moment."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import islice, permutations, product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daguerre.model import load
from daguerre.train.recipe import load_recipe
from recipe_scripts import recipe_scripts

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "sudoku"
TINY = "steps=3 model.width=32 model.num_layers=1 model.mlp_width=32 stages.0.sequences=8 sft.held_out=0.2".split()


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The scripts of recipes/sudoku."""
    with recipe_scripts("sudoku", "boards", "puzzles", "evaluate", "prove") as found:
        yield found


@pytest.fixture(scope="module")
def boards(scripts: SimpleNamespace) -> ModuleType:
    module: ModuleType = scripts.boards
    return module


def images(square: np.ndarray, boards: ModuleType) -> Iterator[tuple[int, ...]]:
    """A 4x4 grid, 0 in empty cells, under every symmetry."""
    for turned in (square, square.T):
        for rows, columns in product(boards.line_orders(2), repeat=2):
            moved = turned[rows][:, columns]
            for names in permutations(range(1, 5)):
                yield tuple(np.array([0, *names])[moved].ravel().tolist())


# ---- puzzles --------------------------------------------------------------------------------------------------------


def test_the_solver_finds_all_grids_of_4x4(boards: ModuleType) -> None:
    board = boards.Board(2)
    found = set(boards.solutions(board, (0,) * 16))
    every = product(permutations(range(1, 5)), repeat=4)
    grids = (sum(rows, ()) for rows in every if len({row[0] for row in rows}) == 4)
    assert found == {grid for grid in grids if board.is_solution(grid)}
    assert len(found) == 288


def test_the_solver_finds_exactly_the_solutions_that_agree_with_a_puzzle(boards: ModuleType) -> None:
    board, rng = boards.Board(2), random.Random(0)
    every = list(boards.solutions(board, (0,) * 16))
    for _ in range(50):
        grid = rng.choice(every)
        puzzle = tuple(digit if rng.random() < 0.3 else 0 for digit in grid)
        agree = {one for one in every if all(given in (0, digit) for given, digit in zip(puzzle, one, strict=True))}
        found = list(boards.solutions(board, puzzle))
        assert set(found) == agree and len(found) == len(agree)
    assert not list(boards.solutions(board, (1, 1, *[0] * 14)))


@pytest.mark.parametrize(("size", "givens"), [(2, 6), (3, 36), (3, 40)])
def test_a_puzzle_has_one_solution_and_as_many_givens_as_asked(boards: ModuleType, size: int, givens: int) -> None:
    board, rng = boards.Board(size), random.Random(givens)
    made = 0
    while made < 5:
        solution = boards.random_solution(board, rng)
        assert board.is_solution(solution)
        if (puzzle := boards.random_puzzle(board, solution, givens, rng)) is not None:
            made += 1
            assert list(islice(boards.solutions(board, puzzle), 2)) == [solution]
            assert sum(map(bool, puzzle)) == givens
            assert all(given in (0, digit) for given, digit in zip(puzzle, solution, strict=True))


def test_a_puzzle_that_cannot_have_so_few_givens_is_none(boards: ModuleType) -> None:
    board, rng = boards.Board(2), random.Random(0)
    assert boards.random_puzzle(board, boards.random_solution(board, rng), 3, rng) is None  # four is the least


# ---- symmetries -----------------------------------------------------------------------------------------------------


def test_the_canonical_form_is_the_smallest_image_of_all(boards: ModuleType) -> None:
    board = boards.Board(2)
    forms, every = boards.Canonical(board), list(boards.solutions(board, (0,) * 16))
    for grid in every[::48]:
        assert forms.of(grid) == min(images(np.array(grid).reshape(4, 4), boards))
    assert len({forms.of(grid) for grid in every}) == 2


def test_two_puzzles_have_the_same_form_if_and_only_if_a_symmetry_takes_one_to_the_other(boards: ModuleType) -> None:
    board, rng = boards.Board(2), random.Random(1)
    forms, seen = boards.Canonical(board), list[tuple[Any, Any]]()
    for _ in range(12):
        solution = boards.random_solution(board, rng)
        puzzle = boards.random_puzzle(board, solution, 9, rng)
        smallest = min(images(np.array(puzzle).reshape(4, 4), boards))
        seen.append((forms.of(solution, puzzle), smallest))
    for (form, smallest), (other_form, other_smallest) in product(seen, repeat=2):
        assert (form == other_form) == (smallest == other_smallest)


def test_the_canonical_form_of_9x9_grids_survives_symmetries_and_tells_grids_apart(boards: ModuleType) -> None:
    board, rng = boards.Board(3), random.Random(2)
    forms, found = boards.Canonical(board), set()
    for _ in range(6):
        solution = boards.random_solution(board, rng)
        puzzle = boards.random_puzzle(board, solution, 45, rng) or solution
        moved, moved_puzzle = boards.random_symmetry(board, rng, solution, puzzle)
        assert board.is_solution(moved) and moved != solution
        assert all(given in (0, digit) for given, digit in zip(moved_puzzle, moved, strict=True))
        form = forms.of(solution)
        assert board.is_solution(form) and form == forms.of(moved) == forms.of(form) <= solution
        assert forms.of(solution, puzzle) == forms.of(moved, moved_puzzle)
        found.add(form)
    assert len(found) == 6


def test_rotations_and_reflections_are_among_the_symmetries(boards: ModuleType) -> None:
    solution = boards.random_solution(boards.Board(3), random.Random(3))
    forms, square = boards.Canonical(boards.Board(3)), np.array(solution).reshape(9, 9)
    for moved in (np.rot90(square), np.rot90(square, 2), square[::-1], square[:, ::-1], square.T):
        assert forms.of(tuple(moved.ravel().tolist())) == forms.of(solution)


# ---- what is trained on and what is held out ------------------------------------------------------------------------


def test_no_held_out_puzzle_is_a_training_puzzle_under_a_symmetry(scripts: SimpleNamespace) -> None:
    source = scripts.puzzles.PuzzleSource(2, 5, 8)
    held, train = scripts.puzzles.split(source.all(), 40, 300)
    board = scripts.boards.Board(2)
    sides = [
        {min(images(np.array(one.puzzle).reshape(4, 4), scripts.boards)) for one in side} for side in (held, train[:60])
    ]
    assert len(sides[0]) == 40 and not sides[0] & sides[1]
    assert {one.form for one in held}.isdisjoint(one.form for one in train)
    assert all(list(scripts.boards.solutions(board, one.puzzle)) == [one.solution] for one in held + train)


def test_a_puzzle_of_a_form_that_is_held_out_is_not_trained_on(scripts: SimpleNamespace) -> None:
    boards, puzzles = scripts.boards, scripts.puzzles
    board, rng = boards.Board(3), random.Random(0)
    forms, (first, second) = boards.Canonical(board), (boards.random_solution(board, rng) for _ in range(2))
    moved = boards.random_symmetry(board, rng, first)[0]
    made = [puzzles.Puzzle(grid, grid, forms.of(grid)) for grid in (first, moved, second)]
    assert puzzles.split(iter(made), 1, 1) == ([made[0]], [made[2]])


def test_puzzles_depend_on_the_seed_alone(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts.puzzles, "AT_ONCE", 4)
    source = scripts.puzzles.PuzzleSource()
    found = list(islice(source.all(), 6))
    assert found == list(islice(source.all(), 6)) != list(islice(scripts.puzzles.PuzzleSource(seed=1).all(), 6))
    assert all(36 <= sum(map(bool, one.puzzle)) <= 45 for one in found)


def write_puzzles(scripts: SimpleNamespace, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    words = f"--out {folder} --size 2 --givens 5 8 --train 40 --held 6".split()
    monkeypatch.setattr(sys, "argv", ["puzzles.py", *words])
    scripts.puzzles.main()
    return folder


def test_both_files_have_the_same_puzzles(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_puzzles(scripts, tmp_path / "puzzles", monkeypatch)
    assert "40 puzzles to train on and 6 held out" in capsys.readouterr().out
    pairs, gaps, held = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("train.jsonl", "gaps.jsonl", "held.jsonl")
    )
    assert len(pairs) == len(gaps) == 40 and len(held) == 6
    for pair, gap in zip(pairs, gaps, strict=True):
        parts = gap["template"].split("<gap>")
        assert "0".join(parts) == pair["prompt"]
        assert "".join(a + b for a, b in zip(parts, [*gap["fills"], ""], strict=True)) == pair["completion"]


# ---- the recipes ----------------------------------------------------------------------------------------------------


def test_the_two_sides_differ_in_nothing_but_the_context_and_the_loss() -> None:
    for small in ("", "small-"):
        diffusion, ar = (load_recipe(str(FOLDER / f"{small}{side}.toml")) for side in ("diffusion", "ar"))
        assert diffusion.model is not None and ar.model is not None
        assert (diffusion.model.context, ar.model.context) == ("full", "causal")
        shape = "width num_layers num_heads num_kv_heads mlp_width max_positions positions".split()
        assert [getattr(diffusion.model, name) for name in shape] == [getattr(ar.model, name) for name in shape]
        run = "optim stages seed minutes steps tokenizer".split()
        assert [getattr(diffusion, name) for name in run] == [getattr(ar, name) for name in run]


@pytest.mark.parametrize("side", ["diffusion", "ar"])
def test_a_run_is_trained_once_and_measured_by_whoever_finds_it_unmeasured(
    scripts: SimpleNamespace, side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_puzzles(scripts, tmp_path / "puzzles", monkeypatch)
    run = partial(scripts.prove.run_side, scripts.prove.SMALL[side], 1.0, data, tmp_path / "runs", 5, TINY)
    with monkeypatch.context() as patch:
        patch.setattr(scripts.prove, "best", killed)
        with pytest.raises(KeyboardInterrupt):
            run()
    result = json.loads(run().read_text())
    assert result["trained"]["step"] == 3 and result["parameters"] > 0
    measured = result["best"]
    assert measured["policy"] == {"diffusion": "margin", "ar": "ar"}[side] and measured["num"] == 5
    assert measured["low"] <= measured["exact"] <= measured["high"]
    with monkeypatch.context() as patch:
        patch.setattr(scripts.prove, "best", killed)
        assert json.loads(run().read_text()) == result


def killed(*rest: Any) -> None:
    raise KeyboardInterrupt


def test_a_model_is_asked_for_the_empty_cells_alone(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, data = scripts.evaluate, write_puzzles(scripts, tmp_path / "puzzles", monkeypatch)
    folder = scripts.prove.run_side(scripts.prove.SMALL["diffusion"], 1.0, data, tmp_path / "runs", 2, TINY).parent
    model, rows = load(folder / "model"), evaluate.read_rows(data / "held.jsonl", 4)
    for row, (text, forwards) in zip(rows, evaluate.solve(model, rows, policy="margin"), strict=True):
        assert len(text) == 16 and forwards == row.prompt.count("0")
        assert all(given in ("0", digit) for given, digit in zip(row.prompt, text, strict=True))
    (in_three,) = {forwards for _, forwards in evaluate.solve(model, rows, policy="entropy", steps=3)}
    assert in_three == 3
    at_most = [forwards for _, forwards in evaluate.solve(model, rows, policy="random", steps=51)]
    assert at_most == [row.prompt.count("0") for row in rows]
    assert {forwards for _, forwards in evaluate.solve(model, rows, policy="threshold", threshold=0.0)} == {1}


def test_the_report_has_every_run_and_every_point(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, runs = write_puzzles(scripts, tmp_path / "puzzles", monkeypatch), tmp_path / "runs"
    for side in ("diffusion", "ar"):
        scripts.prove.run_side(scripts.prove.SMALL[side], 1.0, data, runs, 5, TINY)
    monkeypatch.setattr(
        scripts.prove, "POINTS", points := [("margin", {"steps": 2}), ("threshold", {"threshold": 0.5})]
    )
    path = scripts.prove.measure_effort(runs / "small-diffusion-1", data, 5)
    found = scripts.evaluate.read_points(path)
    assert [(one.policy, one.options) for one in found] == points and found[0].forwards == 2
    path.write_text(path.read_text().splitlines()[0] + "\n")  # as a process leaves it that was killed
    assert scripts.evaluate.read_points(scripts.prove.measure_effort(path.parent, data, 5)) == found
    never = replace(found[0], exact=0.0, low=2e-19)  # as Wilson's formula rounds
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in (never, found[1])))
    scripts.prove.report(runs, tmp_path / "sudoku.json")
    text = (tmp_path / "sudoku.md").read_text()
    assert "| small-ar | 1 | 24 | " in text and "| margin | steps 2 | 2.0 | " in text
    assert (tmp_path / "sudoku.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((tmp_path / "sudoku.json").read_text())["runs"]) == 2
