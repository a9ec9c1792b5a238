"""The static schedule by entropy (Dream, arXiv 2508.15487): in step s the k_s proposals of lowest entropy."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Ranked


class Entropy(Ranked):
    """See the head of this file."""

    reads: ClassVar[tuple[str, ...]] = ("entropies",)

    def score(self, proposals: Proposals) -> np.ndarray:
        """Minus the entropies."""
        assert proposals.entropies is not None
        return -proposals.entropies
