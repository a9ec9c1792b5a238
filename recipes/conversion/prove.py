"""Conversion against training from scratch: the same contexts, parameters, text and steps.

    python recipes/conversion/prove.py [--steps 100 300 900] [--out runs/conversion]  train and measure; can be stopped
    python recipes/conversion/prove.py --report                                       benchmarks/results/conversion.*

An autoregressive model is trained for START steps on Python's standard library. Then each conversion trains for so many
steps, from it and from scratch; each number of steps is a run of its own, whose learning rates fall to 0 at its end.
Measured are bits per byte (a bound where the context is not causal) of the beginnings of the frozen held-out files,
which no run sees. A run leaves `result.json` in its folder. Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import math
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import DaguerreError, DataError, TrainingError
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import write_json, write_lines, write_report
from daguerre.evals.tables import table
from daguerre.heldout import load_frozen
from daguerre.model import Model, load
from daguerre.models.loading import read_extra
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.convert import CONVERSIONS
from daguerre.view.charts import legend_of_figure, new_figure

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from proofs import RESULTS, arguments, trained  # noqa: E402

START, STEPS, LENGTH = 2000, (100, 300, 900), 256
SHAPES: dict[str, list[str]] = {
    "diffullama": ["model.context=full", "sft.preset=dream", "sft.padding=unsupervised"],
    "sdar": ["model.context=block", "model.shift=false", "model.block_size=4", "sft.preset=sdar"],
    "fast_dllm": [
        *("model.context=block", "model.shift=false", "model.block_size=32"),
        "sft.preset=fast_dllm",
    ],
}
"""What a model from scratch needs, to be of the shape that a conversion makes; but for Fast-dLLM v2's shift, which only
models that were autoregressive have.
"""
LORA = ["lora.rank=16", "lora.alpha=32", 'lora.targets=["all-linear"]', "optim.adamw_lr=0.004"]
"""A conversion by factors of the matrices alone."""
HOW = {"converted": "converted", "lora": "converted by factors of rank 16", "scratch": "from scratch"}
DRAWS, TEXTS, CHARACTERS = 32, 64, 600


def rows(folder: Path) -> Iterator[str]:
    """Pieces of the standard library's files, of whole lines and about LENGTH tokens."""
    tokenizer = Tokenizer.default("2k")
    for path in sorted(folder.rglob("*.py")):
        if {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(path.parts):
            continue
        piece, size = "", 0
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            num = len(tokenizer.encode(line))
            if size + num > LENGTH - 2 and piece:
                yield piece
                piece, size = "", 0
            if num < LENGTH - 2:
                piece, size = piece + line, size + num
        if piece:
            yield piece


def data(out: Path) -> Path:
    """The rows as a file."""
    path = out / "library.jsonl"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        library = Path(sysconfig.get_paths()["stdlib"])
        write_lines(path, ({"text": row} for row in rows(library)))
    return path


def train(out: Path, name: str, steps: int, overrides: list[str], start: Path | None) -> Path:
    """A run's folder, trained to its end and measured. TrainingError for a run that was interrupted."""
    folder = out / f"{name}-{steps}"
    if (folder / "result.json").exists():
        return folder
    overrides = [f"steps={steps}", *overrides, "minutes=0", "eval_steps=0", "stages.0.length=256", "sft.held_out=0.02"]
    recipe = "convert" if start else HERE / "model.toml"
    made = trained(recipe, folder, overrides=overrides, start=start, data=data(out))
    done = read_extra(made)["trained"]
    if done["step"] < steps:
        raise TrainingError(f"{folder} has {done['step']} of {steps} steps: run the script again to go on with it")
    bits, error = bits_per_byte(load(made))
    facts = {"name": name, "steps": steps, "trained": done, "bits": bits, "stderr": error}
    write_json(folder / "result.json", facts | {"machine": machine_facts()})
    print(name, steps, f"{bits:.3f} bits per byte (standard error {error:.3f})", flush=True)
    return folder


def bits_per_byte(model: Model) -> tuple[float, float]:
    """Of the beginnings of held-out files, with the standard error over files."""
    kind = "ar" if model.config.context == "causal" else "elbo"
    nats, sizes = [], []
    for document in load_frozen()[:: max(1, len(load_frozen()) // TEXTS)][:TEXTS]:
        text = document.text[:CHARACTERS]
        nats.append(model.nll(text, kind=kind, samples=DRAWS).value)
        sizes.append(len(text.encode()))
    bits, size = np.array(nats) / math.log(2), np.array(sizes)
    value = bits.sum() / size.sum()
    spread = np.sqrt(((bits - value * size) ** 2).sum() * len(bits) / (len(bits) - 1)) / size.sum()
    return float(value), float(spread)


def page(runs: list[dict[str, Any]]) -> str:
    """The report in Markdown; the cell of a run that was not made is empty."""
    by = {(run["name"], run["steps"]): run for run in runs}
    start, rows = next(run for run in runs if run["name"] == "ar"), []
    for to in SHAPES:
        for num in sorted({run["steps"] for run in runs if run["name"] != "ar"}):
            row = [by.get((f"{to}-{how}", num)) for how in HOW]
            cells = [f"{run['bits']:.3f} ± {run['stderr']:.3f}" if run else "" for run in row]
            rows.append([to, num, next((f"{run['trained']['tokens']:,}" for run in row if run), ""), *cells])
    return "\n\n".join(
        [
            "# Conversion against training from scratch",
            "Models of a million parameters (recipes/conversion/model.toml). The autoregressive one, after "
            f"{start['steps']} steps: {start['bits']:.3f} bits per byte of held-out text (exact). Below: a bound on "
            "the same text after so many steps of the same recipe and text, from that model and from scratch; standard "
            "errors over files.",
            table(["to", "steps", "tokens", *HOW.values()], rows),
            "![Bits per byte against steps](conversion.png)\n",
        ]
    )


def draw(runs: list[dict[str, Any]]) -> Any:
    """The curves."""
    figure = new_figure(9.6, 5.0)
    axes = figure.subplots()
    for color, to in enumerate(SHAPES):
        for how, style in zip(HOW, ("-", ":", "--"), strict=True):
            some = sorted((run["steps"], run["bits"], run["stderr"]) for run in runs if run["name"] == f"{to}-{how}")
            if some:
                steps, bits, errors = zip(*some, strict=True)
                label = f"{to}, {HOW[how]}"
                axes.errorbar(steps, bits, errors, color=f"C{color}", linestyle=style, marker="o", label=label)
    axes.axhline(next(run["bits"] for run in runs if run["name"] == "ar"), color="gray", linewidth=1)
    axes.set(xscale="log", xlabel="steps (gray: the autoregressive model)", ylabel="bits per byte, a bound")
    legend_of_figure(figure, axes, 3, 8)
    return figure


def report(out: Path) -> None:
    runs = [json.loads(path.read_text()) for path in sorted(out.glob("*/result.json"))]
    if not any(run["name"] == "ar" for run in runs):
        raise DataError(f"{out} has no results: train first")
    write_report(RESULTS / "conversion.json", {"runs": runs}, page(runs), draw(runs))


def main() -> None:
    options = arguments(__doc__, "runs/conversion")
    options.add_argument("--steps", type=int, nargs="+", default=STEPS)
    options.add_argument("--start", type=int, default=START)
    given = options.parse_args()
    if given.report:
        report(given.out)
        return
    start = train(given.out, "ar", given.start, [], None) / "model"
    for steps in given.steps:
        for to, shape in SHAPES.items():
            anneal = ["anneal=0.2" if CONVERSIONS[to]["context"] == "full" else "anneal=0"]
            train(given.out, f"{to}-converted", steps, [f"convert.to={to}", *anneal], start)
            train(given.out, f"{to}-lora", steps, [f"convert.to={to}", *anneal, *LORA], start)
            train(given.out, f"{to}-scratch", steps, shape, None)


if __name__ == "__main__":
    try:
        main()
    except DaguerreError as error:
        raise SystemExit(str(error)) from None
