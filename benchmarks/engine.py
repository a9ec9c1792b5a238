"""What the engine and the server cost and gain, beside the library: one process, one machine, medians over rounds.

    OMP_NUM_THREADS=1 python benchmarks/engine.py

Random weights of the 34M shape. "16 against 1" is the ratio of tokens a second; the others are ratios of the time of
one request. Blocks of 8 commit 4 tokens a forward by force.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import httpx2
import torch
from servers import serving

from daguerre.engine.engine import Engine
from daguerre.evals.bench.job import YARDSTICK, random_model
from daguerre.model import Model
from daguerre.models.denoiser import auto_numbers
from daguerre.models.own_layout import save_model

MODES: dict[str, dict[str, Any]] = {
    "ar": {"mode": "ar"},
    "block of 8": {"mode": "block", "block_size": 8, "policy": "confidence", "steps": 2},
}
NEW = 128
PROMPTS = [[16 + (number * 37 + place * 11) % 8000 for place in range(127)] for number in range(16)]


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def engine_time(model: Model, num: int, options: dict[str, Any]) -> float:
    """Seconds in which an engine answers so many requests."""
    engine = Engine(model, store_prefixes=False)
    jobs = [engine.generate(prompt, NEW, min_tokens=NEW, heal=False, **options) for prompt in PROMPTS[:num]]

    def run() -> None:
        while engine.step():
            pass

    seconds = timed(run)
    assert all(len(job.result().tokens) == NEW for job in jobs)
    return seconds


def library_time(model: Model, options: dict[str, Any]) -> float:
    """Seconds in which the library answers one request."""
    return timed(lambda: model.generate(PROMPTS[0], NEW, min_tokens=NEW, heal=False, **options))


def compare_engine(model: Model, rounds: int) -> None:
    """Print the engine's ratios."""
    for name, options in MODES.items():
        gains, costs = [], []
        for number in range(rounds + 1):
            one, many = engine_time(model, 1, options), engine_time(model, 16, options)
            alone = library_time(model, options)
            if number:  # the first is a warm-up
                gains.append(16 * one / many)
                costs.append(one / alone)
        gain, cost = statistics.median(gains), statistics.median(costs)
        say(f"{name}: 16 against 1 {gain:.2f}, engine against library {cost:.2f}")


def compare_http(model: Model, rounds: int) -> None:
    """Print the server's ratios, with one request at a time whose prompt is stored."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, model.backbone, model.tokenizer, torch.bfloat16)
        with serving("--model", f"model={folder}") as (url, _), httpx2.Client(base_url=url, timeout=60) as client:
            own = {"mode": "ar", "min_tokens": NEW, "heal": False}
            body = {"prompt": PROMPTS[0], "max_tokens": NEW, "temperature": 0, "daguerre": own}
            whole, streamed = [], []
            for number in range(rounds + 1):
                seconds = [http_time(client, body | more) for more in ({}, {"stream": True})]
                alone = library_time(model, {"mode": "ar"})
                if number:
                    whole.append(seconds[0] / alone)
                    streamed.append(seconds[1] / alone)
    say(f"ar: HTTP against library {statistics.median(whole):.2f}, as a stream {statistics.median(streamed):.2f}")


def http_time(client: httpx2.Client, body: dict[str, Any]) -> float:
    """Seconds in which the server answers a request."""
    return timed(lambda: client.post("/v1/completions", json=body).raise_for_status())


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default=auto_numbers())
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    model = random_model(YARDSTICK, given.dtype, 1024)
    compare_engine(model, given.rounds)
    compare_http(model, given.rounds)


if __name__ == "__main__":
    main()
