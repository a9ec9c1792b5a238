"""What the router adds to a request's time, beside LiteLLM's proxy and no proxy at all.

    pip install 'daguerre[route,bench]'; pip install 'litellm[proxy]' in an environment of its own
    python benchmarks/routing_overhead.py --litellm ENVIRONMENT/bin/litellm

A backend with a constant latency, a proxy and the load are processes of their own on one machine. Requests of ten kinds
of steps come at random (Poisson) times that do not wait for answers, and a latency counts from the time at which its
request was due, so a proxy that falls behind is seen to. The sides take turns, `--rounds` times; the overhead at a
quantile is a side's quantile less that of the direct way in the same round, and the table has medians over rounds. The
router writes its log of decisions, and nothing is measured while another side is still busy. The highest rate is the
last of `RATES` whose p99 overhead is below `MOST_MS`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from routing_backends import (
    Asked,
    BackendPlan,
    ServerProcess,
    answer,
    backend,
    events,
    free_port,
    litellm,
    litellm_model,
    open_load,
    quantiles,
    router,
    serve,
    started,
)
from routing_requests import STEPS, request

from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.view.charts import BLUE, GRAY, ORANGE, legend_of_figure, new_figure, titled

FIRST, GAP, WORDS = 0.02, 0.002, 16
"""Seconds until the backend's first byte and between events of a stream, and how many words it sends."""
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SIDES = ("direct", "daguerre", "litellm")
RATES = (25, 50, 100, 200, 300, 400, 500, 600, 800, 1000, 1200, 1500)
MOST_MS = 50.0
NUM_BODIES = 400
IDLE, MOST_REST = 0.03, 60
"""Of `rest`: seconds of a core within one second that are none, and the most seconds."""
CONFIG = """
[server]
port = {port}
log = "{folder}/decisions.jsonl"
most_body = 1000000
"""
BACKEND = """
[[backends]]
name = "{name}"
url = "http://127.0.0.1:{port}/v1"
model = "simulated"
price = {{ input = 1.0, output = {price} }}
quality = {{ default = 0.8 }}
latency = {{ first = 20, first_p95 = 40, token = 0.1, token_p95 = 0.2 }}
most_in_flight = 4096
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", help="LiteLLM's program; without it, the other sides alone")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each side in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-highest", action="store_true", help="do not look for the highest rate")
    parser.add_argument("--short", action="store_true", help="one round of 4 seconds, and no highest rate")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/routing-overhead"))
    parser.add_argument("--backend", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.backend is not None:
        serve(steady, given.backend["port"])
        return
    if given.short:
        given.rounds, given.seconds, given.no_highest = 1, 4.0, True
    with tempfile.TemporaryDirectory() as folder:
        found, highest = measure(given, Path(folder))
    about = {"machine": machine_facts(), "rate": given.rate, "seconds": given.seconds, "rounds": given.rounds}
    publish(given.out, {**about, "highest": highest, "runs": found}, page(given, found, highest), draw(found))


def steady(body: dict[str, Any]) -> BackendPlan:
    """What the backend does: the same for every request."""
    words = [f"word{number} " for number in range(WORDS)]
    if body.get("stream"):
        return BackendPlan(delay=FIRST, pieces=events(words, 200, WORDS), gap=GAP, stream=True)
    return BackendPlan(delay=FIRST, pieces=[answer("".join(words), 200, WORDS)])


def measure(given: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    """A record of each side, kind and round; and by kind and side the highest rate."""
    behind = backend(__file__, "simulated", folder)
    port = free_port()
    backends = "".join(BACKEND.format(name=f"b{place}", port=behind.port, price=1 + place) for place in range(3))
    config = folder / "route.toml"
    config.write_text(CONFIG.format(port=port, folder=folder) + backends)
    sides: dict[str, ServerProcess] = {"direct": behind, "daguerre": router(config, port, folder)}
    if given.litellm:
        sides["litellm"] = litellm(given.litellm, litellm_config(behind.port), folder)
    bodies = {
        kind: [json.dumps(request(n, STEPS[n % len(STEPS)], stream)).encode() for n in range(NUM_BODIES)]
        for kind, stream in (("whole", False), ("stream", True))
    }
    found = list[dict[str, Any]]()
    with started(*sides.values()):
        for kind in bodies:
            for side in sides.values():
                load(side, bodies[kind], 50.0, 2.0, 0)
        for number in range(given.rounds):
            for kind, some in bodies.items():
                for name, side in sides.items():
                    one = load(side, some, given.rate, given.seconds, number)
                    rest(side)
                    found.append({"side": name, "kind": kind, "round": number, **one})
                    say(found[-1])
        highest = {} if given.no_highest else {kind: dict(most(sides, some)) for kind, some in bodies.items()}
    return found, highest


def litellm_config(port: int) -> dict[str, Any]:
    """The same three backends for LiteLLM's proxy."""
    models = [litellm_model("auto", "simulated", port, (1, 1 + place)) for place in range(3)]
    return {"model_list": models, "litellm_settings": {"num_retries": 0, "telemetry": False}}


