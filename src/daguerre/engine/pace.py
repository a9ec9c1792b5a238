"""How much work a step may have, so that nobody waits long for it: rows are timed, and steps are cut by time.

A row costs what its weights take, and what the keys take that it sees. The ratio of the two follows from the model's
shape; how long the sum takes is measured, and so is what each text takes beside its rows, to be sampled from and told
of. So a step that is cut to a quarter of a second takes about that, whatever the model, the processor, and what else it
has to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import DraftStep, Forward

UNLIMITED, MOST = 1e30, 1 << 30
"""Work, and rows, without a limit."""
FIRST = 256.0
"""Work of a step before any was timed."""
TIMED = 16
"""Work that a step may have in any case. Steps of much less tell nothing of what a row takes: the weights are read once
for all.
"""
FADES = 0.98
"""What is believed of the seconds of a small forward after each larger one: so steps become small again, to time it."""
STEPS = 0.5
"""Of the machine what steps have while several owners share it: requests are read, planned and answered beside them.
"""
NUMBERS = 0.5
"""How many numbers of keys and values are multiplied in the time of a weight: fewer than one, as they come from further
away and once for each row.
"""


class Pace:
    """What steps take. Work is counted in rows that see no other.

    seconds  that a step may take; None: as long as it likes
    """

    def __init__(self, config: ModelConfig, seconds: float | None) -> None:
        self.seconds = seconds
        self._keys = NUMBERS * weights_of(config) / (2 * config.num_layers * config.num_heads * config.head_width)
        self._unit: float | None = None
        self._small = self._each = 0.0

    @property
    def _beside(self) -> float:
        """The work of a part beside its rows."""
        return 0.0 if self._unit is None or self.seconds is None else self._each / self._unit

    def work(self, asked: Forward | DraftStep) -> float:
        """What a forward takes."""
        if not isinstance(asked, Forward):
            return len(asked.rows) + self._beside
        begin = 0 if asked.layout.begin is None else int(asked.layout.begin.sum())
        return len(asked.tokens) + (int(asked.layout.end.sum()) - begin) / self._keys + self._beside

    def need(self, rows: int, length: int) -> float:
        """The work of a part of rows behind so many others."""
        return rows * (1 + (length + rows / 2) / self._keys) + self._beside

    def rows(self, work: float, length: int) -> int:
        """How many rows behind so many others this work is: the inverse of `need`; none for work that is overdrawn."""
        each = self._keys + length
        return min(MOST, int((each**2 + 2 * self._keys * max(0.0, work - self._beside)) ** 0.5 - each))

    def most(self, needs: Sequence[tuple[float, float]] = ()) -> float:
        """The work of a step.

        needs  (weight, work that it wants next) of each owner that shares the step. The step takes at most STEPS of the
               time in which each of them would get one step of its own: what that step would take, over its share
        """
        if self.seconds is None:
            return UNLIMITED
        if self._unit is None:
            return FIRST
        limit, total = self.seconds, sum(weight for weight, _ in needs)
        if len(needs) > 1:
            alone = (total / weight * max(self._small + self._each, self._unit * need) for weight, need in needs)
            limit = min(limit, STEPS * min(alone))
        return max(float(TIMED), limit / self._unit)

    def took(self, rows: int, work: float, parts: int, forward: float, seconds: float) -> None:
        """A step of so many rows in so many parts was computed, its forward in `forward` of its seconds."""
        work -= parts * self._beside
        self._each += ((seconds - forward) / parts - self._each) / 4
        if work >= TIMED / 2:  # less than a step has in any case, or one that was late by chance would stay the last
            unit = forward / work
            self._unit = unit if self._unit is None else (self._unit + unit) / 2
            self._small *= FADES
        if rows <= TIMED:
            self._small = (self._small + forward) / 2 if self._small else forward


def weights_of(config: ModelConfig) -> int:
    """The weights of the layers that a row is multiplied by, about."""
    heads = (config.num_heads + config.num_kv_heads) * config.head_width
    experts = config.experts
    inner = config.mlp_width if experts is None else experts.per_token * experts.width + experts.shared_width
    return config.num_layers * config.width * (2 * heads + 3 * inner)


def fair_parts(needs: Sequence[float], weights: Sequence[float], most: float) -> list[float]:
    """Parts of `most` for these needs, by their weights, but nobody gets more than it needs, and what that leaves is
    the others'.
    """
    out, left, weight = [0.0] * len(needs), most, sum(weights)
    for index in sorted(range(len(needs)), key=lambda one: needs[one] / weights[one]):
        out[index] = min(needs[index], left * weights[index] / weight)
        left, weight = left - out[index], weight - weights[index]
    return out
