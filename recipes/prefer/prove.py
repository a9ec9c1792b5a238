"""Does a model that prefers Python that parses write more of it? Failures before and after, at equal bits per byte.

    python recipes/prefer/pairs.py --out runs/prefer-code                     pairs from the model's own samples
    python recipes/prefer/prove.py --data runs/prefer-code                    train an adapter, measure before and after
    python recipes/prefer/prove.py --data runs/prefer-code --report           benchmarks/results/prefer.json and .md

Prompts are of the frozen held-out sample; samples have the same seeds before and after. The interval of the relative
change is a bootstrap over files (10,000 draws). A step that is done leaves its file in the folder, and is not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from pairs import LINES
from written import TEMPERATURE, TOKENS, held_out_prompts, samples, shares

import daguerre
from daguerre.errors import DataError
from daguerre.evals.bits import bits_per_byte
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import write_json, write_report
from daguerre.evals.tables import table
from daguerre.heldout import load_frozen
from daguerre.train.curves import read_columns

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from proofs import RESULTS, trained  # noqa: E402

BEFORE, AFTER, RUN = "before.json", "after.json", "run"
LAYOUTS: tuple[int | str, ...] = ("ar", 4, 16)
BOUND_WINDOWS = 48
DRAWS = 10_000


def train(data: Path, model: str, overrides: Sequence[str]) -> Path:
    """The adapter of a run on the pairs, which goes on where it was stopped."""
    out = data / RUN
    if (out / "adapter").is_dir() or (out / "model").is_dir():
        return next(path for name in ("adapter", "model") if (path := out / name).is_dir())
    return trained(HERE / "code.toml", out, overrides=overrides, start=model, data=data / LINES)


def measure(model: Any, num: int, each: int, seed: int) -> dict[str, Any]:
    """Failures of `each` samples of `num` held-out prompts, and bits per byte of the held-out sample."""
    return failures(model, num, each, seed) | bits(model)


def failures(model: Any, num: int, each: int, seed: int) -> dict[str, Any]:
    began = time.process_time()
    prompts = held_out_prompts(model.tokenizer, num, seed)
    failed, verdicts, hidden, size = list[list[bool]](), Counter[str](), 0, 0
    for prompt, written in zip(prompts, samples(model, prompts, each, seed), strict=True):
        failed.append([one.failed for one in written])
        verdicts.update(one.verdict for one in written)
        for one in written:
            parts = shares(prompt.text, one.text)
            hidden, size = hidden + parts[0], size + parts[1]
    return {
        "file": [prompt.file for prompt in prompts],
        "failed": failed,
        "verdicts": verdicts,
        "hidden": hidden / max(1, size),
        "bytes": size / sum(map(len, failed)),
        "seconds": time.process_time() - began,
    }


def bits(model: Any) -> dict[str, Any]:
    documents = load_frozen()
    found = bits_per_byte(
        model.denoiser.backend, model.tokenizer, documents, layouts=LAYOUTS, bound_windows=BOUND_WINDOWS
    )
    return {"bits": [asdict(one) for one in found]}


def change(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """Shares of failures, and the relative change with its 95% interval by a bootstrap over files."""
    names = sorted(set(before["file"]))
    place = {name: index for index, name in enumerate(names)}
    sums = np.zeros((3, len(names)))
    for file, old, new in zip(before["file"], before["failed"], after["failed"], strict=True):
        sums[:, place[file]] += (sum(old), sum(new), len(old))
    drawn = np.random.default_rng(0).integers(len(names), size=(DRAWS, len(names)))
    old, new, _ = (row[drawn].sum(1) for row in sums)
    total = sums.sum(1)
    if not total[0]:
        raise DataError("no sample failed before, so there is nothing to bring down: measure more of them")
    low, high = np.quantile(new[old > 0] / old[old > 0] - 1, [0.025, 0.975])
    return {
        "before": total[0] / total[2], "after": total[1] / total[2], "relative": total[1] / total[0] - 1,
        "low": float(low), "high": float(high), "samples": total[2], "files": len(names),
    }  # fmt: skip


def gather(data: Path) -> dict[str, Any]:
    """All that was measured in a folder."""
    if not (data / AFTER).is_file():
        raise DataError(f"{data} has no {AFTER}: train and measure first, without --report")
    before, after = (json.loads((data / name).read_text(encoding="utf-8")) for name in (BEFORE, AFTER))
    log, held = read_columns(data / RUN / "log.csv"), read_columns(data / RUN / "held.csv")
    recipe = json.loads((data / RUN / "recipe.json").read_text(encoding="utf-8"))
    return {
        "change": change(before, after),
        "before": {k: v for k, v in before.items() if k not in ("file", "failed")},
        "after": {k: v for k, v in after.items() if k not in ("file", "failed")},
        "pairs": (data / LINES).read_text(encoding="utf-8").count("\n"),
        "training": {"minutes": float(log["minutes"][-1]), "steps": int(log["step"][-1])},
        "recipe": {name: recipe[name] for name in ("prefer", "lora", "optim", "stages", "steps", "seed")},
        "log": {name: values.tolist() for name, values in log.items() if name in CURVES},
        "held": {name: values.tolist() for name, values in held.items() if name in CURVES},
        "machine": machine_facts(),
        "date": time.strftime("%Y-%m-%d"),
        "command": "python recipes/prefer/prove.py --data DIR",
    }


CURVES = ("step", "preference", "margin", "accuracy", "chosen", "rejected", "drift", "variance", "grad_norm")


def changed(value: float, low: float, high: float) -> str:
    """A relative change with its interval, in percent."""
    return f"{100 * value:+.1f}% ({100 * low:+.1f} to {100 * high:+.1f})"


def page(values: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    moved, machine, before, after = (values[name] for name in ("change", "machine", "before", "after"))
    moves = changed(moved["relative"], moved["low"], moved["high"])
    rows = [["failures to parse", f"{100 * moved['before']:.1f}%", f"{100 * moved['after']:.1f}%", moves]]
    for word in ("whole", "open"):
        shares = [100 * side["verdicts"].get(word, 0) / moved["samples"] for side in (before, after)]
        rows.append([word, *(f"{each:.1f}%" for each in shares), ""])
    for old, new in zip(before["bits"], after["bits"], strict=False):
        layout = "left to right" if old["layout"] == "ar" else f"spans of {old['layout']}"
        more = f"{100 * (new['value'] / old['value'] - 1):+.2f}%"
        rows.append([f"bits per byte, {layout}", f"{old['value']:.3f}", f"{new['value']:.3f}", more])
    sides = (before, after)
    rows.append(["bytes in comments and long strings", *(f"{100 * side['hidden']:.1f}%" for side in sides), ""])
    rows.append(["bytes of a sample", *(f"{side['bytes']:.0f}" for side in sides), ""])
    held = {"step": ".0f", "preference": ".3f", "margin": ".3f", "accuracy": ".1%", "drift": ".4f"}
    columns = [[f"{value:{form}}" for value in values["held"][name]] for name, form in held.items()]
    return "\n\n".join(
        [
            "# Preferences: Python that parses",
            "Written by `python recipes/prefer/prove.py --report`; what it means: "
            "[docs/prefer.md](../../docs/prefer.md).",
            f"{machine['processor']}, {machine['instruction_set']}, one thread. {values['pairs']:,} pairs, "
            f"{values['training']['steps']} steps, {values['training']['minutes']:.1f} minutes of processor time. "
            f"{int(moved['samples']):,} samples of {TOKENS} tokens at temperature {TEMPERATURE} behind prompts of "
            f"{int(moved['files'])} held-out files.",
            table(["", "before", "after", "change"], rows),
            "Held-out pairs:",
            table(["step", "loss", "margin", "in order", "drift, nats/token"], zip(*columns, strict=True), left=0)
            + "\n",
        ]
    )


def others_table(others: dict[str, Any]) -> str:
    """The main figures of other runs."""
    header, rows = ("run", "pairs", "beta", "sft", "rate", "steps", "failures", "bits per byte", "in comments"), []
    for name, one in others.items():
        prefer, optim, moved = one["recipe"]["prefer"], one["recipe"]["optim"], one["change"]
        bits = one["after"]["bits"][0]["value"] / one["before"]["bits"][0]["value"] - 1
        rows.append([
            name, one["pairs"], f"{prefer['beta']:g}", f"{prefer['sft']:g}", f"{optim['adamw_lr']:g}",
            one["training"]["steps"], changed(moved["relative"], moved["low"], moved["high"]), f"{100 * bits:+.2f}%",
            f"{100 * one['after']['hidden']:.1f}%",
        ])  # fmt: skip
    return f"\nOther runs of the same model:\n\n{table(header, rows)}\n"


def report(data: Path, results: Path = RESULTS / "prefer.json", others: Sequence[Path] = ()) -> None:
    """JSON and Markdown of what was measured; of other folders the main figures."""
    values = gather(data) | {"others": {folder.name: gather(folder) for folder in others}}
    write_report(results, values, page(values) + (others_table(values["others"]) if others else ""))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that pairs.py wrote, and of the run")
    parser.add_argument("--model", default="default", help="the model that the pairs are of (%(default)s)")
    parser.add_argument("--before", help="the model to compare with, where that is not the one of --model")
    parser.add_argument("--prompts", type=int, default=400, help="held-out prompts (%(default)s)")
    parser.add_argument("--samples", type=int, default=4, help="of each (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and samples (%(default)s)")
    parser.add_argument("--set", nargs="+", default=[], dest="overrides", help="key=value for the recipe")
    parser.add_argument("--report", action="store_true", help="write the report of what was measured")
    parser.add_argument("--others", type=Path, nargs="+", default=[], help="folders of other runs, for the report")
    options = parser.parse_args(arguments)
    if options.report:
        report(options.data, others=options.others)
        return
    data, which = options.data, options.model
    if not (data / BEFORE).is_file():
        before = daguerre.load(options.before or which)
        write_json(data / BEFORE, measure(before, options.prompts, options.samples, options.seed))
    trained = train(data, which, options.overrides)
    tuned = daguerre.load(which, adapter=trained) if trained.name == "adapter" else daguerre.load(trained)
    write_json(data / AFTER, measure(tuned, options.prompts, options.samples, options.seed))
    print(page(gather(data)))


if __name__ == "__main__":
    main()
