"""Measure a model of the recipe `instructions`, and write the report.

    python recipes/instructions/prove.py --model RUN/model --data DIR --parts curve    the last checkpoint, in training
    python recipes/instructions/prove.py --model RUN/model --data DIR --parts tasks revise bits
    python recipes/instructions/prove.py --model RUN/model --report                    benchmarks/results/instructions.*

tasks   the share of held-out tasks that are exact (evaluate.py)
revise  for the wrong lines of the task `fix`: `revise` of the model that the run began with, in several ways, told
        which line is wrong; and the same of lines whose right form has as many tokens, as revision cannot change that
bits    bits per byte of the frozen held-out sample, before and after, in windows of the tokens that the start had
Parts that are there are kept. Where the machine is busy, `--num` has fewer rows of each task measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from evaluate import MeasuredShares, TaskShare, evaluate, read_rows
from evaluate import table as table_of_tasks
from make import HELD
from proofs import RESULTS, draw_shares
from tasks import TaskRow

import daguerre
from daguerre.errors import DataError
from daguerre.evals.bits import bits_per_byte
from daguerre.evals.correction import Revision, revised_text
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import read_lines, write_json, write_report
from daguerre.evals.tables import table
from daguerre.heldout import load_frozen
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.loading import read_extra
from daguerre.train.checkpoint import find_checkpoint, load_checkpoint
from daguerre.view.charts import in_percent, new_figure, titled

WAYS = (
    *(Revision("unmasked", order, threshold) for order in ("all", "one") for threshold in (0.5, 0.9)),
    *(Revision("leave_one_out", "all", threshold) for threshold in (0.3, 0.5, 0.9)),
)
"""Ways of revising: the ends of what `daguerre eval --what correction` tries."""
CURVE = "curve.jsonl"
PARTS = ("tasks", "revise", "bits", "curve")


def measure_tasks(model: Model, rows: Sequence[TaskRow]) -> dict[str, Any]:
    found, wrong = evaluate(model, rows)
    return {"shares": [asdict(one) for one in found], "wrong": wrong}


def measure_revise(model: Model, rows: Sequence[TaskRow]) -> dict[str, Any]:
    """The share of planted errors that revision of the wrong line repairs, in the best of all ways."""
    rows = [row for row in rows if row.task == "fix"]
    encode = model.tokenizer.encode
    like = [len(encode(row.facts["right"])) == len(encode(row.facts["code"][row.facts["line"]])) for row in rows]
    out = []
    for revision in WAYS:
        right = [_revised(model, row, revision) == row.facts["right"] for row in rows]
        of_like = [ok for ok, same in zip(right, like, strict=True) if same]
        out.append(
            {"revision": asdict(revision), "all": asdict(TaskShare.of(right)), "as_long": asdict(TaskShare.of(of_like))}
        )
        print(revision, TaskShare.of(right), flush=True)
    return {"ways": out, "as_long": like}


def _revised(model: Model, row: TaskRow, revision: Revision) -> str:
    code, at = row.facts["code"], row.facts["line"]
    before = "".join(line + "\n" for line in code[:at])
    return revised_text(model, before, code[at], "".join("\n" + line for line in [*code[at + 1 :], ""]), revision)


def measure_bits(model: Model, windows: int | None, positions: int) -> dict[str, float]:
    """Bits per byte of so many windows of the frozen sample, evenly spread; the bound on a few of them."""
    how: dict[str, Any] = {"layouts": ("ar", 16), "exact_windows": windows, "bound_windows": 32, "samples": 2}
    how["positions"] = positions
    found = bits_per_byte(model.denoiser.backend, model.tokenizer, load_frozen(), **how)
    return {one.layout: one.value for one in found}


def last_checkpoint(run: Path) -> tuple[Model, dict[str, Any]]:
    """The averaged weights of a run's last checkpoint as a model, and where the run stood."""
    path = find_checkpoint(run, True)
    assert path is not None
    tensors, state = load_checkpoint(path)
    start = daguerre.load(rope_scaling=state["recipe"]["rope_scaling"])
    backbone = Backbone(start.config)
    backbone.load_state_dict({**tensors["model"], **tensors["average"]}, strict=False)
    return Model(backbone.eval().requires_grad_(False), start.tokenizer), state["progress"]


def curve_point(run: Path, rows: Sequence[TaskRow]) -> None:
    """Add a point to the curve of a run."""
    model, progress = last_checkpoint(run)
    found, _ = evaluate(model, rows)
    point = {**progress, "exact": {one.task: asdict(one.all) for one in found}}
    with (run / CURVE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(point) + "\n")


# ---- the report -----------------------------------------------------------------------------------------------------


def share(values: dict[str, Any]) -> TaskShare:
    return TaskShare(**values)


def gather(run: Path) -> dict[str, Any]:
    """All that was measured of a run. DataError where nothing was."""
    path = run / "measured.json"
    if not path.is_file():
        raise DataError(f"{run} has no measured.json: measure first, with --parts")
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values | {"curve": read_lines(run / CURVE)}


