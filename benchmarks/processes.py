"""Two processes that use the library at once, against the same runs one after another, in mode "ar".

    python benchmarks/processes.py --threads 2 --rounds 5 --out benchmarks/results/processes

Prints tokens a second of both, and the ratio of times; at most 1.3 is wanted. With `--backend torch` PyTorch's threads
compute, which are not ours to lessen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import daguerre
from daguerre.evals.machine import machine_facts, measured_on
from daguerre.evals.results import publish
from daguerre.evals.tables import table

MOST = 1.3
"""Times as long: what is aimed at."""


def work(threads: int, tokens: int, backend: Any) -> None:
    """Generate whenever a line is read, and print how long it took."""
    model = daguerre.load(threads=threads, backend=backend)
    model.generate("def f(x):\n", max_tokens=16, mode="ar")
    print(flush=True)
    for _ in sys.stdin:
        begun, done = time.perf_counter(), 0
        while done < tokens:
            result = model.generate("def main(", 128, min_tokens=128, temperature=0.8, seed=done, mode="ar")
            done += result.usage.completion_tokens
        print(json.dumps([time.perf_counter() - begun, done]), flush=True)


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> int:
    """The tokens of a run, when it is done."""
    assert process.stdout is not None
    return int(json.loads(process.stdout.readline())[1])


def measure(processes: list[subprocess.Popen[str]], rounds: int) -> list[dict[str, float]]:
    """Tokens a second one after another and at once, and how many times as long the latter took, by round."""
    found = []
    for _ in range(rounds):
        begun, tokens = time.perf_counter(), 0
        for process in processes:
            ask(process)
            tokens += answer(process)
        apart, begun = time.perf_counter() - begun, time.perf_counter()
        for process in processes:
            ask(process)
        tokens_at_once = sum(map(answer, processes))
        at_once = time.perf_counter() - begun
        found.append({"apart": tokens / apart, "at_once": tokens_at_once / at_once, "times": at_once / apart})
        print(
            f"one after another {found[-1]['apart']:,.0f} tokens/s, at once {found[-1]['at_once']:,.0f}: "
            f"{found[-1]['times']:.2f} times as long",
            flush=True,
        )
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    header = ("round", "tokens/s, one after another", "tokens/s, at once", "times as long")
    rows = [
        [number, f"{each['apart']:,.0f}", f"{each['at_once']:,.0f}", f"{each['times']:.2f}"]
        for number, each in enumerate(report["rounds"], 1)
    ]
    return (
        f"# Two processes at once\n\n`python benchmarks/processes.py --threads {report['threads']} --backend "
        f"{report['backend']}`: the default model in mode `ar` in two processes, {report['tokens']} tokens or more "
        f"each, one after another and at once. Aimed at: at most {MOST} times as long.\n\n{table(header, rows, 0)}\n\n"
        f"Median: {report['median']:.2f} times as long.\n\n{measured_on(report['machine'])}\n"
    )


def main() -> None:
    """Start the processes, and alternate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="native")
    parser.add_argument("--out", type=Path, help="where results go, without an ending")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.threads, given.tokens, given.backend)
        return
    command = [sys.executable, __file__, "--work", *sys.argv[1:]]
    processes = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    rounds = measure(processes, given.rounds)
    for process in processes:
        process.terminate()
        process.wait()
    report = {"threads": given.threads, "tokens": given.tokens, "backend": given.backend, "rounds": rounds}
    report |= {"median": statistics.median(each["times"] for each in rounds), "machine": machine_facts()}
    publish(given.out, report, markdown(report))


if __name__ == "__main__":
    main()
