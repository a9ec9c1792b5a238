"""Confidence threshold (Fast-dLLM, arXiv 2505.22618): all proposals of probability tau or more, and the best one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from daguerre.canvas import Decision
from daguerre.kinds import PROBABILITY, option
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Policy, Progress, commit, top
from daguerre.sampling.random import Counter


@dataclass(frozen=True)
class Threshold(Policy):
    """Commit {c_i >= threshold} and the proposal with the highest c. A threshold of 0 commits a span in one forward."""

    threshold: float = option(
        0.9,
        PROBABILITY,
        "Probability from which policies threshold, joint_threshold and chain commit a token.",
    )
    options: ClassVar[tuple[str, ...]] = ("threshold",)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """All that are likely enough, and the likeliest."""
        c = proposals.confidence
        return commit(proposals, (c >= self.threshold) | top(c, 1))
