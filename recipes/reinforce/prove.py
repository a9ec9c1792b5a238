"""Reinforcement from a weak start, against more of the fine-tuning that made it: 4x4 Sudoku, and Countdown.

    python recipes/reinforce/prove.py --minutes 1.5                        all runs; can be stopped and run again
    python recipes/reinforce/prove.py --minutes 1.5 --only sudoku/coupled  one of them
    python recipes/reinforce/prove.py --report                             into benchmarks/results/reinforce.*

Of each task a model is fine-tuned briefly on a few rows, and then goes on for so many minutes of processor time: by
`sft`, on the same rows, or by `reinforce`, on prompts alone; "coupled-2" goes on from "coupled" for as long again. Set
OMP_NUM_THREADS=1. A run that has a result.json is left as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SUDOKU = HERE.parent / "sudoku"
sys.path[:0] = [str(HERE), str(SUDOKU), str(HERE.parent)]

import rewards  # noqa: E402
from evaluate import measure, read_rows  # noqa: E402
from proofs import RESULTS, answered, arguments, trained  # noqa: E402

from daguerre.decoding.generate import Request  # noqa: E402
from daguerre.evals.machine import machine_facts  # noqa: E402
from daguerre.evals.results import write_json, write_report  # noqa: E402
from daguerre.evals.statistics import wilson  # noqa: E402
from daguerre.evals.tables import between, table  # noqa: E402
from daguerre.files import atomic_write  # noqa: E402
from daguerre.model import Model, load  # noqa: E402
from daguerre.models.loading import read_extra  # noqa: E402
from daguerre.train.curves import read_columns, smooth  # noqa: E402
from daguerre.view.charts import new_figure, titled  # noqa: E402

START, SFT, AGAIN = "start", "sft", "-2"
COMMON = (
    "precision=float32 stages.0.micro_batches=1 stages.0.length=40 log_steps=20 eval_steps=100000 checkpoint_minutes=2 "
    "reinforce.group=16 reinforce.updates=2 reinforce.kl=0.0"
).split()


@dataclass(frozen=True)
class ProofTask:
    """The script that writes its rows, with arguments; the recipe and steps of the start; the files of rows to learn
    and of prompts; the estimates that are tried; and what the recipe `reinforce` is told.
    """

    script: tuple[str, ...]
    recipe: Path
    steps: int
    learned: str
    prompts: str
    estimates: tuple[str, ...]
    sets: tuple[str, ...]


TASKS = {
    "sudoku": ProofTask(
        (str(SUDOKU / "puzzles.py"), *"--size 2 --givens 5 8 --train 4000 --held 300".split()),
        SUDOKU / "small-diffusion.toml",
        400,
        "few.jsonl",
        "gaps.jsonl",
        ("coupled", "coupled-2", "traced", "spg", "left_to_right"),
        (
            "stages.0.sequences=128",
            "reinforce.policy=margin",
            f"reinforce.reward={HERE / 'rewards.py'}:sudoku",
            "optim.muon_lr=0.0005",
            "optim.adamw_lr=0.0005",
        ),
    ),
    "countdown": ProofTask(
        (str(HERE / "countdown.py"),),
        HERE / "countdown.toml",
        600,
        "train.jsonl",
        "orders.jsonl",
        ("left_to_right",),
        (
            "stages.0.sequences=256",
            "reinforce.length=12",
            f"reinforce.reward={HERE / 'rewards.py'}:countdown",
            "optim.muon_lr=0.0006",
            "optim.adamw_lr=0.0006",
        ),
    ),
}
FEW = 30
"""Solved puzzles of Sudoku that a model sees. Of Countdown it sees the answers of all training tasks."""


def rows_of(task: str, out: Path) -> Path:
    """The folder of a task's rows, which are written once."""
    folder, made = out / f"{task}-data", TASKS[task]
    if not (folder / made.learned).is_file():
        subprocess.run([sys.executable, *made.script, "--out", str(folder)], check=True)
        if made.learned == "few.jsonl":
            lines = (folder / made.prompts).read_text(encoding="utf-8").splitlines(keepends=True)
            with atomic_write(folder / made.learned) as file:
                file.write("".join(lines[:FEW]).encode())
    return folder


def run(task: str, what: str, minutes: float, out: Path) -> None:
    """One run and its measurement: the start, more of it, or reinforcement by an estimate."""
    folder, made, data = out / f"{task}-{what}", TASKS[task], rows_of(task, out)
    if (folder / "result.json").is_file():
        return
    how: dict[str, Any] = {}
    if what != START:
        before = what.removesuffix(AGAIN) if what.endswith(AGAIN) else START
        run(task, before, minutes, out)
        how = {"start": out / f"{task}-{before}" / "model", "minutes": minutes}
    if what in (START, SFT):
        limit = ["minutes=0", f"steps={made.steps}"] if what == START else []
        name, rows, sets = made.recipe, made.learned, ["precision=float32", *limit]
    else:
        sets = [*COMMON, *made.sets, f"reinforce.estimate={what.removesuffix(AGAIN)}"]
        name, rows, sets = Path("reinforce"), made.prompts, [*sets, f"seed={int(what.endswith(AGAIN))}"]
    trained(name, folder, overrides=sets, data=[data / rows], **how)
    score(task, what, out)


