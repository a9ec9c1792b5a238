"""How logits are guided: the scale, its schedule, and what a scorer adds. `models.wrappers.guidance` does it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from daguerre.canvas import Canvas
from daguerre.kinds import NOT_NEGATIVE, Call, Kind, OneOf

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: share,
    "cosine": lambda share: (1 - math.cos(math.pi * share)) / 2,
}
"""The fraction by which the scale has moved from 1 to its value, given the committed share of the gaps. Two schedules
begin at 0, because little is known of a text of which nothing is committed yet."""

KINDS: dict[str, Kind] = {
    "guidance": NOT_NEGATIVE,
    "guidance_schedule": OneOf(known=tuple(SCHEDULES)),
    "scorer": Call(none=True),
}
"""What scale, schedule and scorer may be."""

Scorer = Callable[[Canvas, np.ndarray, np.ndarray], np.ndarray]
"""scorer(canvas, positions, logits): what to add to the logits, float32 (A, V), of the wanted positions, int64 (A,).
Its result has a shape that broadcasts to (A, V), is finite wherever the logits are, and depends on its arguments
alone."""


def chained(first: Scorer, second: Scorer) -> Scorer:
    """A scorer that adds what both add; the second is shown the logits after the first."""

    def scorer(canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        added = first(canvas, positions, logits)
        return added + second(canvas, positions, logits + added)

    return scorer


@dataclass(frozen=True)
class Guidance:
    """How logits are changed: a `scale` and its schedule, and a `scorer` whose result is added."""

    scale: float = 1.0
    schedule: str = "constant"
    scorer: Scorer | None = None

    def __post_init__(self) -> None:
        for name, value in (("guidance", self.scale), ("guidance_schedule", self.schedule), ("scorer", self.scorer)):
            KINDS[name](name, value)

    def at(self, canvas: Canvas) -> float:
        """The scale for a canvas."""
        share = 1 - float(canvas.open.sum() / canvas.in_gap.sum())
        return 1 + (self.scale - 1) * SCHEDULES[self.schedule](share)
