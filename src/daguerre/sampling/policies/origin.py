"""Dream's "origin" (arXiv 2508.15487): each position is committed by itself, with the chance that its step has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daguerre.canvas import Decision
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import LAST_TIME, Progress, commit
from daguerre.sampling.policies.first_hitting import FirstHitting
from daguerre.sampling.random import Counter


@dataclass(frozen=True)
class Origin(FirstHitting):
    """In step s each open position is committed with probability 1 - t_{s+1} / t_s (`base.time_share`), in the last
    step all of them.

    A position that is open at t_s has a time that is uniform on (0, t_s), and step s commits those above t_{s+1}. So
    one random number a position has this distribution, and steps that commit nothing take no forward. The last step is
    from t = LAST_TIME + (1 - LAST_TIME) / S to 0.
    """

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The positions of the next step that has any."""
        times, num_steps = self.rank(proposals, progress, rng), self.steps or progress.num_start
        step = np.floor((1 - times) * num_steps / (1 - LAST_TIME)).clip(max=num_steps - 1)
        return commit(proposals, step == step.min(), times)
