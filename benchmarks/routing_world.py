"""A world of backends for the simulated agent: how good, dear and slow they are, what goes wrong, what an oracle does.

Everything about a request follows from its number: when it comes, its kind of step, the length of its answer, and how
long each backend takes for it. So all policies meet the same draws, and the oracle, which knows them, takes the
cheapest backend that is good enough and in time. Times are milliseconds of the world, which passes `COMPRESSED` times
as fast. How unsteady a backend is was recorded of real servers (`results/README.md` names the script): each time is
what is usual for it, times a recorded factor.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from routing_requests import STEPS, request

COMPRESSED = 2.0
RATE = 15.0
"""Requests a second of the clock on the wall."""
RESTART = 2000.0 * COMPRESSED
"""Milliseconds after a killed backend's start in which the oracle does not count on it."""
RECORDED = Path(__file__).parent / "results" / "routing-recorded.json"
SPREAD = 0.2
"""Of the logarithm of an answer's length."""


Factors = list[tuple[float, float]]
"""How many times as long as usual the first text took, and the end."""


@cache
def recorded(name: str) -> Factors:
    """What was recorded for a backend."""
    found: Factors = json.loads(RECORDED.read_text())["factors"][name]
    return found


@dataclass(frozen=True)
class StepKind:
    """A kind of step. tokens: the median length of its answers; floor: the quality that it needs."""

    tokens: int
    floor: float


KINDS = {
    "classify": StepKind(6, 0.9),
    "look_up": StepKind(60, 0.85),
    "extract": StepKind(100, 0.84),
    "tool_arguments": StepKind(40, 0.88),
    "facts": StepKind(50, 0.84),
    "edit": StepKind(180, 0.9),
    "summarize": StepKind(160, 0.8),
    "plan": StepKind(250, 0.8),
    "reason": StepKind(400, 0.9),
    "write_code": StepKind(350, 0.8),
}
SLACK, NEXT_SLACK = 4.0, 2.0
"""An SLO is so many times the median of the cheapest backend that is good enough, and of the next cheapest."""


@dataclass(frozen=True)
class Simulated:
    """A backend. Usual times in milliseconds, prices in dollars for a million tokens, quality in the order of `STEPS`.

    slow, refusing, dead   shares of the run's length from where to where it is four times as slow, answers 503, and is
                           killed
    """

    first: float
    token: float
    price: tuple[float, float]
    quality: tuple[float, ...]
    slow: tuple[float, float] = (2.0, 2.0)
    refusing: tuple[float, float] = (2.0, 2.0)
    dead: tuple[float, float] = (2.0, 2.0)


SLOWER = 4.0
SMALL = (0.92, 0.88, 0.85, 0.84, 0.6, 0.7, 0.85, 0.55, 0.35, 0.4)
BACKENDS = {
    "frontier": Simulated(900, 12, (3, 15), (0.95,) * 10, slow=(0.86, 0.92)),
    "middle": Simulated(
        450,
        7,
        (0.6, 2.4),
        (0.93, 0.9, 0.9, 0.9, 0.86, 0.85, 0.88, 0.84, 0.78, 0.84),
        slow=(0.7, 0.8),
        refusing=(0.62, 0.64),
    ),
    "blocks": Simulated(
        300,
        1.2,
        (0.25, 1),
        (0.93, 0.88, 0.93, 0.9, 0.45, 0.95, 0.85, 0.7, 0.55, 0.82),
        slow=(0.42, 0.56),
        refusing=(0.3, 0.33),
    ),
    "small": Simulated(180, 6, (0.08, 0.3), SMALL, slow=(0.18, 0.32), dead=(0.6, 0.68)),
    "small-2": Simulated(250, 7, (0.12, 0.45), SMALL),
}
STRONG, WEAK = "frontier", "small"


def slo_of(step: str) -> float:
    """Milliseconds of the world within which the answer to a step must be there, in whole hundreds."""
    kind = KINDS[step]
    good = [it for it in BACKENDS.values() if it.quality[STEPS.index(step)] >= kind.floor]
    good.sort(key=lambda it: 100 * it.price[0] + kind.tokens * it.price[1])
    medians = [it.first + it.token * kind.tokens for it in good[:2]]
    return math.ceil(max(slack * one for slack, one in zip((SLACK, NEXT_SLACK), medians, strict=False)) / 100) * 100


@dataclass(frozen=True)
class DrawnRequest:
    """A request: when it comes (seconds on the wall), its kind, and the tokens of its text and of its answer."""

    number: int
    at: float
    step: str
    stream: bool
    into: int
    out: int
    body: dict[str, Any] = field(repr=False)

    @property
    def slo(self) -> float:
        """Seconds on the wall."""
        return slo_of(self.step) / 1000 / COMPRESSED


@dataclass(frozen=True)
class World:
    """A run of `num` requests."""

    num: int
    seed: int = 1

    @property
    def seconds(self) -> float:
        """How long it is on the wall."""
        return self.num / RATE

    @cached_property
    def requests(self) -> list[DrawnRequest]:
        """All requests in their order."""
        draw, at, out = random.Random(self.seed), 0.0, list[DrawnRequest]()
        for number in range(self.num):
            at += draw.expovariate(RATE)
            step, stream = draw.choice(STEPS), draw.random() < 0.5
            length = max(1, round(KINDS[step].tokens * math.exp(draw.gauss(0, SPREAD))))
            body = request(number, step, stream)
            out.append(DrawnRequest(number, at, step, stream, len(json.dumps(body["messages"])) // 4, length, body))
        return out

    def within(self, at: float, shares: tuple[float, float]) -> bool:
        """Whether a time lies between these shares of the run."""
        return shares[0] * self.seconds <= at < shares[1] * self.seconds

    def took(self, one: DrawnRequest, name: str) -> tuple[float, float]:
        """Seconds on the wall until a backend's first text and until its end."""
        it = BACKENDS[name]
        to_first, to_end = random.Random(f"{self.seed} {one.number} {name}").choice(recorded(name))
        scale = (SLOWER if self.within(one.at, it.slow) else 1.0) / 1000 / COMPRESSED
        end = (it.first + it.token * one.out) * to_end * scale
        return min(it.first * to_first * scale, end), end

    def cost(self, one: DrawnRequest, name: str) -> float:
        """Dollars."""
        price = BACKENDS[name].price
        return (one.into * price[0] + one.out * price[1]) / 1e6

    def good(self, one: DrawnRequest, name: str) -> bool:
        """Whether a backend reaches the quality that the step needs."""
        return BACKENDS[name].quality[STEPS.index(one.step)] >= KINDS[one.step].floor

    def answers(self, one: DrawnRequest, name: str) -> bool:
        """Whether a backend answers at all, now that it may refuse or be dead."""
        it = BACKENDS[name]
        start, end = (share * self.seconds for share in it.dead)
        lives = one.at + self.took(one, name)[1] < start or one.at > end + RESTART / 1000 / COMPRESSED
        return lives and not self.within(one.at, it.refusing)

    def able(self, one: DrawnRequest) -> list[str]:
        """Backends that are good enough and in time, the cheapest first."""
        some = [name for name in BACKENDS if self.good(one, name) and self.answers(one, name)]
        return sorted(
            (name for name in some if self.took(one, name)[1] <= one.slo), key=lambda name: self.cost(one, name)
        )
