"""The absorbing process itself, without its empty steps (first hitting; Zheng et al., arXiv 2409.02908; BD3-LM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daguerre.canvas import Decision
from daguerre.kinds import shared
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Policy, Progress, Static, commit, top
from daguerre.sampling.random import ORDER, Counter


@dataclass(frozen=True)
class FirstHitting(Policy):
    """From all masks to none, each position is unmasked at a random time, the masked share, uniform on (0, 1).

    steps   None: the position whose time is next, one a forward, which has the distribution of the process: with n open
            positions the next time is t u^(1/n), and each position is equally likely to have it. A number: the
            distribution of ancestral sampling on that many equal intervals (DiffuLLaMA's sampler); those without a
            position take no forward
    """

    steps: int | None = shared(Static, "steps")
    options: ClassVar[tuple[str, ...]] = ("steps",)
    ranks: ClassVar[bool] = False

    @property
    def skips(self) -> bool:
        """Always."""
        return True

    def bound(self, num_open: int) -> int:
        """One forward for each interval, at most one for each position."""
        return min(self.steps or num_open, num_open)

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """The times. Their random numbers do not depend on the step, so a position keeps its time."""
        return rng.uniform(ORDER, proposals.positions, 0)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The next position, or those of the next interval."""
        times = self.rank(proposals, progress, rng)
        if self.steps is None:
            return commit(proposals, top(times, 1), times)
        interval = np.floor(times * self.steps)
        return commit(proposals, interval == interval.max(), times)
