"""Entropy threshold (WeDLM, arXiv 2512.22737): all proposals of low entropy, and the one with the lowest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daguerre.canvas import Decision
from daguerre.kinds import NATS, option
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Policy, Progress, commit, top
from daguerre.sampling.random import Counter


@dataclass(frozen=True)
class EntropyThreshold(Policy):
    """With H_i the entropy at position i in nats, and f the first proposal's position, commit all proposals with

        H_i + position_penalty * (i - f) < entropy_threshold

    and if there are none, the one for which the left side is lowest.
    """

    entropy_threshold: float = option(
        0.4, NATS, "Policy entropy_threshold: nats of entropy below which a token is committed."
    )
    position_penalty: float = option(
        0.0,
        NATS,
        "Policy entropy_threshold: nats added to the entropy for each position from the first open one on.",
    )
    options: ClassVar[tuple[str, ...]] = ("entropy_threshold", "position_penalty")
    reads: ClassVar[tuple[str, ...]] = ("entropies",)

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """Minus the entropies with their penalties."""
        assert proposals.entropies is not None
        distance = proposals.positions - proposals.positions[0]
        return -(proposals.entropies + self.position_penalty * distance)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """All that are sure enough, and the surest."""
        ranked = self.rank(proposals, progress, rng)
        return commit(proposals, (-ranked < self.entropy_threshold) | top(ranked, 1), ranked)
