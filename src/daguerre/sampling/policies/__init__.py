"""Policies: which proposals to commit. Adding one is one file and one line of POLICIES."""

from __future__ import annotations

from daguerre.sampling.policies.base import Policy, Progress
from daguerre.sampling.policies.confidence import Confidence
from daguerre.sampling.policies.first_hitting import FirstHitting
from daguerre.sampling.policies.random import Random
from daguerre.sampling.policies.threshold import Threshold

POLICIES: dict[str, type[Policy]] = {
    "confidence": Confidence,
    "first_hitting": FirstHitting,
    "random": Random,
    "threshold": Threshold,
}

__all__ = ["POLICIES", "Confidence", "FirstHitting", "Policy", "Progress", "Random", "Threshold"]
