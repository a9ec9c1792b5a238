"""Write puzzles to train on, and others that no symmetry makes of them: `python recipes/sudoku/puzzles.py --out DIR`.

    DIR/held.jsonl    {"prompt": puzzle, "completion": solution}, 0 in empty cells: never trained on
    DIR/train.jsonl   the same of other puzzles, for a model that writes the solution after the puzzle
    DIR/gaps.jsonl    {"template": puzzle with <gap> in empty cells, "fills": their digits}: the puzzles of train.jsonl,
                      in the same order, for a model that fills gaps

Every puzzle has one solution. A held-out solution has a canonical form that no solution of the training puzzles has,
nor any other held-out one: no relabeling, rotation, reflection, transposition, or swap of rows, columns, bands or
stacks takes one to the other. Of 4x4 grids there are but two forms, so there the forms of puzzles differ: no symmetry
takes a held-out puzzle to another one. Puzzle number i is a function of the seed and i.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from boards import EMPTY, Board, Canonical, Grid, random_puzzle, random_solution

from daguerre.decoding.text_spans import MARK
from daguerre.evals.results import write_lines

HELD, TRAIN, GAPS = "held.jsonl", "train.jsonl", "gaps.jsonl"
AT_ONCE = 256
"""Puzzles that a process makes at a time."""


@dataclass(frozen=True)
class Puzzle:
    """A puzzle, its only solution, and the canonical form by which held-out puzzles are apart from others."""

    puzzle: Grid
    solution: Grid
    form: Grid


@dataclass(frozen=True)
class PuzzleSource:
    """Puzzles number 0, 1, ... of a seed, with `fewest` to `most` givens."""

    size: int = 3
    fewest: int = 36
    most: int = 45
    seed: int = 0

    def make(self, first: int) -> list[Puzzle]:
        """Puzzles number first .. first + AT_ONCE - 1."""
        board = Board(self.size)
        forms = Canonical(board)
        return [self._one(index, board, forms) for index in range(first, first + AT_ONCE)]

    def _one(self, index: int, board: Board, forms: Canonical) -> Puzzle:
        rng = random.Random(f"{self.seed}/{index}")
        while True:
            solution = random_solution(board, rng)
            puzzle = random_puzzle(board, solution, rng.randint(self.fewest, self.most), rng)
            if puzzle is not None:
                return Puzzle(puzzle, solution, forms.of(solution, puzzle if self.size < 3 else None))

    def all(self, processes: int = 1) -> Iterator[Puzzle]:
        """All of them, without end."""
        if processes == 1:
            first = 0
            while True:
                yield from self.make(first)
                first += AT_ONCE
        with ProcessPoolExecutor(processes) as pool:
            first, step = 0, processes * AT_ONCE
            while True:
                for part in pool.map(self.make, range(first, first + step, AT_ONCE)):
                    yield from part
                first += step


def split(puzzles: Iterator[Puzzle], held: int, train: int) -> tuple[list[Puzzle], list[Puzzle]]:
    """The first `held` puzzles of different forms, and `train` others, of none of these forms."""
    kept: dict[Grid, Puzzle] = {}
    while len(kept) < held:
        one = next(puzzles)
        kept.setdefault(one.form, one)
    others = list[Puzzle]()
    while len(others) < train:
        if (one := next(puzzles)).form not in kept:
            others.append(one)
    return list(kept.values()), others


def as_pair(one: Puzzle, board: Board) -> dict[str, Any]:
    """The puzzle, and the solution after it."""
    return {"prompt": board.written(one.puzzle), "completion": board.written(one.solution)}


def as_gaps(one: Puzzle, board: Board) -> dict[str, Any]:
    """The puzzle with a gap for each empty cell, and what is in the gaps."""
    fills = [str(digit) for digit, given in zip(one.solution, one.puzzle, strict=True) if not given]
    return {"template": board.written(one.puzzle).replace(EMPTY, MARK), "fills": fills}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--train", type=int, default=50_000, help="puzzles to train on (%(default)s)")
    parser.add_argument("--held", type=int, default=2000, help="puzzles that are held out (%(default)s)")
    parser.add_argument("--size", type=int, default=3, help="rows of a box: 3 for 9x9, 2 for 4x4 (%(default)s)")
    parser.add_argument("--givens", type=int, nargs=2, default=(36, 45), help="fewest and most givens (36 45)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    board, source = Board(options.size), PuzzleSource(options.size, *options.givens, options.seed)
    held, train = split(source.all(options.processes), options.held, options.train)
    options.out.mkdir(parents=True, exist_ok=True)
    pair, gaps = partial(as_pair, board=board), partial(as_gaps, board=board)
    write_lines(options.out / HELD, map(pair, held))
    write_lines(options.out / TRAIN, map(pair, train))
    write_lines(options.out / GAPS, map(gaps, train))
    print(f"{len(train):,} puzzles to train on and {len(held):,} held out in {options.out}")


if __name__ == "__main__":
    main()
