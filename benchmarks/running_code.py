"""Code that runs: a model writes a missing line or expression of a held-out function, and its doctests run.

    python benchmarks/running_code.py --packages DIR --install            held-out packages, at the sample's versions
    python benchmarks/running_code.py --packages DIR [default NAME=PATH ...]    benchmarks/results/running-code.*

Every answer runs in a sandbox (Linux). The report is written after each way of writing. Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import Progress
from running.cases import KINDS, DoctestCase, Judge, find_cases
from running.scores import CaseScore, answers, judged, score, writers

from daguerre.errors import InputError
from daguerre.evals.infilling import BEAM
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import write_report
from daguerre.evals.tables import between, table
from daguerre.heldout import load_frozen
from daguerre.model import load
from daguerre.models.lora import CONFIG

PACKAGES = ("arrow", "boltons", "humanize", "more-itertools", "sortedcontainers", "toolz")
"""Held-out packages with doctests that need little else."""
METHODS = ("ar", "block", "speculative", "infill", BEAM)
RESULTS = Path(__file__).resolve().parent / "results" / "running-code.json"


def install(folder: Path) -> None:
    """Install the packages at the versions of the frozen sample."""
    versions = {document.package: document.version for document in load_frozen()}
    wanted = [f"{name}=={versions[name]}" for name in PACKAGES]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *wanted], check=True)


def spread(cases: Sequence[DoctestCase], limit: int) -> list[DoctestCase]:
    """At most `limit` cases at equal distances."""
    return [cases[number * len(cases) // limit] for number in range(limit)] if len(cases) > limit else list(cases)


def measure(
    given: argparse.Namespace, judge: Judge, cases: Sequence[DoctestCase], name: str, path: str
) -> Iterator[tuple[str, list[CaseScore]]]:
    """Each way of writing of one model, with its scores for each kind of case."""
    adapter = (Path(path) / CONFIG).is_file()
    model = load("default", adapter=path, backend="native") if adapter else load(path, backend="native")
    with Progress(disable=not sys.stderr.isatty()) as progress:
        for method, write in writers(model).items():
            samples, scores = 0 if method == BEAM else given.samples, list[CaseScore]()
            for kind in KINDS if method in given.methods else ():
                some = [case for case in cases if case.kind == kind]
                greedy, passed, began = [], [], time.perf_counter()
                for case in progress.track(some, description=f"{name}, {method}, {kind}"):
                    first, sampled = answers(write, case, samples, given.temperature, given.seed)
                    greedy.append(first)
                    passed.append(judged(judge, case, first, sampled))
                scores.append(score(method, some, greedy, passed, samples))
                print(*line(name, scores[-1]), f"{time.perf_counter() - began:.0f} s", flush=True)
            if scores:
                yield method, scores


def line(name: str, one: CaseScore) -> list[str]:
    """A row of the table."""

    def percent(share: float | None, interval: tuple[float, float] | None) -> str:
        return "-" if share is None or interval is None else between(share, *interval).replace("%", "")

    cells = [name, one.method, one.kind, str(one.num), percent(one.greedy, one.greedy_interval)]
    cells += [f"{100 * one.exact:.1f}", percent(one.pass_1, one.pass_1_interval)]
    return [*cells, percent(one.pass_n, one.pass_n_interval)]


def page(found: dict[str, Any]) -> str:
    """The report in Markdown."""
    samples = found["samples"]
    header = ("model", "method", "missing", "cases", "greedy passes, %", "exact, %", "pass@1, %", f"pass@{samples}, %")
    rows = [line(name, CaseScore(**one)) for name, scores in found["models"].items() for one in scores]
    about = (
        f"Held-out functions with a part missing; their doctests run in a sandbox. {samples} samples a case at "
        f"temperature {found['temperature']}; 95% intervals, by function. Packages: {', '.join(found['packages'])}."
    )
    notes = [found["note"]] if found.get("note") else []
    return "\n\n".join(["# Code that runs", about, *notes, table(header, rows, left=len(header))]) + "\n"


def main() -> None:
    """Install the packages, or measure models and write the report."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="*", default=["default"], help="`default`, or NAME=PATH of a model or LoRA")
    options.add_argument("--packages", type=Path, required=True)
    options.add_argument("--install", action="store_true")
    options.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="others are kept as they are")
    options.add_argument("--cases", type=int, default=200, help="of each kind, at most")
    options.add_argument("--samples", type=int, default=10)
    options.add_argument("--temperature", type=float, default=0.8)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--note", help="a sentence of the report on what was measured; the one there is kept")
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    if given.install:
        install(given.packages)
        return
    judge = Judge(given.packages)
    cases = [case for kind in KINDS for case in spread(list(find_cases(load_frozen(), judge, kind)), given.cases)]
    if not cases:
        raise InputError(f"{given.packages} has no package of the held-out sample: run with --install first")
    how = " ".join("DIR" if one == str(given.packages) else one for one in sys.argv)
    found: dict[str, Any] = {"machine": machine_facts(), "command": how}
    found |= {"samples": given.samples, "temperature": given.temperature, "seed": given.seed}
    found |= {"packages": sorted({case.test.document.package for case in cases})}
    before = json.loads(given.out.read_text()) if given.out.exists() else {"models": {}}
    found |= {"models": before["models"], "note": before.get("note", "") if given.note is None else given.note}
    for named in given.models:
        name, _, path = named.rpartition("=")
        for method, scores in measure(given, judge, cases, name or path, path):
            kept = [one for one in found["models"].get(name or path, []) if one["method"] != method]
            found["models"][name or path] = kept + [asdict(one) for one in scores]
            write_report(given.out, found, page(found))


if __name__ == "__main__":
    main()
