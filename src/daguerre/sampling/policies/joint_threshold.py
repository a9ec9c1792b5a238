"""Thresholds for masks and for tokens (LLaDA2.1, arXiv 2602.08676): a step fills masks, and edits what is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daguerre.kinds import PROBABILITY, option
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.threshold import Threshold

POST_STEPS = 17
"""The most forwards that edit a span once it is full: the published loops end when their count passes 16."""


@dataclass(frozen=True)
class JointThreshold(Threshold):
    """Commit as policy "threshold" does; and replace a committed token of the span by another one that is proposed with
    a probability above `edit_threshold`. A full span is read again until nothing changes.
    """

    edit_threshold: float = option(
        0.5,
        PROBABILITY,
        "Policy joint_threshold: replace a token by one of more than this probability. 1: never.",
    )
    options: ClassVar[tuple[str, ...]] = ("threshold", "edit_threshold")
    edits: ClassVar[bool] = True
    num_extra: ClassVar[int] = POST_STEPS

    def edit(self, proposals: Proposals, tokens: np.ndarray) -> np.ndarray:
        """Other tokens, and likely enough."""
        changed: np.ndarray = (proposals.tokens != tokens) & (proposals.confidence > self.edit_threshold)
        return changed
