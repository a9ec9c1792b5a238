"""The static schedule of LLaDA: in step s the k_s most confident proposals (arXiv 2502.09992, algorithm 5)."""

from __future__ import annotations

from daguerre.sampling.policies.base import Ranked


class Confidence(Ranked):
    """See the head of this file."""