def page(values: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    machine, trained, spent = values["machine"], values["trained"], ""
    if trained is not None:  # a mean of models says nothing of it
        spent = f" Trained for {trained['minutes']:.1f} minutes of wall clock: {trained['step']:,} steps, "
        spent += f"{trained['tokens']:,} tokens."
    parts = [
        "# Tasks on files of code, by the default model after sft",
        "Written by `python recipes/instructions/prove.py --report`; what it means: "
        "[docs/instructions.md](../../docs/instructions.md).",
        f"{machine['processor']}, {machine['instruction_set']}.{spent}\n"
        "Exact shares of held-out tasks with 95% intervals (Wilson).",
    ]
    parts += [values["note"]] if "note" in values else []
    if "tasks" in values:
        parts.append(table_of_tasks([_measured(one) for one in values["tasks"]["shares"]]))
    if "revise" in values:
        parts += ["## Planted errors: `revise`, told the wrong line", table_of_ways(values["revise"]["ways"])]
    if "bits" in values:
        before, after = values["bits"]["before"], values["bits"]["after"]
        rows = [
            [name, f"{value:.4f}", f"{after[name]:.4f}", f"{100 * (after[name] / value - 1):+.1f}%"]
            for name, value in before.items()
        ]
        parts += ["## Bits per byte of the frozen held-out sample", table(["", "before", "after", "change"], rows)]
    if "rates" in values:
        rows = [[one["run"], f"{one['tokens']:,}", one["apply"], one["bits"]] for one in values["rates"]]
        parts += ["## Rates", table(["run", "tokens", "merges exact", "bits per byte, 16 windows"], rows)]
    if values["curve"]:
        tasks = list(values["curve"][0]["exact"])
        rows = [
            [f"{point['tokens']:,}", *(f"{100 * point['exact'][task]['exact']:.0f}%" for task in tasks)]
            for point in values["curve"]
        ]
        parts += ["## While it trains", table(["tokens", *tasks], rows, left=0)]
        parts.append("![Exact share by task while it trains](instructions.png)")
    return "\n\n".join(parts) + "\n"


def table_of_ways(ways: Sequence[dict[str, Any]]) -> str:
    """Ways of revising."""
    names = ["{reading}, {order}, {threshold:g}".format_map(way["revision"]) for way in ways]
    rows = [[name, share(way["all"]), share(way["as_long"])] for name, way in zip(names, ways, strict=True)]
    header = ("reading, order, threshold", "exact", "where the right line has as many tokens")
    return table(header, rows, left=3)


def _measured(one: dict[str, Any]) -> MeasuredShares:
    tables = {name: {key: share(value) for key, value in one[name].items()} for name in ("kinds", "lengths", "beside")}
    return MeasuredShares(one["task"], share(one["all"]), **tables)


def draw(values: dict[str, Any]) -> Any:
    """Exact shares against tokens of training."""
    figure = new_figure(7.0, 4.4)
    across = "millions of tokens of training (answers, prompts and plain code)"
    panel = titled(figure.subplots(), "Held-out tasks answered exactly", across)
    for color, task in enumerate(values["curve"][0]["exact"]):
        points = ((point["tokens"] / 1e6, share(point["exact"][task])) for point in values["curve"])
        draw_shares(panel, points, label=task.replace("_", " "), color=f"C{color}")
    panel.set_ylim(0, 1.02)
    in_percent(panel)
    panel.legend(frameon=False)
    return figure


def report(run: Path, results: Path = RESULTS / "instructions.json") -> None:
    """JSON, Markdown and picture of a run."""
    values = gather(run)
    if "tasks" in values:
        values["tasks"] = {"shares": values["tasks"]["shares"], "wrong": values["tasks"]["wrong"][:40]}
    write_report(results, values, page(values), draw(values) if values["curve"] else None)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the model in the folder of a run")
    parser.add_argument("--data", type=Path, help="the folder that make.py wrote")
    parser.add_argument("--before", default="default", help="the model that the run began with (%(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[])
    parser.add_argument("--num", type=int, help="rows of each task; all by default")
    parser.add_argument("--windows", type=int, help="windows of the sample for bits; all by default")
    parser.add_argument("--report", action="store_true", help="write the report of the run")
    options = parser.parse_args(arguments)
    run = options.model.parent
    rows = read_rows(options.data / HELD, num=options.num) if options.data is not None else []
    if "curve" in options.parts:
        curve_point(run, rows)
    path = run / "measured.json"
    for part in [part for part in options.parts if part != "curve"]:
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if part in values:
            continue
        values |= {"machine": machine_facts(), "trained": read_extra(options.model).get("trained")}
        if part == "tasks":
            values[part] = measure_tasks(daguerre.load(options.model), rows)
        elif part == "revise":
            values[part] = measure_revise(daguerre.load(options.before), rows)
        else:
            before, after = daguerre.load(options.before), daguerre.load(options.model)
            measured = partial(measure_bits, windows=options.windows, positions=before.config.max_positions)
            values[part] = {"before": measured(before), "after": measured(after)}
            print(values[part], flush=True)
        write_json(path, values)
    if options.report:
        report(run)


if __name__ == "__main__":
    main()
