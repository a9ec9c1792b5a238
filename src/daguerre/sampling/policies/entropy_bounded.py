"""The entropy-bounded sampler (arXiv 2505.24857): as many positions as are nearly independent."""

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
class EntropyBounded(Policy):
    """With H_1 <= H_2 <= ... the entropies in nats, commit the largest k for which H_1 + ... + H_k, less the largest of
    them, is at most gamma: the sum bounds what drawing them independently can lose. At least one, whose sum is 0.
    """

    gamma: float = option(
        0.1,
        NATS,
        "Policy entropy_bounded and mode renoise: nats of entropy that positions committed together may have.",
    )
    options: ClassVar[tuple[str, ...]] = ("gamma",)
    reads: ClassVar[tuple[str, ...]] = ("entropies",)

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """Minus the entropies."""
        assert proposals.entropies is not None
        return -proposals.entropies

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The positions of lowest entropy, as many as the bound allows."""
        entropy = -self.rank(proposals, progress, rng)
        ranked = np.sort(entropy)
        without_largest = np.cumsum(ranked) - ranked
        return commit(proposals, top(-entropy, int((without_largest <= self.gamma).sum())), -entropy)
