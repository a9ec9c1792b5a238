"""The share of puzzles that a model solves exactly: `python recipes/sudoku/evaluate.py MODEL --data DIR/held.jsonl`.

A model of full context gets the puzzle as a template and fills the empty cells in mode "full": by each policy of
STATIC in 1, 2, 4, ... steps, and by each of ADAPTIVE, which decide themselves how many cells a forward commits. A
causal model writes the solution after the puzzle in mode "ar", a forward a cell. All at temperature 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from boards import EMPTY
from puzzles import HELD

import daguerre
from daguerre.decoding.generate import Request
from daguerre.evals.results import read_lines, write_lines
from daguerre.model import Model

sys.path.append(str(Path(__file__).resolve().parents[1]))

from proofs import ExactShare, answered

STATIC = ("margin", "entropy", "random")
STEPS = (1, 2, 4, 8, 16, 32, 51)
ADAPTIVE: dict[str, tuple[dict[str, Any], ...]] = {
    "threshold": tuple({"threshold": value} for value in (0.5, 0.7, 0.9, 0.97, 0.99)),
    "entropy_bounded": tuple({"gamma": value} for value in (1.0, 0.1, 0.01, 0.001, 0.0001)),
}
"""Policies that decide how many cells a forward commits, and their options, from few forwards to many."""
POINTS: list[tuple[str, dict[str, Any]]] = [
    *((policy, {"steps": steps}) for policy in STATIC for steps in STEPS),
    *((policy, options) for policy, choices in ADAPTIVE.items() for options in choices),
]
"""The points of the effort curve: exact share against forwards, by policy."""
AT_ONCE = 128
"""Puzzles that are solved together."""


@dataclass(frozen=True)
class PuzzleRow:
    """A puzzle and its solution, as texts."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class SolvedPuzzles(ExactShare):
    """How many puzzles were solved, the share of empty cells that were right, and the mean number of forwards; of this
    policy with these options.
    """

    policy: str
    options: dict[str, Any]
    cells: float
    forwards: float

    @property
    def how(self) -> str:
        """The options in words."""
        return ", ".join(f"{name} {value:g}" for name, value in self.options.items())


def read_rows(path: Path, num: int) -> list[PuzzleRow]:
    """The first `num` puzzles of a file."""
    with path.open(encoding="utf-8") as file:
        return [PuzzleRow(**json.loads(line)) for line in islice(file, num)]


def asked(model: Model, row: PuzzleRow, **options: Any) -> Request:
    """The request that solves a puzzle; of so many steps, or one for each empty cell where these are fewer."""
    if model.config.context == "full":
        if "steps" in options:
            options["steps"] = min(options["steps"], row.prompt.count(EMPTY))
        decode: dict[str, Any] = {"mark": EMPTY, "max_tokens": 1, "min_tokens": 1, "mode": "full"}
        return Request.of("fill", row.prompt, heal=False, temperature=0.0, **decode, **options)
    decode = {"max_tokens": len(row.completion), "min_tokens": len(row.completion), "mode": "ar"}
    return Request.of("generate", row.prompt, heal=False, temperature=0.0, **decode, **options)


def solve(model: Model, rows: Sequence[PuzzleRow], **options: Any) -> Iterator[tuple[str, int]]:
    """The model's solution of each puzzle and the forwards that it took, in order."""
    for first in range(0, len(rows), AT_ONCE):
        for result in answered(model, (asked(model, row, **options) for row in rows[first : first + AT_ONCE])):
            yield result.text, result.usage.forwards


def measure(model: Model, rows: Sequence[PuzzleRow], policy: str, options: dict[str, Any]) -> SolvedPuzzles:
    """How many of the puzzles are solved. `policy` is one of diffusion's, or "ar"."""
    how = options if policy == "ar" else {"policy": policy, **options}
    found = list(solve(model, rows, **how))
    right = ExactShare.of([text == row.completion for (text, _), row in zip(found, rows, strict=True)])
    cells = [
        digit == right
        for (text, _), row in zip(found, rows, strict=True)
        for digit, right, given in zip(text, row.completion, row.prompt, strict=True)
        if given == EMPTY
    ]
    forwards = float(np.mean([num for _, num in found]))
    return SolvedPuzzles(**vars(right), policy=policy, options=options, cells=float(np.mean(cells)), forwards=forwards)


def kept_points(
    model: Model,
    rows: Sequence[PuzzleRow],
    points: Sequence[tuple[str, dict[str, Any]]],
    path: Path,
    say: Callable[[SolvedPuzzles], None] = lambda one: None,
) -> None:
    """Measure the points of a curve, a line of a file for each; those that the file has are kept."""
    found = read_points(path)
    done = {(one.policy, tuple(one.options.items())) for one in found}
    for policy, options in points:
        if (policy, tuple(options.items())) not in done:
            found.append(measure(model, rows, policy, options))
            say(found[-1])
            write_lines(path, map(asdict, found))


def read_points(path: Path) -> list[SolvedPuzzles]:
    """The points of a curve; none where there is no file."""
    return [SolvedPuzzles(**one) for one in read_lines(path)]


def best(model: Model, rows: Sequence[PuzzleRow]) -> SolvedPuzzles:
    """A cell a forward: by margin, or from left to right."""
    return measure(model, rows, "margin" if model.config.context == "full" else "ar", {})


COLUMNS = ("policy", "options", "forwards", "exact", "empty cells right")


def cells_of(one: SolvedPuzzles) -> list[str]:
    """A measurement as a row of a table with COLUMNS."""
    return [one.policy, one.how, f"{one.forwards:.1f}", one.text, f"{100 * one.cells:.1f}%"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with a model")
    parser.add_argument("--data", type=Path, required=True, help=f"{HELD}, or the folder that it is in")
    parser.add_argument("--num", type=int, default=1000, help="puzzles (%(default)s)")
    parser.add_argument("--effort", action="store_true", help="every policy and number of steps, not the best alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    options = parser.parse_args()
    model = daguerre.load(options.model, device=options.device)
    rows = read_rows(options.data / HELD if options.data.is_dir() else options.data, options.num)
    print(*COLUMNS, sep=" | ")
    found = []
    points = (measure(model, rows, *point) for point in POINTS) if options.effort else [best(model, rows)]
    for one in points:
        print(*cells_of(one), sep=" | ", flush=True)
        found.append(asdict(one))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
