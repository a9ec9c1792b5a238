"""Gaps of a code model with fill-in-the-middle tokens: how many are right, and what finding their end costs.

    python benchmarks/gaps.py MODEL HumanEval-SingleLineInfilling.jsonl.gz --num 200
    python benchmarks/gaps.py MODEL HumanEval-MultiLineInfilling.jsonl.gz --num 200 --lines 2:6

The tasks are those of OpenAI's human-eval-infilling (MIT), drawn by a seed; those without a text after the gap are left
out. Each gap is written twice, in turns: once as long as the model goes on, and once to where the text after it fits.
Nothing is said of its length. The oracle keeps as many lines of the first as the original has. With --peer the first
is written by llama.cpp, from the same prompt (tests/real/files.py brings its packages). Written code runs in
the sandbox (Linux). Processor time, one thread; set OMP_NUM_THREADS=1. A report is written after each task, and goes
on where it was.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.progress import track

from daguerre.evals.machine import machine_facts
from daguerre.model import Model, load
from daguerre.train.reinforce.sandbox import Sandbox

HOWS = ("fit", "model")
PEER = "llama.cpp"
ROOT = Path(__file__).resolve().parent.parent
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


def fill(model: Model, task: dict[str, Any], max_tokens: int, hows: tuple[str, ...]) -> dict[str, Any]:
    """The fills of a task."""
    out: dict[str, Any] = {"id": task["task_id"], "lines": num_lines(task)}
    for how in hows:
        began = time.process_time()
        result = model.infill(task["prompt"], task["suffix"], max_tokens, fill_end=how)
        took, usage = time.process_time() - began, result.usage
        facts = {"tokens": usage.completion_tokens, "forwards": usage.forwards, "finish": result.finish_reason}
        out[how] = {"text": result.text, "seconds": took, **facts}
        out["prompt"] = result.trace.canvas.tokens[: usage.prompt_tokens].tolist()
    return out


def fill_by_peer(model: str, packages: Path, prompts: list[list[int]], max_tokens: int) -> list[dict[str, Any]]:
    """The same gaps by llama.cpp: greedy, one thread."""
    asked = {"model": model, "packages": str(packages), "texts": [], "prompts": prompts, "num": max_tokens}
    script = ROOT / "tests" / "real" / "llama.mjs"
    done = subprocess.run(["node", script], input=json.dumps(asked), capture_output=True, text=True, check=True)
    return [
        {"text": one["text"], "seconds": one["seconds"], "tokens": len(one["tokens"]), "ended": one["ended"]}
        for one in json.loads(done.stdout)["written"]
    ]


def judge(task: dict[str, Any], row: dict[str, Any], sandbox: Sandbox) -> dict[str, bool]:
    """Which texts pass the tests of their function."""
    oracle = "".join(row[PEER if PEER in row else "model"]["text"].splitlines(keepends=True)[: row["lines"]])
    texts = {**{how: row[how]["text"] for how in (*HOWS, PEER) if how in row}, "oracle": oracle}
    out = dict[str, bool]()
    for name, text in texts.items():
        code = f"{task['prompt']}{text}{task['suffix']}\n{task['test']}\ncheck({task['entry_point']})\n"
        out[name] = sandbox.reward([sys.executable, "-I", "-S", "-c", PROGRAM], "", code) == 1
    return out


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares that pass, and times."""
    num = max(1, len(rows))
    hows = ("fit", PEER) if rows and PEER in rows[0] else HOWS
    seconds = {how: sum(row[how]["seconds"] for row in rows) / num for how in hows}
    ended = [row for row in rows if PEER in hows and row[PEER]["ended"]]
    return {
        "tasks": len(rows),
        **{f"passes_{name}": sum(row["passes"][name] for row in rows) / num for name in (*hows, "oracle")},
        **{f"seconds_{how}": seconds[how] for how in hows},
        **{f"tokens_{how}": sum(row[how]["tokens"] for row in rows) / num for how in hows},
        "time_ratio": seconds["fit"] / max(seconds[hows[1]], 1e-9),
        **({"ended_by_peer": len(ended), "of_them_not_by_us": sum(_goes_on(row) for row in ended)} if ended else {}),
    }


def _goes_on(row: dict[str, Any]) -> bool:
    return bool(row["fit"]["finish"] == "length")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, a folder, or a name on a hub")
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--lines", default="1:1", help="the fewest and the most lines of a gap")
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--quantize", choices=("int8", "approximate_int4"))
    parser.add_argument("--peer", type=Path, help="the folder of npm's packages in which node-llama-cpp is")
    parser.add_argument("--out", type=Path, help="JSON; benchmarks/results/gaps-MODEL-LINES.json")
    given = parser.parse_args()
    low, high = map(int, given.lines.split(":"))
    out = given.out or ROOT / "benchmarks" / "results" / f"gaps-{Path(given.model).stem}-{low}-{high}.json"
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    done, model, sandbox = {row["id"] for row in rows}, None, Sandbox(seconds=10, megabytes=1024)
    for number, task in enumerate(track(read_tasks(given.tasks, (low, high), given.num, given.seed))):
        if task["task_id"] in done:
            continue
        model = model or load(given.model, threads=1, quantize=given.quantize)
        hows = HOWS[: 1 if given.peer else 2]
        row = fill(model, task, given.max_tokens, hows[:: 1 if number % 2 else -1])
        prompt = row.pop("prompt")
        if given.peer:
            (row[PEER],) = fill_by_peer(given.model, given.peer, [prompt], given.max_tokens)
        rows.append({**row, "passes": judge(task, row, sandbox)})
        facts = {"model": Path(given.model).name, "quantize": given.quantize, "lines": given.lines, "seed": given.seed}
        out.write_text(json.dumps({**facts, "machine": machine_facts(), **report(rows), "rows": rows}, indent=1) + "\n")
    sys.stdout.write(json.dumps(report(rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
