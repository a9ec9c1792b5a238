"""Diffusion against autoregression on Sudoku: equal parameters, puzzles and processor time; then a table and pictures.

    python recipes/sudoku/prove.py --data DIR --minutes 1 2 4 8    train and measure; can be stopped and run again
    python recipes/sudoku/prove.py --data DIR --effort 8           exact share against forwards, of the 8 minutes' model
    python recipes/sudoku/prove.py --report                        runs/sudoku into benchmarks/results/sudoku.*

DIR is what puzzles.py wrote. Minutes are of processor time: the same on a machine that does other work. Each number of
them is a run of its own from scratch, whose learning rates fall to 0 at its end. Set OMP_NUM_THREADS=1. A run leaves
`result.json` in its folder, and is then left as it is; one that was killed goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from evaluate import ADAPTIVE, COLUMNS, POINTS, STATIC, SolvedPuzzles, best, cells_of, kept_points, read_rows
from proofs import RESULTS, arguments, draw_shares, trained
from puzzles import GAPS, HELD, TRAIN

from daguerre.errors import DataError
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import read_lines, write_json, write_report
from daguerre.evals.tables import table
from daguerre.model import load
from daguerre.models.loading import read_extra
from daguerre.train.recipe import Recipe, load_recipe
from daguerre.train.sft.corpus import AnswerFiles
from daguerre.train.shards import is_corpus
from daguerre.train.start import named_tokenizer
from daguerre.view.charts import in_percent, new_figure, titled

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class PuzzleSide:
    """A recipe, the file of puzzles that it reads, and its name in tables."""

    recipe: str
    rows: str
    what: str


SIDES = {"diffusion": PuzzleSide("diffusion", GAPS, "diffusion"), "ar": PuzzleSide("ar", TRAIN, "autoregression")}
SMALL = {
    "diffusion": PuzzleSide("small-diffusion", GAPS, "diffusion"),
    "ar": PuzzleSide("small-ar", TRAIN, "autoregression"),
}
"""The same for 4x4 grids."""


# ---- training -------------------------------------------------------------------------------------------------------


def corpus_of(side: PuzzleSide, recipe: Recipe, data: Path, out: Path) -> Path:
    """The puzzles as tokens, made once for all runs of a side."""
    folder = out / f"corpus-{side.recipe}"
    if not is_corpus(folder):
        assert recipe.sft is not None
        tokenizer = named_tokenizer(recipe.tokenizer)
        longest = max(stage.length for stage in recipe.stages)
        AnswerFiles([data / side.rows], folder, longest, recipe.sft.held_out)(tokenizer, recipe.model_config(tokenizer))
    return folder


def run_side(side: PuzzleSide, minutes: float, data: Path, out: Path, num: int, overrides: Sequence[str] = ()) -> Path:
    """Train for so many minutes, or go on, and measure on `num` held-out puzzles; its result.json."""
    folder = out / f"{side.recipe}-{minutes:g}"
    result = folder / "result.json"
    if result.is_file():
        return result
    path = HERE / f"{side.recipe}.toml"
    recipe = load_recipe(str(path), overrides)
    made = trained(path, folder, overrides=overrides, data=corpus_of(side, recipe, data, out), minutes=minutes)
    model = load(made)
    value = {
        "side": side.recipe,
        "minutes": minutes,
        "trained": read_extra(made)["trained"],
        "sequences": recipe.stages[0].sequences,
        "parameters": model.backbone.num_parameters,
        "best": asdict(best(model, read_rows(data / HELD, num))),
        "machine": machine_facts(),
    }
    write_json(result, value)
    return result


def measure_effort(folder: Path, data: Path, num: int) -> Path:
    """The effort curve of a run's model, a line a point, as effort.jsonl in its folder; points that it has are kept."""
    path = folder / "effort.jsonl"
    kept_points(load(folder / "model"), read_rows(data / HELD, num), POINTS, path)
    return path


# ---- the report -----------------------------------------------------------------------------------------------------


