"""Two processes that use the library at once, against the same runs one after another, in mode "ar".

    python benchmarks/processes.py --threads 2 --rounds 5

Prints tokens a second of both, and the ratio of times; at most 1.3 is wanted. With `--backend torch` PyTorch's threads
compute.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import daguerre


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


def main() -> None:
    """Start the processes, and alternate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="native")
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
    ratios = []
    for _ in range(given.rounds):
        begun, tokens = time.perf_counter(), 0
        for process in processes:
            ask(process)
            tokens += answer(process)
        apart, begun = time.perf_counter() - begun, time.perf_counter()
        for process in processes:
            ask(process)
        tokens_at_once = sum(map(answer, processes))
        at_once = time.perf_counter() - begun
        ratios.append(at_once / apart)
        print(
            f"one after another {tokens / apart:,.0f} tokens/s, at once {tokens_at_once / at_once:,.0f}: "
            f"{ratios[-1]:.2f} times as long",
            flush=True,
        )
    print(f"median {statistics.median(ratios):.2f}")
    for process in processes:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
