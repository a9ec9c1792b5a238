"""The static schedule by margin (Dream, arXiv 2508.15487): in step s the k_s of clearest first choice."""

from __future__ import annotations

import numpy as np

from daguerre.sampling.logits import Proposals, softmax
from daguerre.sampling.policies.base import Progress, Static
from daguerre.sampling.random import Counter


def margins(proposals: Proposals) -> np.ndarray:
    """The highest probability less the second, float64 (A,), of each law at temperature 1."""
    second, first = np.partition(softmax(proposals.logits), -2, axis=-1)[:, -2:].T
    return first - second


class Margin(Static):
    """See the head of this file."""

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """A wider margin is surer."""
        return margins(proposals)
