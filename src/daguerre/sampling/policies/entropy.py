"""The static schedule by entropy (Dream, arXiv 2508.15487): in step s the k_s proposals of the least uncertain laws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daguerre.canvas import Decision
from daguerre.sampling.logits import Proposals, softmax
from daguerre.sampling.policies.base import Progress, commit, static_count, top
from daguerre.sampling.random import Counter


def entropies(proposals: Proposals) -> np.ndarray:
    """H = -sum_v p_v log p_v in nats, float64 (A,), of each law at temperature 1."""
    probs = softmax(proposals.logits)
    return -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(axis=-1)


@dataclass(frozen=True)
class Entropy:
    """`steps` forwards a span; None: one for each open position."""

    steps: int | None = None
    options: ClassVar[tuple[str, ...]] = ("steps",)

    def bound(self, num_open: int) -> int:
        """The schedule's length."""
        return min(self.steps or num_open, num_open)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The k_s proposals of lowest entropy."""
        count = static_count(progress.num_start, self.bound(progress.num_start), progress.step)
        sure = -entropies(proposals)
        return commit(proposals, top(sure, count), sure)
