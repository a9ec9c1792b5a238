"""From the left, each token given the one proposed before it (a draft head), while they are likely enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daguerre.canvas import Decision
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Progress, commit
from daguerre.sampling.policies.threshold import Threshold
from daguerre.sampling.random import Counter


@dataclass(frozen=True)
class Chain(Threshold):
    """Commit the leftmost proposal, and those after it up to the first of a probability below `threshold`.

    Its proposals are drawn one position after the other. In a model with a draft head each distribution is conditioned
    on the token before it, so that tokens committed together fit one another; without one it is the distribution that
    every policy sees.
    """

    options: ClassVar[tuple[str, ...]] = ("threshold",)
    sequential: ClassVar[bool] = True

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """The probability of a token and all those before it: the leftmost is the highest."""
        return np.cumprod(proposals.confidence)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The run of likely ones at the left end of the active span, and at least one."""
        sure = proposals.confidence >= self.threshold
        sure[0] = True
        return commit(proposals, np.logical_and.accumulate(sure), self.rank(proposals, progress, rng))
