"""The static schedule of LLaDA: in step s the k_s most confident proposals (arXiv 2502.09992, algorithm 5)."""

from __future__ import annotations

import numpy as np

from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Progress, Static
from daguerre.sampling.random import Counter


class Confidence(Static):
    """See the head of this file."""

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """The probability of the token."""
        return proposals.confidence
