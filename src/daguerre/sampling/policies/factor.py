"""The factor rule (Fast-dLLM, arXiv 2505.22618): the more positions at once, the likelier each token must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daguerre.canvas import Decision
from daguerre.kinds import POSITIVE, option
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Policy, Progress, commit, top
from daguerre.sampling.random import Counter


@dataclass(frozen=True)
class Factor(Policy):
    """With c_1 >= c_2 >= ... the probabilities, commit the largest n for which (k + 1)(1 - c_k) < factor for every k
    from 1 to n; at least one.
    """

    factor: float = option(
        1.0,
        POSITIVE,
        "Policy factor: each of n positions committed together must be wrong with a chance below factor / (n + 1).",
    )
    options: ClassVar[tuple[str, ...]] = ("factor",)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The likeliest ones, as many as the rule allows."""
        c = proposals.confidence
        doubt = 1 - np.sort(c)[::-1]
        fits = np.arange(2, len(c) + 2) * doubt < self.factor
        return commit(proposals, top(c, int(np.cumprod(fits).sum())))
