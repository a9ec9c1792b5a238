"""The static schedule by entropy (Dream, arXiv 2508.15487): in step s the k_s proposals of the least uncertain laws."""

from __future__ import annotations

import numpy as np

from daguerre.sampling.logits import Proposals, softmax
from daguerre.sampling.policies.base import Progress, Static
from daguerre.sampling.random import Counter


def entropies(proposals: Proposals) -> np.ndarray:
    """H = -sum_v p_v log p_v in nats, float64 (A,), of each law at temperature 1."""
    probs = softmax(proposals.logits)
    return -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(axis=-1)


class Entropy(Static):
    """See the head of this file."""

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """Less entropy is surer."""
        return -entropies(proposals)
