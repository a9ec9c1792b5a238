"""The static schedule of LLaDA: in step s the k_s most confident proposals (arXiv 2502.09992, algorithm 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from daguerre.canvas import Decision
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Progress, commit, static_count, top
from daguerre.sampling.random import Counter


@dataclass(frozen=True)
class Confidence:
    """`steps` forwards a span; None: one for each open position."""

    steps: int | None = None
    options: ClassVar[tuple[str, ...]] = ("steps",)

    def bound(self, num_open: int) -> int:
        """The schedule's length."""
        return min(self.steps or num_open, num_open)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The k_s proposals of highest probability."""
        count = static_count(progress.num_start, self.bound(progress.num_start), progress.step)
        return commit(proposals, top(proposals.confidence, count))
