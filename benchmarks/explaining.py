"""What it costs to explain a text, and to steer one, beside writing it plainly.

    OMP_NUM_THREADS=1 python benchmarks/explaining.py [--rounds 12] [--out benchmarks/results/explaining-1.json]

The same prompt and seed in four ways, in turn, in each of three modes. A number is the median over rounds of the
seconds of a whole `generate`, over its forwards, beside that of the plain way. What is written differs where steering
changes it, so a ratio is of forwards and not of texts. Leave the machine idle.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import daguerre
from daguerre.evals.machine import machine_facts, measured_on
from daguerre.evals.results import write_report
from daguerre.evals.tables import table
from daguerre.model import Model

PROMPT = 'import os\n\ndef read_lines(path):\n    """All lines of a file."""\n'
PLAIN = "plain"
WAYS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "explained": {"explain": True},
    "steered": {"steer": [{"kind": "add", "concepts": ["for_loop"], "strength": 2.0}]},
    "forbidden": {"forbid": ["print_call"]},
}
MODES = ("ar", "speculative", "block")
TOKENS, MOST = 120, 1.25


def seconds(model: Model, mode: str, seed: int, options: dict[str, Any]) -> float:
    """Seconds of a forward, all that the text costs divided among its forwards."""
    began = time.perf_counter()
    result = model.generate(PROMPT, TOKENS, min_tokens=TOKENS, mode=mode, temperature=0.8, seed=seed, **options)
    return (time.perf_counter() - began) / result.usage.forwards


def measured(model: Model, mode: str, rounds: int) -> dict[str, Any]:
    """A row of the report. The first round is not counted."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(rounds + 1):
        for way, options in WAYS.items():
            times[way].append(seconds(model, mode, seed, options))
    medians = {way: statistics.median(found[1:]) for way, found in times.items()}
    ratios = {way: round(medians[way] / medians[PLAIN], 3) for way in WAYS if way != PLAIN}
    return {"mode": mode, "plain_us": round(1e6 * medians[PLAIN]), **ratios}


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    columns, rows = [way for way in WAYS if way != PLAIN], []
    for row in report["rows"]:
        said = [f"{row[way]:.2f}" + ("" if row[way] <= MOST else " **missed**") for way in columns]
        rows.append([f"`{row['mode']}`", f"{row['plain_us']:,}", *said])
    return (
        f"# What explaining and steering cost\n\nTime of a forward beside a plain one, medians of {report['rounds']} "
        f"interleaved rounds of {TOKENS} tokens, threads: {report['threads']}. The bar is {MOST}.\n\n"
        f"{table(['mode', 'plain, microseconds a forward', *columns], rows)}\n\n{measured_on(report['machine'])} "
        "By `python benchmarks/explaining.py`.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="concepts")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path, help="a JSON file; a page of Markdown is written beside it")
    given = parser.parse_args()
    model = daguerre.load(given.model)
    facts = {"machine": machine_facts(), "threads": torch.get_num_threads(), "rounds": given.rounds}
    report: dict[str, Any] = facts | {"rows": []}
    for mode in MODES:
        row = measured(model, mode, given.rounds)
        report["rows"].append(row)
        print(*row.values(), sep="\t", flush=True)
    if given.out is not None:
        write_report(given.out, report, markdown(report))


if __name__ == "__main__":
    main()