def gather(out: Path) -> dict[str, Any]:
    """All that was measured in a folder of runs."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*/result.json")]
    if not runs:
        raise DataError(f"{out} has no result.json: train first, with --data")
    runs.sort(key=lambda run: (run["minutes"], run["side"]))
    return {"runs": runs, "effort": {path.parent.name: read_lines(path) for path in sorted(out.glob("*/effort.jsonl"))}}


def page(values: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    runs, machine, rows = values["runs"], values["runs"][0]["machine"], []
    for run in runs:
        _, _, forwards, exact, cells = cells_of(SolvedPuzzles(**run["best"]))
        seen = f"{run['trained']['micro'] * run['sequences']:,}"
        rows.append([run["side"], f"{run['minutes']:g}", seen, exact, cells, forwards])
    parts = [
        "# Sudoku: diffusion against autoregression",
        "Written by `python recipes/sudoku/prove.py --report`; what it means: [docs/sudoku.md](../../docs/sudoku.md).",
        f"{machine['processor']}, {machine['instruction_set']}, one thread; {runs[0]['parameters']:,} parameters. "
        "Minutes of processor time; exact share of held-out puzzles with 95% intervals (Wilson).",
        table(["side", "minutes", "puzzles seen", "exact", "empty cells right", "forwards a puzzle"], rows),
    ]
    for name, points in values["effort"].items():
        parts.append(f"## Exact share against forwards: `{name}`, {points[0]['num']:,} puzzles")
        parts.append(table(COLUMNS, [cells_of(SolvedPuzzles(**point)) for point in points], left=2))
    return "\n\n".join([*parts, "![Exact share against time and against forwards](sudoku.png)\n"])


def draw(values: dict[str, Any]) -> Any:
    """Exact share against minutes of training, and against forwards by policy."""
    figure = new_figure(12.0, 4.8)
    time_panel, effort_panel = figure.subplots(1, 2)
    for color, side in enumerate(SIDES):
        points = [
            (run["minutes"], SolvedPuzzles(**run["best"])) for run in values["runs"] if run["side"].endswith(side)
        ]
        draw_shares(time_panel, points, color=f"C{color}", label=SIDES[side].what)
    titled(time_panel, "Held-out puzzles solved exactly, by training", "minutes of one core, each a run of its own")
    titled(effort_panel, "", "forwards a puzzle (dashed: the policy decides)")
    for name, values_of in values["effort"].items():
        measured = [SolvedPuzzles(**point) for point in values_of]
        for color, policy in enumerate([*STATIC, *ADAPTIVE]):
            points = [(one.forwards, one) for one in measured if one.policy == policy]
            style = "--" if policy in ADAPTIVE else "-"
            draw_shares(effort_panel, points, color=f"C{color}", label=policy.replace("_", " "), linestyle=style)
        effort_panel.set_title(f"The same by effort: {name}", loc="left", fontsize=12)
    for panel in (time_panel, effort_panel):
        panel.set_xscale("log", base=2)
        panel.set_ylim(0, 1.02)
        panel.xaxis.set_major_formatter("{x:g}")
        if panel.lines:
            panel.legend(frameon=False)
    in_percent(time_panel, effort_panel)
    return figure


def report(out: Path, results: Path = RESULTS / "sudoku.json") -> None:
    """JSON, Markdown and picture of a folder of runs."""
    values = gather(out)
    write_report(results, values, page(values), draw(values))


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, "runs/sudoku")
    parser.add_argument("--data", type=Path, help="the folder that puzzles.py wrote")
    parser.add_argument("--minutes", type=float, nargs="+", default=[], help="of training, a run of each for each side")
    parser.add_argument("--effort", type=float, nargs="+", default=[], help="diffusion runs whose effort is measured")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES), help="sides; all by default")
    parser.add_argument("--set", nargs="+", default=[], dest="overrides", help="key=value for every recipe")
    parser.add_argument("--small", action="store_true", help="4x4 grids, and their recipes")
    parser.add_argument("--num", type=int, default=1000, help="held-out puzzles to measure on (%(default)s)")
    options = parser.parse_args(words)
    if options.data is None and (options.minutes or options.effort):
        parser.error("--minutes and --effort need --data")
    for minutes in options.minutes:
        for side in options.only:
            chosen = (SMALL if options.small else SIDES)[side]
            run_side(chosen, minutes, options.data, options.out, options.num, options.overrides)
    for minutes in options.effort:
        measure_effort(options.out / f"diffusion-{minutes:g}", options.data, options.num)
    if options.report:
        report(options.out)


if __name__ == "__main__":
    main()
