"""The static schedule by entropy (Dream, arXiv 2508.15487): in step s the k_s proposals of lowest entropy."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Progress, Static
from daguerre.sampling.random import Counter


class Entropy(Static):
    """See the head of this file."""

    reads: ClassVar[tuple[str, ...]] = ("entropies",)

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """Minus the entropies."""
        assert proposals.entropies is not None
        return -proposals.entropies
