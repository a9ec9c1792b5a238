"""Single lines of HumanEval, filled by `daguerre serve` and by llama-server with the same file, asked alike.

    python benchmarks/fills.py FILE.gguf HumanEval-SingleLineInfilling.jsonl.gz --llama-server PATH --out fills.json

The problems are those of openai/human-eval-infilling; a fill passes if the program with it passes their tests, in a
sandbox (Linux). Both servers are asked by `/infill`, greedy, at most 48 tokens, in turns, and keep of earlier prompts
what they keep. In one run the fill ends with its line ("line": `stop`), in the other nothing is said of lines ("open").
With --inside the cursor is in the line, behind a character of it that the seed draws, and not before it.
Times are those of the process on one thread, of the wall on more. A run goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from rich.progress import track
from servers import serving

from daguerre.evals.bench.llama_cpp import ServerEngine, processor_time
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish, read_lines, write_lines
from daguerre.evals.statistics import wilson
from daguerre.evals.tables import between, table
from daguerre.train.reinforce.sandbox import Sandbox

OURS, THEIRS = "daguerre", "llama-server"
WAYS = {"line": {"stop": ["\n"]}, "open": dict[str, Any]()}
MOST = 48
"""Tokens of a fill."""
SHORTEST = 8
"""Characters of a line that the cursor is in, without its indentation."""
CONTEXT = 4096
RUN = """
import json, os, sys
program = json.load(sys.stdin)["answer"]
sys.stdout = open(os.devnull, "w")
exec(program, {})
"""
Row = dict[str, Any]


@dataclass(frozen=True)
class Filler:
    """A server that fills: its address, and the clock of its time."""

    url: str
    clock: Callable[[], float]

    def fill(self, problem: Row, options: Row) -> Row:
        """The text of a fill, its tokens, and what it took."""
        asked = {"input_prefix": problem["prompt"], "input_suffix": problem["suffix"], "prompt": problem["typed"],
                 "n_predict": MOST, "temperature": 0, **options}  # fmt: skip
        began = self.clock()
        answer = httpx2.post(f"{self.url}/infill", json=asked, timeout=600)
        seconds = self.clock() - began
        answer.raise_for_status()
        said = answer.json()
        return {"text": said["content"], "tokens": said["tokens_predicted"], "seconds": seconds}


def problems(path: Path, num: int, seed: int, inside: bool = False) -> list[Row]:
    """`num` problems, drawn by a seed. typed: the line up to the cursor, of those that are long enough if `inside`."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [json.loads(line) | {"typed": ""} for line in file]
    rng = random.Random(seed)
    if not inside:
        return rng.sample(found, num)
    lines = [one["canonical_solution"].rstrip("\n") for one in found]
    begins = [len(line) - len(line.lstrip()) for line in lines]
    long = [at for at, line in enumerate(lines) if len(line) - begins[at] >= SHORTEST]
    out = list[Row]()
    for at in rng.sample(long, num):
        cursor = rng.randrange(begins[at], len(lines[at]) - 1)
        out.append(found[at] | {"typed": lines[at][:cursor], "canonical_solution": lines[at][cursor:],
                                "suffix": "\n" + found[at]["suffix"]})  # fmt: skip
    return out


def passes(sandbox: Sandbox, problem: Row, fill: str) -> bool:
    """Whether the program with this fill passes its tests."""
    program = problem["prompt"] + problem["typed"] + fill + problem["suffix"] + problem["test"]
    program += f"\ncheck({problem['entry_point']})\n"
    return sandbox.reward([sys.executable, "-I", "-c", RUN], "", program) > 0


def rows(fillers: dict[str, Filler], chosen: list[Row], way: str) -> Iterator[Row]:
    """A row for each problem."""
    sandbox = Sandbox()
    for number, problem in enumerate(track(chosen, way, disable=not sys.stderr.isatty())):
        row: Row = {"task": problem["task_id"], "way": way}
        for name in list(fillers)[:: 1 if number % 2 else -1]:
            row[name] = fillers[name].fill(problem, WAYS[way])
            text = row[name]["text"] + ("\n" if way == "line" and not problem["typed"] else "")
            row[name] |= {
                "passes": passes(sandbox, problem, text),
                "exact": text.strip() == problem["canonical_solution"].strip(),
            }
        yield row


