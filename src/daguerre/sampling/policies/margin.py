"""The static schedule by margin (Dream, arXiv 2508.15487): in step s the k_s proposals of widest margin."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Progress, Static
from daguerre.sampling.random import Counter


class Margin(Static):
    """See the head of this file."""

    reads: ClassVar[tuple[str, ...]] = ("best",)

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """The highest probability minus the second."""
        assert proposals.best is not None
        margin: np.ndarray = proposals.best[:, 0] - proposals.best[:, 1]
        return margin