def load(side: ServerProcess, bodies: list[bytes], rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """What a load on a side finds: latencies in milliseconds from when each request was due, errors, and the share of a
    core that the side used.
    """
    draw, asked, due = random.Random(seed), list[Asked](), 0.0
    while due < seconds:
        asked.append((due, bodies[len(asked) % len(bodies)], {}))
        due += draw.expovariate(rate)
    before, began = side.seconds(), time.perf_counter()
    gc.collect()
    gc.disable()
    answers = asyncio.run(open_load(side.port, asked, time.perf_counter() + 0.05, seconds + 10))
    gc.enable()
    spent = time.perf_counter() - began
    good = [(due, one) for due, one in answers if one.status == 200 and not one.broken]
    times = {
        "first": [1000 * (one.first - due) for due, one in good],
        "end": [1000 * (one.end - due) for due, one in good],
    }
    marks = {what: dict(zip(SHARES, quantiles(some, *SHARES.values()), strict=True)) for what, some in times.items()}
    return {
        **marks,
        "requests": len(answers),
        "errors": len(answers) - len(good),
        "rate": len(good) / spent,
        "late_p99": quantiles([1000 * (one.sent - due) for due, one in answers if one.sent], 0.99)[0],
        "core": (side.seconds() - before) / spent,
        "cpu_ms": 1000 * (side.seconds() - before) / len(answers),
        "load": os.getloadavg()[0],
    }


def rest(side: ServerProcess) -> None:
    """Wait until a side is idle: a proxy that fell behind goes on with requests whose clients have left."""
    for _ in range(MOST_REST):
        before = side.seconds()
        time.sleep(1.0)
        if side.seconds() - before < IDLE:
            return


def most(sides: dict[str, ServerProcess], bodies: list[bytes]) -> Iterator[tuple[str, float]]:
    """By side, the highest rate that it bears."""
    for name, side in sides.items():
        best = 0.0
        for rate in RATES:
            direct = load(sides["direct"], bodies, rate, 4.0, rate)
            one = direct if name == "direct" else load(side, bodies, rate, 4.0, rate)
            added = one["end"]["p99"] - direct["end"]["p99"]
            if one["errors"] or (added if name != "direct" else one["end"]["p99"] - base()) > MOST_MS:
                break
            best = rate
        yield name, best


def base() -> float:
    """Milliseconds that the backend itself takes for a stream."""
    return 1000 * (FIRST + GAP * (WORDS + 2))


def overhead(found: list[dict[str, Any]], side: str, kind: str, what: str, mark: str) -> list[float]:
    """In each round, a side's quantile less that of the direct way."""
    at = {(one["side"], one["round"]): one[what][mark] for one in found if one["kind"] == kind}
    return [value - at["direct", number] for (name, number), value in at.items() if name == side]


def say(one: dict[str, Any]) -> None:
    numbers = " ".join(f"{what} {one[what]['p50']:.1f}/{one[what]['p99']:.1f}" for what in ("first", "end"))
    print(
        f"{one['side']:9} {one['kind']:6} {numbers} ms, {one['errors']} errors, {one['cpu_ms']:.1f} ms of CPU",
        flush=True,
    )


def page(given: argparse.Namespace, found: list[dict[str, Any]], highest: dict[str, dict[str, float]]) -> str:
    """Medians over rounds, as Markdown."""
    header = ["answers", "side", "added ms until", *SHARES, "worst p99", "errors", "CPU ms each", "highest rate"]
    rows = []
    for kind in ("whole", "stream"):
        for side in SIDES:
            here = [one for one in found if one["side"] == side and one["kind"] == kind]
            for what in () if not here else ("end",) if kind == "whole" else ("first", "end"):
                errors = sum(one["errors"] for one in here) / sum(one["requests"] for one in here)
                cpu = statistics.median(one["cpu_ms"] for one in here)
                rate = f"{highest[kind][side]:.0f}" if highest else ""
                marks = marks_of(found, here, side, kind, what)
                rows.append([kind, side, what, *marks, f"{errors:.1%}", f"{cpu:.1f}", rate])
    busy = statistics.median(one["load"] for one in found)
    return (
        f"{given.rate:g} requests a second, {given.rounds} rounds of {given.seconds:g} s; load of the "
        f"machine {busy:.1f} on {os.cpu_count()} cores. In parentheses: the whole time of the direct way, not what is "
        f"added.\n\n{table(header, rows, left=3)}\n"
    )


def marks_of(found: list[dict[str, Any]], here: list[dict[str, Any]], side: str, kind: str, what: str) -> Iterator[str]:
    """What a side adds at each quantile, and its worst p99; of the direct way the whole, in parentheses."""
    for mark in SHARES:
        if side == "direct":
            yield f"({statistics.median(one[what][mark] for one in here):.1f})"
        else:
            yield f"{statistics.median(overhead(found, side, kind, what, mark)):.1f}"
    if side == "direct":
        yield f"({max(one[what]['p99'] for one in here):.1f})"
    else:
        yield f"{max(overhead(found, side, kind, what, 'p99')):.1f}"


def draw(found: list[dict[str, Any]]) -> Any:
    """What is added at each quantile, a point for each round."""
    figure = new_figure(10, 3.4)
    panels = {"whole answers": ("whole", "end"), "streams, first text": ("stream", "first")}
    panels |= {"streams, end": ("stream", "end")}
    for panel, (title, (kind, what)) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        titled(panel, title, size=11)
        for side, color, shift in (("daguerre", BLUE, -0.08), ("litellm", ORANGE, 0.08)):
            for place, mark in enumerate(SHARES):
                ys = [max(one, 0.1) for one in overhead(found, side, kind, what, mark)]
                panel.plot([place + shift] * len(ys), ys, "o", color=color, label=None if place or not ys else side)
        panel.axhline(3, color=GRAY, linewidth=0.8, linestyle=":")
        panel.axhline(10, color=GRAY, linewidth=0.8, linestyle="--")
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:,g}")
        panel.set_xticks(range(len(SHARES)), list(SHARES))
    figure.axes[0].set_ylabel("ms added by the proxy")
    legend_of_figure(figure, figure.axes[0], 2)
    return figure


if __name__ == "__main__":
    main()
