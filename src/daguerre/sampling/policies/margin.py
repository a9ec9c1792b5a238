"""The static schedule by margin (Dream, arXiv 2508.15487): in step s the k_s proposals of widest margin."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Ranked


class Margin(Ranked):
    """See the head of this file."""

    reads: ClassVar[tuple[str, ...]] = ("best",)

    def score(self, proposals: Proposals) -> np.ndarray:
        """The highest probability minus the second."""
        assert proposals.best is not None
        margin: np.ndarray = proposals.best[:, 0] - proposals.best[:, 1]
        return margin