@contextmanager
def servers(model: Path, llama: Path | None, threads: int) -> Iterator[dict[str, Filler]]:
    """The servers by name, fresh."""
    with ExitStack() as opened:
        url, process = opened.enter_context(serving("--model", str(model), threads=threads))
        clock = time.perf_counter if threads > 1 else partial(processor_time, process.pid)
        found = {OURS: Filler(url, clock)}
        if llama is not None:
            engine = ServerEngine(str(llama), threads)
            opened.callback(engine.close)
            engine.load(model, threads, CONTEXT)
            found[THEIRS] = Filler(engine.url, engine.clock)
        yield found


def summary(found: list[Row]) -> dict[str, Any]:
    """What came of each way: shares with 95% intervals, medians of seconds, and the median of their ratios."""
    out = dict[str, Any]()
    for way in WAYS:
        some = [row for row in found if row["way"] == way]
        if not some:
            continue
        sides = [name for name in (OURS, THEIRS) if name in some[0]]
        out[way] = {"num": len(some)}
        for name in sides:
            passed = sum(row[name]["passes"] for row in some)
            out[way][name] = {
                "pass": passed / len(some),
                "interval": wilson(passed, len(some)),
                "exact": statistics.fmean(row[name]["exact"] for row in some),
                "seconds": statistics.median(row[name]["seconds"] for row in some),
                "tokens": statistics.fmean(row[name]["tokens"] for row in some),
            }
        if len(sides) == 2:
            out[way]["times"] = statistics.median(row[OURS]["seconds"] / row[THEIRS]["seconds"] for row in some)
    return out


def page(values: dict[str, Any]) -> str:
    """The summary as a page."""
    cells = []
    for way, side in values["ways"].items():
        for name in (name for name in (OURS, THEIRS) if name in side):
            one, times = side[name], side.get("times") if name == OURS else None
            cells.append(
                [way, name, side["num"], between(one["pass"], *one["interval"]), f"{100 * one['exact']:.1f}%",
                 f"{one['tokens']:.1f}", f"{one['seconds']:.2f}", "" if times is None else f"{times:.2f}"]
            )  # fmt: skip
    head = ["", "server", "lines", "pass", "exact", "tokens", "seconds, median", "times llama-server's"]
    facts = values["facts"]
    about = (
        f"{values['model']}, the cursor {'inside' if values['inside'] else 'before'} the line, seed {values['seed']}, "
        f"{values['threads']} threads; {facts['processor']}, instruction set {facts['instruction_set']}, daguerre "
        f"{facts['daguerre']}"
    )
    return f"# Lines of HumanEval, filled\n\n{table(head, cells)}\n\n{about}\n"


def main() -> None:
    """Fill, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--num", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help="the cursor is in the line, not before it")
    parser.add_argument("--way", action="append", choices=list(WAYS), help="one of both; the two by default")
    parser.add_argument("--out", type=Path, required=True, help="the report; its lines are kept beside it")
    given = parser.parse_args()
    kept = given.out.with_suffix(".jsonl")
    found = read_lines(kept)
    for way in given.way or WAYS:
        done = {row["task"] for row in found if row["way"] == way}
        chosen = [
            one for one in problems(given.data, given.num, given.seed, given.inside) if one["task_id"] not in done
        ]
        with servers(given.model, given.llama_server, given.threads) as fillers:
            for row in rows(fillers, chosen, way):
                found.append(row)
                write_lines(kept, found)
    values = {"model": given.model.name, "threads": given.threads, "seed": given.seed, "inside": given.inside,
              "facts": machine_facts(), "ways": summary(found)}  # fmt: skip
    publish(given.out, values, page(values))


if __name__ == "__main__":
    main()
