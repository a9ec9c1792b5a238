"""How long a decision takes with many backends.

    pip install 'daguerre[route]'
    python benchmarks/routing_choose.py

Requests of ten kinds of steps, and backends of different price and quality in random states. Timed is `choose` alone,
which is the decision, and apart from it the reading of a request and its step type.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from pathlib import Path

from routing_backends import quantiles
from routing_requests import STEPS, request

from daguerre.evals.machine import machine_facts
from daguerre.router.choose import BackendState, choose
from daguerre.router.config import Config
from daguerre.router.requests import features_of
from daguerre.router.steps import classify

SHARES = {"p50": 0.5, "p99": 0.99, "most": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--backends", type=int, nargs="+", default=[5, 50, 200])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/routing-choose.json"))
    given = parser.parse_args()
    found = {num: measure(num, given.requests) for num in given.backends}
    print("milliseconds   backends  " + "  ".join(f"{name:>6}" for name in SHARES))
    for num, parts in found.items():
        for part, marks in parts.items():
            print(f"{part:14} {num:8}  " + "  ".join(f"{one:6.3f}" for one in marks.values()))
    value = {"machine": machine_facts(), "requests": given.requests, "milliseconds": found}
    given.out.write_text(json.dumps(value, indent=1) + "\n")


def measure(num: int, requests: int) -> dict[str, dict[str, float]]:
    """Quantiles in milliseconds, of the decision and of what comes before it."""
    draw, config = random.Random(1), configuration(num)
    before, decided = list[float](), list[float]()
    gc.collect()
    for number in range(requests):
        body = request(number, STEPS[number % len(STEPS)])
        state = {one.name: state_of(draw) for one in config.backends}
        began = time.perf_counter()
        asked = features_of("chat", body, {}, config, f"r{number}")
        features = asked.features(classify(asked.reading, body))
        begun = time.perf_counter()
        choose(features, state, config)
        ended = time.perf_counter()
        before.append(1000 * (begun - began))
        decided.append(1000 * (ended - begun))
    return {
        part: dict(zip(SHARES, quantiles(times, *SHARES.values()), strict=True))
        for part, times in (("step type", before), ("decision", decided))
    }


def configuration(num: int) -> Config:
    """So many backends, of which no two are alike."""
    draw = random.Random(2)
    backends = [
        {
            "name": f"b{number}",
            "url": f"http://127.0.0.1:{1000 + number}/v1",
            "model": "any",
            "price": {"input": draw.uniform(0.05, 3), "output": draw.uniform(0.2, 15)},
            "quality": {"default": draw.uniform(0.5, 1)},
            "latency": {"first": 100, "first_p95": 200, "token": 2, "token_p95": 4},
        }
        for number in range(num)
    ]
    steps = {step: {"quality": 0.8, "slo_ms": 2000} for step in STEPS}
    return Config.model_validate({"backends": backends, "steps": steps})


def state_of(draw: random.Random) -> BackendState:
    """A backend that is well, or not."""
    half = draw.uniform(100, 3000)
    return BackendState(
        open=draw.random() > 0.05,
        in_flight=draw.randrange(8),
        first=half / 4,
        first_p95=half / 2,
        whole=half,
        whole_p95=2 * half,
    )


if __name__ == "__main__":
    main()
