"""Record how the latencies of real servers are distributed, for the backends of the simulated agent.

    pip install 'daguerre[route,bench]'
    python benchmarks/routing_recorded.py

Each profile is `daguerre serve` in one of the default model's modes, under requests of the ten kinds of steps that come
at random (Poisson) times, at a load from light to heavy. Kept are pairs of factors: the time until the first text, and
until the end, each over what is usual for the kind of step and the number of tokens. So a backend of the simulation is
as fast as its row in `routing_world` says, and as unsteady as a real server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing_backends import Client, HttpAnswer, ServerProcess, free_port, quantiles, started
from routing_requests import STEPS, request
from routing_world import KINDS, RECORDED, Factors

WARM, PROBED = 10, 30
"""Requests before anything is measured, and those that say how many a second the server bears."""
MOST = 20
"""Sentences of a material: the servers here have a context of 1,024 tokens, and refuse what is longer."""
LEAST = 5
"""Requests of a kind, below which nothing is usual."""


@dataclass(frozen=True)
class Profile:
    """How a server is used. load: the share of its capacity that is asked for."""

    options: dict[str, Any]
    load: float


PROFILES = {
    "frontier": Profile({"mode": "ar"}, 0.5),
    "middle": Profile({"mode": "ar"}, 0.3),
    "blocks": Profile({"mode": "block", "block_size": 8}, 0.4),
    "small": Profile({"mode": "speculative"}, 0.4),
    "small-2": Profile({"mode": "speculative"}, 0.2),
}


@dataclass(frozen=True)
class Timed:
    """An answer. Times in seconds."""

    step: str
    tokens: int
    first: float
    end: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, help="of each profile")
    parser.add_argument("--out", type=Path, default=RECORDED)
    given = parser.parse_args()
    from daguerre.evals.machine import machine_facts

    found = dict[str, Factors]()
    with tempfile.TemporaryDirectory() as folder:
        for name, profile in PROFILES.items():
            found[name] = factors(record(profile, given.requests, Path(folder)))
            ends = [end for _, end in found[name]]
            marks = ", ".join(f"{one:.2f}" for one in quantiles(ends, 0.05, 0.5, 0.95, 0.99))
            print(f"{name:9} {len(ends)} answers, 5%, 50%, 95% and 99% of the factors: {marks}", flush=True)
    value = {"machine": machine_facts(), "profiles": {name: vars(one) for name, one in PROFILES.items()}}
    given.out.write_text(json.dumps(value | {"factors": found}) + "\n")


def record(profile: Profile, num: int, folder: Path) -> list[Timed]:
    """The answers to so many requests at the profile's load."""
    port = free_port()
    command = [sys.executable, "-m", "daguerre", "serve", "--port", str(port)]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    server = ServerProcess(command, port, environment, folder / "serve.out", "/ready")
    with started(server):
        return asyncio.run(_record(profile, num, port))


async def _record(profile: Profile, num: int, port: int) -> list[Timed]:
    client, draw = Client(port), random.Random(1)
    for number in range(WARM):
        await _ask(client, profile, number)
    began = time.perf_counter()
    for number in range(PROBED):
        await _ask(client, profile, number)
    rate = profile.load * PROBED / (time.perf_counter() - began)
    tasks, due = list[asyncio.Task[Timed]](), time.perf_counter()
    for number in range(num):
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(_ask(client, profile, number)))
        due += draw.expovariate(rate)
    found = await asyncio.gather(*tasks)
    client.close()
    return found


async def _ask(client: Client, profile: Profile, number: int) -> Timed:
    step = STEPS[number % len(STEPS)]
    body = request(number, step, stream=True, limit=KINDS[step].tokens, most=MOST)
    body |= {"model": "default", "daguerre": profile.options}
    began = time.perf_counter()
    answer = await client.ask(json.dumps(body).encode())
    tokens = tokens_of(answer)
    if answer.status != 200 or answer.broken or not tokens:
        raise SystemExit(f"request {number} ({step}) has no whole answer: {answer.status} {bytes(answer.body)!r:.300}")
    return Timed(step, tokens, answer.first - began, answer.end - began)


def tokens_of(answer: HttpAnswer) -> int:
    """How many tokens a stream says that it had; 0 where it does not say."""
    for line in reversed(bytes(answer.body).split(b"\n")):
        if line.startswith(b"data: {"):
            usage = json.loads(line[6:]).get("usage")
            if usage:
                return int(usage["completion_tokens"])
    return 0


def factors(found: list[Timed]) -> Factors:
    """By how much each answer was slower than is usual, for the first text and for the end."""
    out: Factors = []
    for step in STEPS:
        here = [one for one in found if one.step == step]
        if len(here) < LEAST:
            continue
        first = statistics.median(one.first for one in here)
        token = statistics.median((one.end - one.first) / one.tokens for one in here)
        usual = [first + token * one.tokens for one in here]
        out += [(round(one.first / first, 3), round(one.end / end, 3)) for one, end in zip(here, usual, strict=True)]
    return out


if __name__ == "__main__":
    main()
