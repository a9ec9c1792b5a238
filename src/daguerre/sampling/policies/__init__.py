"""Policies: which proposals to commit. Adding one is one file and one line of POLICIES."""

from __future__ import annotations

from daguerre.sampling.policies.base import Policy, Progress
from daguerre.sampling.policies.chain import Chain
from daguerre.sampling.policies.confidence import Confidence
from daguerre.sampling.policies.entropy import Entropy
from daguerre.sampling.policies.entropy_bounded import EntropyBounded
from daguerre.sampling.policies.entropy_threshold import EntropyThreshold
from daguerre.sampling.policies.factor import Factor
from daguerre.sampling.policies.first_hitting import FirstHitting
from daguerre.sampling.policies.joint_threshold import JointThreshold
from daguerre.sampling.policies.margin import Margin
from daguerre.sampling.policies.origin import Origin
from daguerre.sampling.policies.random import Random
from daguerre.sampling.policies.threshold import Threshold

POLICIES: dict[str, type[Policy]] = {
    "chain": Chain,
    "confidence": Confidence,
    "entropy": Entropy,
    "entropy_bounded": EntropyBounded,
    "entropy_threshold": EntropyThreshold,
    "factor": Factor,
    "first_hitting": FirstHitting,
    "joint_threshold": JointThreshold,
    "margin": Margin,
    "origin": Origin,
    "random": Random,
    "threshold": Threshold,
}


def policy_kind(policy: str | Policy) -> type[Policy]:
    """The class of a policy that is given by its name in the table, or as an object."""
    return type(policy) if isinstance(policy, Policy) else POLICIES[policy]


__all__ = [
    "POLICIES",
    "Chain",
    "Confidence",
    "Entropy",
    "EntropyBounded",
    "EntropyThreshold",
    "Factor",
    "FirstHitting",
    "JointThreshold",
    "Margin",
    "Origin",
    "Policy",
    "Progress",
    "Random",
    "Threshold",
    "policy_kind",
]
