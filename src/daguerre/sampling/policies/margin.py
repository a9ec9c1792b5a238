"""The static schedule by margin (Dream, arXiv 2508.15487): in step s the k_s of clearest first choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daguerre.canvas import Decision
from daguerre.sampling.logits import Proposals, softmax
from daguerre.sampling.policies.base import Progress, commit, static_count, top
from daguerre.sampling.random import Counter


def margins(proposals: Proposals) -> np.ndarray:
    """The highest probability less the second, float64 (A,), of each law at temperature 1."""
    second, first = np.partition(softmax(proposals.logits), -2, axis=-1)[:, -2:].T
    return first - second


@dataclass(frozen=True)
class Margin:
    """`steps` forwards a span; None: one for each open position."""

    steps: int | None = None
    options: ClassVar[tuple[str, ...]] = ("steps",)

    def bound(self, num_open: int) -> int:
        """The schedule's length."""
        return min(self.steps or num_open, num_open)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The k_s proposals of widest margin."""
        count = static_count(progress.num_start, self.bound(progress.num_start), progress.step)
        clear = margins(proposals)
        return commit(proposals, top(clear, count), clear)
