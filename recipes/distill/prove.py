"""Fewer forwards on Sudoku: each method from the same model, for the same processor time; then tables and a picture.

    python recipes/distill/prove.py --from runs/sudoku/diffusion-8/model --data puzzles --minutes 4
    python recipes/distill/prove.py --report                       runs/distill into benchmarks/results/distill.*

The model and the puzzles are those of recipes/sudoku (docs/sudoku.md). `start` is the model as it is, `more` the same
minutes of the loss that it was trained with. Minutes are of processor time; set OMP_NUM_THREADS=1. What is measured is
kept, and a run that was killed goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "sudoku"), str(HERE.parent)]

from evaluate import SolvedPuzzles, cells_of, kept_points, read_rows  # noqa: E402
from proofs import RESULTS, arguments, draw_shares, trained  # noqa: E402
from puzzles import GAPS, HELD  # noqa: E402

from daguerre.errors import DataError  # noqa: E402
from daguerre.evals.machine import machine_facts  # noqa: E402
from daguerre.evals.results import read_lines, write_report  # noqa: E402
from daguerre.evals.tables import table  # noqa: E402
from daguerre.model import load  # noqa: E402
from daguerre.models.loading import read_extra  # noqa: E402
from daguerre.view.charts import in_percent, new_figure, titled  # noqa: E402

ON_POLICY = ["method=on_policy", "sharpness=4.0", "steps=8", "rollouts=4", "kl=0.05"]
TRAJECTORIES = ["method=trajectories", "states=2", "window=[1.0, 3.0]", "noise=[0.5, 1.0]", "only_right=true"]
RUNS: dict[str, tuple[str, list[str]]] = {
    "more": ("more", []),
    "sdtt": ("sudoku", []),
    "trajectories": ("sudoku", [f"distill.{option}" for option in TRAJECTORIES]),
    "on_policy": (
        "sudoku",
        [f"distill.{option}" for option in ON_POLICY] + ["optim.muon_lr=0.002", "optim.adamw_lr=0.0004"],
    ),
}
"""The recipe of each run, and what it sets."""
POINTS: list[tuple[str, dict[str, Any]]] = [
    *(("margin", {"steps": steps}) for steps in (1, 2, 3, 4, 6, 8, 12, 16)),
    *(("threshold", {"threshold": value}) for value in (0.5, 0.7, 0.8, 0.9, 0.97, 0.99)),
    *(("entropy_bounded", {"gamma": value}) for value in (1.0, 0.1, 0.01)),
]


def train(name: str, start: str, data: Path, minutes: float, out: Path) -> Path:
    """The model of a run, trained or resumed."""
    recipe, overrides = RUNS[name]
    folder = out / name
    model = folder / "model"
    if model.is_dir() and read_extra(model)["trained"]["minutes"] >= 0.9 * minutes:
        return model
    path = HERE / f"{recipe}.toml"
    return trained(path, folder, overrides=overrides, start=start, data=data / GAPS, minutes=minutes)


def measured(model: Path | str, path: Path, data: Path, num: int) -> None:
    """The effort curve of a model, a line a point; points that the file has are kept."""
    rows = read_rows(data / HELD, num)
    kept_points(load(model), rows, POINTS, path, lambda one: print(path.parent.name, *cells_of(one), flush=True))


# ---- the report -----------------------------------------------------------------------------------------------------


def gather(out: Path) -> dict[str, Any]:
    """All that was measured in a folder of runs."""
    runs: dict[str, Any] = {}
    for name in ("start", *RUNS):
        path, model = out / name / "effort.jsonl", out / name / "model"
        if path.is_file():
            trained = read_extra(model)["trained"] if model.is_dir() else None
            runs[name] = {"trained": trained, "points": read_lines(path)}
    if not runs:
        raise DataError(f"{out} has no effort.jsonl: train first, with --from and --data")
    return {"runs": runs, "machine": machine_facts()}


def page(values: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    machine, runs, rows = values["machine"], values["runs"], []
    num = runs["start"]["points"][0]["num"]
    heads = [f"{name} ({run['trained']['minutes']:.1f})" if run["trained"] else name for name, run in runs.items()]
    for policy, options in POINTS:
        cells = []
        for run in runs.values():
            found = [SolvedPuzzles(**p) for p in run["points"] if (p["policy"], p["options"]) == (policy, options)]
            cells.append(f"{found[0].text} in {found[0].forwards:.1f}" if found else "")
        rows.append([policy, ", ".join(f"{name} {value:g}" for name, value in options.items()), *cells])
    return "\n\n".join(
        [
            "# Sudoku: exact share against forwards, before and after distillation",
            "Written by `recipes/distill/prove.py --report`; what it means: [docs/distill.md](../../docs/distill.md).",
            f"{machine['processor']}, {machine['instruction_set']}, one thread; {num:,} held-out puzzles; 95% "
            "intervals (Wilson). In parentheses how long each run trained, in minutes of processor time.",
            table(["policy", "options", *heads], rows, left=2),
            "![Exact share against forwards](distill.png)\n",
        ]
    )


def draw(values: dict[str, Any]) -> Any:
    """Exact share against forwards, a panel a policy."""
    figure = new_figure(13.0, 4.6)
    policies = list(dict.fromkeys(policy for policy, _ in POINTS))
    panels = figure.subplots(1, len(policies), sharey=True)
    for panel, policy in zip(panels, policies, strict=True):
        for color, (name, run) in enumerate(values["runs"].items()):
            chosen = (SolvedPuzzles(**point) for point in run["points"] if point["policy"] == policy)
            draw_shares(panel, ((one.forwards, one) for one in chosen), color=f"C{color}", label=name)
        titled(panel, policy.replace("_", " "), "forwards a puzzle")
    in_percent(*panels)
    panels[0].set_xscale("log", base=2)
    panels[0].xaxis.set_major_formatter("{x:g}")
    panels[0].legend(frameon=False)
    return figure


def report(out: Path, results: Path = RESULTS / "distill.json") -> None:
    """JSON, Markdown and picture of a folder of runs."""
    values = gather(out)
    write_report(results, values, page(values), draw(values))


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, "runs/distill")
    parser.add_argument("--from", dest="start", help="the model to start from")
    parser.add_argument("--data", type=Path, help="the folder that recipes/sudoku/puzzles.py wrote")
    parser.add_argument("--minutes", type=float, help="of training, for each run")
    parser.add_argument(
        "--only", nargs="+", choices=["start", *RUNS], default=["start", *RUNS], help="runs; all by default"
    )
    parser.add_argument("--num", type=int, default=1000, help="held-out puzzles to measure on (%(default)s)")
    options = parser.parse_args(words)
    if options.minutes and not (options.start and options.data):
        parser.error("--minutes needs --from and --data")
    for name in options.only if options.minutes else ():
        (options.out / name).mkdir(parents=True, exist_ok=True)
        model = (
            options.start if name == "start" else train(name, options.start, options.data, options.minutes, options.out)
        )
        measured(model, options.out / name / "effort.jsonl", options.data, options.num)
    if options.report:
        report(options.out)


if __name__ == "__main__":
    main()