def score(task: str, what: str, out: Path) -> None:
    """Measure a run's model on the held-out rows, into its result.json."""
    folder = out / f"{task}-{what}"
    model, held = load(folder / "model"), rows_of(task, out) / "held.jsonl"
    right, num = solved(task, model, held)
    value = {
        "task": task,
        "run": what,
        "trained": read_extra(folder / "model")["trained"],
        "recipe": json.loads((folder / "recipe.json").read_text().replace(f"{HERE}/", "recipes/reinforce/")),
        "parameters": model.backbone.num_parameters,
        "num": num,
        "exact": right / num,
        "interval": wilson(right, num),
        "machine": machine_facts(),
    }
    write_json(folder / "result.json", value)
    print(f"{task}, {what}: {right} of {num}")


def solved(task: str, model: Model, held: Path) -> tuple[int, int]:
    """How many held-out rows are answered exactly at temperature 0, and how many there are."""
    rows = read_rows(held, 10_000)
    if task == "sudoku":  # every puzzle has one solution
        made = measure(model, rows, "margin", {})
        return round(made.exact * made.num), made.num
    how: dict[str, Any] = {"heal": False, "temperature": 0.0, "mode": "ar"}
    requests = [Request.of("generate", row.prompt, 12, **how) for row in rows]
    texts = [result.text for result in answered(model, requests)]
    return int(sum(rewards.countdown(row.prompt, text) for row, text in zip(rows, texts, strict=True))), len(rows)


# ---- the report -----------------------------------------------------------------------------------------------------


def report(out: Path, results: Path = RESULTS / "reinforce.json") -> None:
    """JSON, Markdown and picture of the runs that are done."""
    names = [(task, what) for task, made in TASKS.items() for what in (START, SFT, *made.estimates)]
    found = [
        json.loads(path.read_text())
        for task, what in names
        if (path := out / f"{task}-{what}" / "result.json").is_file()
    ]
    write_report(results, found, page(found), draw(found, out))


def draw(found: Sequence[dict[str, Any]], out: Path) -> Any:
    """Rewards over the runs."""
    figure = new_figure(12.0, 4.2)
    for panel, task in zip(figure.subplots(1, 2), TASKS, strict=True):
        for one in (one for one in found if one["task"] == task and one["run"] not in (START, SFT)):
            log = read_columns(out / f"{task}-{one['run']}" / "log.csv")
            if not log:  # a run without a step
                continue
            xs, ys = smooth(log["minutes"], log["reward"], 30)
            panel.plot(xs, 100 * ys, label=one["run"])
        titled(panel, f"{task}: answers drawn at temperature 1 that are right", "minutes of one core", "%")
        if panel.lines:
            panel.legend(frameon=False)
    return figure


def page(found: Sequence[dict[str, Any]]) -> str:
    """The table, in Markdown."""
    starts, rows = {one["task"]: one["exact"] for one in found if one["run"] == START}, []
    for one in found:
        more = "" if one["run"] == START else f"{100 * (one['exact'] - starts[one['task']]):+.1f}"
        spent = [f"{one['trained']['minutes']:.2f}", f"{one['trained']['step']:,}"]
        exact = f"{between(one['exact'], *one['interval'])} of {one['num']}"
        rows.append([one["task"], one["run"], *spent, exact, more])
    return "\n\n".join(
        [
            "# Reinforcement from a weak start",
            "Written by `python recipes/reinforce/prove.py --report`; what it means: "
            "[docs/reinforce.md](../../docs/reinforce.md).",
            f"{found[0]['machine']['processor']}, one thread; minutes of processor time; held-out puzzles and tasks "
            "that are answered exactly at temperature 0, with 95% intervals (Wilson).",
            table(["task", "run", "minutes", "steps", "exact", "against the start"], rows, left=2),
            "![Rewards over the runs](reinforce.png)\n",
        ]
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, "runs/reinforce")
    parser.add_argument("--minutes", type=float, help="of each run")
    parser.add_argument("--only", nargs="+", default=[], help="runs, as task/estimate; all by default")
    options = parser.parse_args(words)
    every = [f"{task}/{what}" for task, made in TASKS.items() for what in (START, SFT, *made.estimates)]
    for name in (options.only or every) if options.minutes else []:
        task, _, what = name.partition("/")
        run(task, what, options.minutes, options.out)
    if options.report:
        report(options.out)


if __name__ == "__main__":
    main()
