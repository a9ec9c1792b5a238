"""From the left, each token given those proposed before it (`models.draft_head`), while they are sure enough."""

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
    """Commit the leftmost proposal, and those behind it up to the first of a probability below `threshold`.

    What this policy is given was made one position after the other (`denoise.in_turn`). In a model with a draft head
    each law then knows the token before it, so that tokens committed together fit one another; without one it is the
    law that every policy sees.
    """

    options: ClassVar[tuple[str, ...]] = ("threshold",)

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """The probability that a token and all before it stand: the leftmost is the highest."""
        return np.cumprod(proposals.confidence)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The run of sure ones at the left end of the active span, and never less than one."""
        sure = proposals.confidence >= self.threshold
        sure[0] = True
        return commit(proposals, np.logical_and.accumulate(sure), self.rank(proposals, progress, rng))
