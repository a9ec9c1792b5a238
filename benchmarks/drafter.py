"""A model that drafts for a larger one: programs of HumanEval, beside mode "ar", and llama-server with both files.

    python benchmarks/drafter.py MODEL.gguf DRAFTER.gguf HumanEval-SingleLineInfilling.jsonl.gz --llama-server PATH \\
        --out drafter

Each program is written greedily by all sides in turn, on one thread, up to the end of the function; times are processor
time for a token. Mode "speculative" chooses between drafts of the second model and those looked up in the text, as it
does by default; llama-server has `-md` and its other defaults. A run goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from rich.progress import track
from risky import ENDS, programs

import daguerre
from daguerre.evals.bench.llama_cpp import ServerEngine
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish, read_lines, write_lines
from daguerre.evals.tables import table

AR, SECOND, THEIRS = "ar", "speculative", "llama-server"
MOST, CONTEXT = 200, 2048
Row = dict[str, Any]
Side = Callable[[str], Row]


def ours(model: daguerre.Model, mode: str) -> Side:
    """What writes in a mode."""

    def write(prompt: str) -> Row:
        began = time.process_time()
        result = model.generate(prompt, MOST, mode=mode, temperature=0.0, stop=ENDS)
        usage = result.usage
        seconds = time.process_time() - began
        return {"text": result.text, "tokens": usage.completion_tokens, "seconds": seconds, "forwards": usage.forwards}

    return write


def theirs(engine: ServerEngine) -> Side:
    """What asks llama-server."""

    def write(prompt: str) -> Row:
        asked = {"prompt": prompt, "n_predict": MOST, "temperature": 0, "stop": ENDS, "cache_prompt": False}
        began = engine.clock()
        said = httpx2.post(f"{engine.url}/completion", json=asked, timeout=600).json()
        return {"text": said["content"], "tokens": said["tokens_predicted"], "seconds": engine.clock() - began}

    return write


def summary(rows: list[Row], sides: list[str]) -> Row:
    """Of each side seconds for a token, the median of programs; and the median ratio to `ar` and to llama-server."""
    out: Row = {"programs": len(rows), "same": sum(row[AR]["text"] == row[SECOND]["text"] for row in rows)}
    for name in sides:
        each = [row[name]["seconds"] / max(1, row[name]["tokens"]) for row in rows]
        out[name] = {"seconds": statistics.median(each), "tokens": sum(row[name]["tokens"] for row in rows)}
        for other in (AR, THEIRS):
            if other in sides and name == SECOND:
                beside = [row[other]["seconds"] / max(1, row[other]["tokens"]) for row in rows]
                out[name][f"times {other}"] = statistics.median(b / a for a, b in zip(each, beside, strict=True))
    out[SECOND]["tokens a forward"] = out[SECOND]["tokens"] / sum(row[SECOND]["forwards"] for row in rows)
    return out


def page(values: Row) -> str:
    """The summary as a page."""
    cells = [
        [name, f"{1000 * values[name]['seconds']:.1f}", values[name]["tokens"]]
        for name in (AR, SECOND, THEIRS)
        if name in values
    ]
    second, facts = values[SECOND], values["facts"]
    ratios = ", ".join(f"{value:.2f} {name}" for name, value in second.items() if name.startswith("times"))
    return (
        f"# {values['drafter']} drafts for {values['model']}\n\n"
        f"{table(['', 'milliseconds a token, median', 'tokens'], cells)}\n\n"
        f"Mode `speculative` is {ratios} as fast (medians over {values['programs']} programs of HumanEval), with "
        f"{second['tokens a forward']:.2f} tokens a forward of the larger model; {values['same']} texts are those of "
        f"`ar`.\n\n{facts['processor']}, instruction set {facts['instruction_set']}, one thread, daguerre "
        f"{facts['daguerre']}\n"
    )


def main() -> None:
    """Write, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("humaneval", type=Path)
    parser.add_argument("--llama-server")
    parser.add_argument("--num", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True, help="the report; its texts are kept beside it")
    given = parser.parse_args()
    model = daguerre.load(given.model, drafts=str(given.drafter))
    sides = {AR: ours(model, AR), SECOND: ours(model, SECOND)}
    engine = None
    if given.llama_server:
        engine = ServerEngine(given.llama_server, 1, ["-md", str(given.drafter), "-td", "1", "-ngld", "0"])
        engine.load(given.model, 1, CONTEXT)
        sides[THEIRS] = theirs(engine)
    kept = given.out.with_suffix(".jsonl")
    rows = read_lines(kept)
    chosen = programs(given.humaneval)[: given.num]
    try:
        for number, problem in enumerate(track(chosen, "programs", disable=not sys.stderr.isatty())):
            if problem["task_id"] in {row["task"] for row in rows}:
                continue
            names = list(sides)[number % len(sides) :] + list(sides)[: number % len(sides)]
            rows.append({"task": problem["task_id"], **{name: sides[name](problem["prompt"]) for name in names}})
            write_lines(kept, rows)
    finally:
        if engine is not None:
            engine.close()
    values = {"model": given.model.name, "drafter": given.drafter.name, "facts": machine_facts(),
              **summary(rows, list(sides))}  # fmt: skip
    publish(given.out, values, page(values))


if __name__ == "__main__":
    main()
