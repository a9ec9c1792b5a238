"""Gaps of a code model with fill-in-the-middle tokens: how many are right, and what finding their end costs.

    python benchmarks/gaps.py MODEL HumanEval-SingleLineInfilling.jsonl.gz --num 200
    python benchmarks/gaps.py MODEL HumanEval-MultiLineInfilling.jsonl.gz --num 200 --lines 2:6

The tasks are those of OpenAI's human-eval-infilling (MIT), drawn by a seed; those without a text after the gap are left
out. Each gap is written twice, in turns: once as long as the model goes on, and once to where the text after it fits.
Nothing is said of its length. The oracle keeps as many lines of the first as the original has. Written code runs in the
sandbox (Linux). Processor time, one thread; set OMP_NUM_THREADS=1. A report is written after each task, and goes on
where it was.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from rich.progress import track

from daguerre.evals.machine import machine_facts
from daguerre.model import Model, load
from daguerre.train.reinforce.sandbox import Sandbox

HOWS = ("fit", "model")
RESULTS = Path(__file__).resolve().parent / "results"
PROGRAM = """
import json, sys
asked = json.load(sys.stdin)
exec(compile(asked["answer"], "answer", "exec"), {"__name__": "answer"})
print(1)
"""
"""Prints 1 if nothing raises; what the answer prints comes before it."""


def read_tasks(path: Path, lines: tuple[int, int], num: int, seed: int) -> list[dict[str, Any]]:
    """`num` tasks whose gaps have so many lines."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        tasks = [json.loads(line) for line in file]
    kept = [one for one in tasks if one["suffix"].strip() and lines[0] <= num_lines(one) <= lines[1]]
    return random.Random(seed).sample(kept, min(num, len(kept)))


def num_lines(task: dict[str, Any]) -> int:
    """The lines of the original."""
    return len(task["canonical_solution"].rstrip("\n").split("\n"))


def fill(model: Model, task: dict[str, Any], max_tokens: int, turn: int) -> dict[str, Any]:
    """Both fills of a task."""
    out: dict[str, Any] = {"id": task["task_id"], "lines": num_lines(task)}
    for how in HOWS[:: 1 if turn % 2 else -1]:
        began = time.process_time()
        result = model.infill(task["prompt"], task["suffix"], max_tokens, fill_end=how)
        took, usage = time.process_time() - began, result.usage
        facts = {"tokens": usage.completion_tokens, "forwards": usage.forwards, "finish": result.finish_reason}
        out[how] = {"text": result.text, "seconds": took, **facts}
    return out


def judge(task: dict[str, Any], row: dict[str, Any], sandbox: Sandbox) -> dict[str, bool]:
    """Which texts pass the tests of their function."""
    oracle = "".join(row["model"]["text"].splitlines(keepends=True)[: row["lines"]])
    texts = {**{how: row[how]["text"] for how in HOWS}, "oracle": oracle}
    out = dict[str, bool]()
    for name, text in texts.items():
        code = f"{task['prompt']}{text}{task['suffix']}\n{task['test']}\ncheck({task['entry_point']})\n"
        out[name] = sandbox.reward([sys.executable, "-I", "-S", "-c", PROGRAM], "", code) == 1
    return out


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares that pass, and times."""
    num = max(1, len(rows))
    seconds = {how: sum(row[how]["seconds"] for row in rows) / num for how in HOWS}
    return {
        "tasks": len(rows),
        **{f"passes_{name}": sum(row["passes"][name] for row in rows) / num for name in (*HOWS, "oracle")},
        **{f"seconds_{how}": seconds[how] for how in HOWS},
        **{f"tokens_{how}": sum(row[how]["tokens"] for row in rows) / num for how in HOWS},
        "time_ratio": seconds["fit"] / max(seconds["model"], 1e-9),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, a folder, or a name on a hub")
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--lines", default="1:1", help="the fewest and the most lines of a gap")
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--quantize", choices=("int8", "approximate_int4"))
    parser.add_argument("--out", type=Path, help="JSON; benchmarks/results/gaps-MODEL-LINES.json")
    given = parser.parse_args()
    low, high = map(int, given.lines.split(":"))
    out = given.out or RESULTS / f"gaps-{Path(given.model).stem}-{low}-{high}.json"
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    done, model, sandbox = {row["id"] for row in rows}, None, Sandbox(seconds=10, megabytes=1024)
    for number, task in enumerate(track(read_tasks(given.tasks, (low, high), given.num, given.seed))):
        if task["task_id"] in done:
            continue
        model = model or load(given.model, threads=1, quantize=given.quantize)
        row = fill(model, task, given.max_tokens, number)
        rows.append({**row, "passes": judge(task, row, sandbox)})
        facts = {"model": Path(given.model).name, "quantize": given.quantize, "lines": given.lines, "seed": given.seed}
        out.write_text(json.dumps({**facts, "machine": machine_facts(), **report(rows), "rows": rows}, indent=1) + "\n")
    sys.stdout.write(json.dumps(report(rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
