"""What a policy is, and the schedule that static ones share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daguerre.canvas import Decision
from daguerre.sampling.logits import Proposals
from daguerre.sampling.random import Counter


@dataclass(frozen=True)
class Progress:
    """The progress of a span: `step` counts the steps of the span and `request_step` those of the request, both from 0;
    `num_start` is the number of positions that were open when the span began.
    """

    step: int
    request_step: int
    num_start: int


class Policy(ABC):
    """A pure decision: it never calls the model and never loops. Of any proposals it commits at least one."""

    options: ClassVar[tuple[str, ...]]
    """The fields of `Decode` that it is made with."""
    reads: ClassVar[tuple[str, ...]] = ()
    """The fields of proposals that it reads besides their probabilities: "entropies", or "best", the two likeliest."""
    sequential: ClassVar[bool] = False
    """Whether proposals are drawn from the left, each given the one before it (`models.forward.SequentialDraws`)."""

    edits: ClassVar[bool] = False
    """Whether it also replaces committed tokens of the active span (`decoding.token_editing`)."""
    num_extra: ClassVar[int] = 0
    """The most forwards that a span takes once nothing of it is open."""

    def bound(self, num_open: int) -> int:
        """The most forwards that a span of `num_open` open positions can take; by default one for each position."""
        return num_open

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """The numbers that proposals are ranked by, float64 (A,): where more are needed, the highest are next. By
        default the probabilities.
        """
        return proposals.confidence

    def edit(self, proposals: Proposals, tokens: np.ndarray) -> np.ndarray:
        """Which of the proposals, at committed positions with `tokens` (A,), replace these; bool (A,)."""
        return np.zeros(len(proposals), dtype=bool)

    @abstractmethod
    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """Which proposals to commit; `proposals` are never empty."""


def commit(proposals: Proposals, chosen: np.ndarray, confidence: np.ndarray | None = None) -> Decision:
    """A Decision of the proposals where the boolean `chosen` (A,) is True, ranked by `confidence` (A,)."""
    ranked = proposals.confidence if confidence is None else confidence
    if len(chosen) == 1 and chosen[0]:
        return Decision.plain(proposals.positions, proposals.tokens, proposals.probabilities, ranked)
    return Decision.plain(
        proposals.positions[chosen], proposals.tokens[chosen], proposals.probabilities[chosen], ranked[chosen]
    )


def commit_all(proposals: Proposals) -> Decision:
    """A Decision of all proposals."""
    return Decision.plain(proposals.positions, proposals.tokens, proposals.probabilities, proposals.confidence)


def static_count(num_start: int, num_steps: int, step: int) -> int:
    """k_s = floor(N/S) + [s < N mod S] (LLaDA, arXiv 2502.09992); S is cut to N, so that each step commits."""
    steps = min(num_steps, num_start)
    return num_start // steps + int(step < num_start % steps)


@dataclass(frozen=True)
class Static(Policy):
    """The static schedule: in step s, the k_s proposals that `rank` puts highest.

    `steps` forwards a span; None: one for each open position.
    """

    steps: int | None = None
    options: ClassVar[tuple[str, ...]] = ("steps",)

    def bound(self, num_open: int) -> int:
        """The schedule's length."""
        return min(self.steps or num_open, num_open)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The k_s highest."""
        ranked = self.rank(proposals, progress, rng)
        count = static_count(progress.num_start, self.bound(progress.num_start), progress.step)
        return commit(proposals, top(ranked, count), ranked)


def top(confidence: np.ndarray, count: int) -> np.ndarray:
    """Boolean (A,): the `count` highest, the leftmost first among equals; at least one."""
    chosen = np.zeros(len(confidence), dtype=bool)
    chosen[np.argsort(-confidence, kind="stable")[: max(1, count)]] = True
    return chosen
