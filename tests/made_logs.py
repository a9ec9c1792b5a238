"""Logs of a router whose backends are random numbers: decisions are `choose`'s own, outcomes are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.router.choose import BackendState, Features, RoutingDecision, State, choose
from daguerre.router.config import Config
from daguerre.router.log import config_line, decision_line
from routing import request

Made = list[dict[str, Any]]


def decided(
    number: int, features: Features, config: Config, state: State | None = None
) -> tuple[dict[str, Any], RoutingDecision]:
    """The beginning of a line, before anything was tried, and its decision."""
    some = state or {}
    decision = choose(features, some, config)
    line = {"id": f"r{number}", "time": 1_800_000_000.0 + number, "path": "/chat/completions"}
    return line | decision_line(features, some, decision), decision


def answered(line: dict[str, Any], backend: str, ms: float, cost: float, **more: Any) -> dict[str, Any]:
    """A line that ends well at the first attempt."""
    attempt = {"backend": backend, "begun_ms": 1.0, "status": 200, "bytes": 9, "first_ms": ms / 2, "ms": ms}
    tokens = {"input": 100, "output": 10, "counted": True}
    return line | {"tokens": tokens, "cost": cost, "attempts": [attempt], "status": 200, "ms": ms} | more


def shadow(
    of: str, backend: str, grade: float | None, main: float | None, cost: float | None, **more: Any
) -> dict[str, Any]:
    """The line of a shadow."""
    said = {"shadow_of": of, "backend": backend, "status": 200, "ms": 9.0, "first_ms": 5.0, "finish": "stop"}
    return said | {"cost": cost, "grade": grade, "main_grade": main, "grader": "judge"} | more


def write(path: Path, config: Config, lines: Made) -> Path:
    """The file of a log."""
    path.write_text("".join(json.dumps(line) + "\n" for line in (config_line(config), *lines)))
    return path


def draw(
    config: Config,
    num: int,
    right: Callable[[str, str], float],
    ms: Callable[[str, str], float] = lambda backend, step: 100.0,
    seed: int = 0,
    steps: tuple[str, ...] = ("plan", "facts"),
    shadows: float = 0.0,
) -> Made:
    """Lines of a log. right: the probability that a backend is right at a step type; ms: the median of its times."""
    rng, out = np.random.default_rng(seed), Made()
    names = [each.name for each in config.backends]
    for number in range(num):
        step = steps[int(rng.integers(len(steps)))]
        state = {name: BackendState(in_flight=int(rng.integers(5))) for name in names}
        features = request(step, draw=float(rng.random()), input_tokens=100, output_tokens=10)
        line, decision = decided(number, features, config, state)
        assert decision.backend is not None
        grades = {name: float(rng.random() < right(name, step)) for name in names}
        took = ms(decision.backend, step) * float(rng.lognormal(0, 0.5))
        prices = {each.name: each.price for each in config.backends}
        costs = {name: each.request + (100 * each.input + 10 * each.output) / 1e6 for name, each in prices.items()}
        out.append(answered(line, decision.backend, took, costs[decision.backend], grade=grades[decision.backend]))
        if rng.random() < shadows:
            second = next(name for name in names if name != decision.backend)
            main = grades[decision.backend]
            out.append(shadow(f"r{number}", second, grades[second], main, costs[second]))
    return out
