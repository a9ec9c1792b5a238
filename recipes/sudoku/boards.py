"""Sudoku of any size of box: solutions, puzzles with one solution each, the symmetries of grids, and their classes.

A grid is a tuple of the digits 1..N of its cells, row by row, with 0 in an empty cell; N = size * size, 9 for boxes of
3 by 3.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product

import numpy as np

Grid = tuple[int, ...]
EMPTY = "0"


@dataclass(frozen=True)
class Board:
    """What is the same for all grids whose boxes have `size` rows and columns."""

    size: int = 3

    @property
    def num(self) -> int:
        """N: digits, rows, columns and boxes."""
        return self.size**2

    @cached_property
    def units(self) -> list[list[int]]:
        """The cells of each row, column and box, 3 N lists of N cells, in this order."""
        n, size, all_ = self.num, self.size, range(self.num)
        rows = [[r * n + c for c in all_] for r in all_]
        columns = [[r * n + c for r in all_] for c in all_]
        boxes = [[(b // size * size + i // size) * n + b % size * size + i % size for i in all_] for b in all_]
        return rows + columns + boxes

    @cached_property
    def units_of(self) -> list[tuple[int, ...]]:
        """The row, column and box of each cell, by their places in `units`."""
        return [tuple(u for u, unit in enumerate(self.units) if cell in unit) for cell in range(self.num**2)]

    def is_solution(self, grid: Sequence[int]) -> bool:
        """Whether every unit has every digit once."""
        digits = list(range(1, self.num + 1))
        return len(grid) == self.num**2 and all(sorted(grid[c] for c in unit) == digits for unit in self.units)

    def read(self, text: str) -> Grid:
        """The inverse of `written`."""
        return tuple(map(int, text))

    def written(self, grid: Sequence[int]) -> str:
        """A grid as its digits, with EMPTY for an empty cell."""
        return "".join(map(str, grid))


def solutions(board: Board, puzzle: Sequence[int], rng: random.Random | None = None) -> Iterator[Grid]:
    """All solutions of a puzzle. The cell with the fewest digits left comes first; with `rng` digits are in random
    order, so that of the empty grid the first solution is a random one.
    """
    used = [0] * len(board.units)
    for cell, digit in enumerate(puzzle):
        for unit in board.units_of[cell] if digit else ():
            if used[unit] >> digit & 1:
                return
            used[unit] |= 1 << digit
    yield from _filled(board, list(puzzle), [c for c, digit in enumerate(puzzle) if not digit], used, rng)


def _filled(
    board: Board, grid: list[int], empty: list[int], used: list[int], rng: random.Random | None
) -> Iterator[Grid]:
    """Solutions of a grid whose `empty` cells are open; bit d of `used` is set where a unit has digit d."""
    if not empty:
        yield tuple(grid)
        return
    whole, fewest, place, digits = (2 << board.num) - 2, board.num + 1, 0, 0
    for index, cell in enumerate(empty):
        a, b, c = board.units_of[cell]
        left = whole & ~(used[a] | used[b] | used[c])
        if (count := left.bit_count()) < fewest:
            fewest, place, digits = count, index, left
            if count < 2:
                break
    cell = empty[place]
    rest, units = empty[:place] + empty[place + 1 :], board.units_of[cell]
    choices = [digit for digit in range(1, board.num + 1) if digits >> digit & 1]
    if rng is not None:
        rng.shuffle(choices)
    for digit in choices:
        grid[cell] = digit
        for unit in units:
            used[unit] ^= 1 << digit
        yield from _filled(board, grid, rest, used, rng)
        for unit in units:
            used[unit] ^= 1 << digit
    grid[cell] = 0


def random_solution(board: Board, rng: random.Random) -> Grid:
    """A random solution; not every one is equally likely."""
    return next(solutions(board, (0,) * board.num**2, rng))


def random_puzzle(board: Board, solution: Grid, givens: int, rng: random.Random) -> Grid | None:
    """A puzzle of so many givens with this solution and no other: cells are emptied in random order, each one that
    leaves the solution unique. None where every cell was tried and more givens are left.
    """
    puzzle, left = list(solution), len(solution)
    for cell in rng.sample(range(len(puzzle)), len(puzzle)):
        if left == givens:
            break
        digit, puzzle[cell] = puzzle[cell], 0
        if _is_forced(board, puzzle, cell, digit):
            left -= 1
        else:
            puzzle[cell] = digit
    return tuple(puzzle) if left == givens else None


def _is_forced(board: Board, puzzle: list[int], cell: int, digit: int) -> bool:
    """Whether no solution has another digit in an empty cell."""
    seen = {puzzle[other] for unit in board.units_of[cell] for other in board.units[unit]}
    for other in range(1, board.num + 1):
        if other != digit and other not in seen:
            puzzle[cell] = other
            found = next(solutions(board, puzzle), None)
            puzzle[cell] = 0
            if found is not None:
                return False
    return True


# ---- symmetries -----------------------------------------------------------------------------------------------------


def line_orders(size: int) -> np.ndarray:
    """The orders of rows, or of columns, that keep bands whole: int64 (size!^(size + 1), N)."""
    inside = list(permutations(range(size)))
    orders = [
        [band * size + place for band, order in zip(bands, within, strict=True) for place in order]
        for bands in inside
        for within in product(inside, repeat=size)
    ]
    return np.array(orders, dtype=np.int64)


def random_symmetry(board: Board, rng: random.Random, *grids: Grid) -> list[Grid]:
    """The images of grids under one symmetry: relabeling, rows in their bands, bands, columns in their stacks, stacks,
    transposition. Rotations and reflections are among them.
    """
    orders, n = line_orders(board.size), board.num
    rows, columns = orders[rng.randrange(len(orders))], orders[rng.randrange(len(orders))]
    names, turned = np.array([0, *rng.sample(range(1, n + 1), n)]), rng.random() < 0.5
    out = []
    for grid in grids:
        square = np.array(grid).reshape(n, n)
        square = (square.T if turned else square)[rows][:, columns]
        out.append(tuple(names[square].ravel().tolist()))
    return out


class Canonical:
    """The smallest grid, in the order of tuples, that symmetries make of a solution: equal for two solutions if and
    only if a symmetry takes one to the other.

    Its first row is 1..N, whichever row of the grid or of its transpose it was, and whatever the order of columns.
    These two decide all else: digits are named by the first row, and rows and bands follow in the order of their first
    digits.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.orders = line_orders(board.size)
        self.places = np.argsort(self.orders, axis=1)

    def of(self, solution: Grid, puzzle: Grid | None = None) -> Grid:
        """The canonical form of a solution; with a puzzle of it, and behind it the smallest image of the puzzle under
        the symmetries that lead there.
        """
        n = self.board.num
        pair = [np.array(grid).reshape(n, n) for grid in (solution, (0,) * n**2 if puzzle is None else puzzle)]
        choices = [(lines, first) for lines in (pair, [grid.T for grid in pair]) for first in range(n)]
        seconds = [self._second_rows(lines[0] - 1, first) for lines, first in choices]
        least = min(int(codes.min()) for codes in seconds)
        found = (
            self._images(lines, first, self.orders[order])
            for (lines, first), codes in zip(choices, seconds, strict=True)
            for order in np.flatnonzero(codes == least)
        )
        form, image = min(found)
        return form if puzzle is None else form + image

    def _second_rows(self, lines: np.ndarray, first: int) -> np.ndarray:
        """What the second row of the result is, as one number, for each order of columns: int64 (orders,)."""
        size, n = self.board.size, self.board.num
        where, begin = np.argsort(lines[first]), first // size * size
        codes = []
        for other in range(begin, begin + size):
            if other != first:
                moved = where[lines[other]][self.orders]  # the column of the first row that has each digit
                digits = np.take_along_axis(self.places, moved, axis=1)
                codes.append(digits @ (n ** np.arange(n - 1, -1, -1)))
        least: np.ndarray = np.min(codes, axis=0)
        return least

    def _images(self, lines: Sequence[np.ndarray], first: int, order: np.ndarray) -> tuple[Grid, ...]:
        """A solution, and a puzzle of it, with this row first and columns in this order: all else makes the solution as
        small as it can be.
        """
        size, n = self.board.size, self.board.num
        names = np.zeros(n + 1, dtype=np.int64)
        names[lines[0][first][order]] = np.arange(1, n + 1)
        named = [names[grid][:, order] for grid in lines]
        begins = named[0][:, 0]  # what rows are sorted by: no two begin alike
        bands = sorted(
            (sorted(range(start, start + size), key=begins.__getitem__) for start in range(0, n, size)),
            key=lambda band: begins[band[0]],
        )
        rows = [row for band in bands for row in band]
        return tuple(tuple(grid[rows].ravel().tolist()) for grid in named)
