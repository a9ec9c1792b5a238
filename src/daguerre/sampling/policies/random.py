"""The static schedule in random order: in step s, k_s proposals of any probability."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Progress, Static
from daguerre.sampling.random import ORDER, Counter


class Random(Static):
    """See the head of this file."""

    ranks: ClassVar[bool] = False

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """A random number for each position and step."""
        return rng.uniform(ORDER, proposals.positions, progress.request_step)
