"""What a policy is, and the schedules that static ones share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from daguerre.canvas import Decision
from daguerre.kinds import NOT_NEGATIVE, OneOf, Whole, check_fields, option
from daguerre.sampling.logits import Proposals
from daguerre.sampling.random import ORDER, Counter

Schedule = Literal["even", "time"]
SCHEDULES: tuple[Schedule, ...] = ("even", "time")
MOST_STEPS = 65_536
"""No text has more positions, and no canvas of a mode that counts its own steps is drawn more often."""


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

    ranks: ClassVar[bool] = True
    """Whether what it commits depends on how likely tokens are."""
    fixed_counts: ClassVar[bool] = False
    """Whether a step commits a set number, and so those that wait for all others (`Proposals.waits`) where these are
    too few. Other policies do not see proposals that wait while there are others."""
    edits: ClassVar[bool] = False
    """Whether it also replaces committed tokens of the active span (`decoding.denoise.denoise_and_edit`)."""
    num_extra: ClassVar[int] = 0
    """The most forwards that a span takes once nothing of it is open."""

    def __post_init__(self) -> None:
        """Check the options."""
        check_fields(self)

    @property
    def skips(self) -> bool:
        """Whether it may have more steps than positions, because those that commit nothing take no forward."""
        return False

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


LAST_TIME = 1e-3
"""The time at which the schedule "time" ends."""


def static_count(num_start: int, num_steps: int, step: int) -> int:
    """k_s = floor(N/S) + [s < N mod S] (LLaDA, arXiv 2502.09992); S is cut to N, so that each step commits."""
    steps = min(num_steps, num_start)
    return num_start // steps + int(step < num_start % steps)


def time_share(step: int, num_steps: int) -> float:
    """1 - t_{s+1} / t_s, where t falls from 1 to LAST_TIME in S equal steps: the share of what is open that step s
    commits (Dream, arXiv 2508.15487). In the last step all of it.
    """
    if step + 1 >= num_steps:
        return 1.0
    fall = (1 - LAST_TIME) / num_steps
    return fall / (1 - fall * step)


def time_steps(num_start: int, num_steps: int) -> list[int]:
    """The steps s in which floor(M (1 - t_{s+1} / t_s)) of the M open positions is 1 or more, from M = `num_start`."""
    out = []
    for step in range(num_steps):
        count = int(num_start * time_share(step, num_steps))
        if count:
            out.append(step)
            num_start -= count
    return out


@dataclass(frozen=True)
class Static(Policy):
    """A static schedule: in step s, the k_s proposals that `rank` puts highest; see `static_count` and `time_share`. Of
    the steps of "time" those that commit nothing take no forward: the next ones see the same canvas.
    """

    steps: int | None = option(
        None,
        Whole(low=1, high=MOST_STEPS, none=True),
        """Most forwards of a span (policies confidence, entropy, margin, random, origin and first_hitting), of the
        text (mode ancestral) or of a canvas (mode renoise; 48 by default). None: one for each position.""",
    )
    schedule: Schedule = option(
        "even",
        OneOf(known=SCHEDULES),
        """Policies confidence, entropy, margin and random: even, or time, few tokens at first as Dream does. even:
        each step of a span commits as many tokens (LLaDA). time: step s of S commits a share 1 - t_{s+1} / t_s of what
        is open, where t falls from 1 to 0.001 in equal steps; steps that commit nothing take no forward.""",
    )
    options: ClassVar[tuple[str, ...]] = ("steps", "schedule")
    fixed_counts: ClassVar[bool] = True

    @property
    def skips(self) -> bool:
        """Whether the schedule is "time"."""
        return self.schedule == "time"

    def bound(self, num_open: int) -> int:
        """The schedule's length."""
        return min(self.steps or num_open, num_open)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        """The k_s highest."""
        ranked, num_start = self.rank(proposals, progress, rng), progress.num_start
        if self.schedule == "even":
            count = static_count(num_start, self.bound(num_start), progress.step)
        else:
            count = self._count_in_time(progress, len(proposals))
        return commit(proposals, top(ranked, count, proposals.waits), ranked)

    def _count_in_time(self, progress: Progress, num_open: int) -> int:
        """How many of `num_open` positions are next; fewer are open than planned where others were filled besides."""
        num_steps = self.steps or progress.num_start
        steps = time_steps(progress.num_start, num_steps)
        share = time_share(steps[progress.step], num_steps) if progress.step < len(steps) else 1.0
        return int(num_open * share)


@dataclass(frozen=True)
class Ranked(Static):
    """A static schedule whose order follows a `score`.

    With a `rank_temperature` above 0, k_s proposals are drawn without replacement, each time with probabilities
    proportional to exp(score / rank_temperature) (Dream's `alg_temp`). These are the k_s highest of
    score + rank_temperature * G, with Gumbel numbers G (Kool et al., arXiv 1903.06059).
    """

    rank_temperature: float = option(
        0.0,
        NOT_NEGATIVE,
        """Policies confidence, entropy and margin: 0 commits what ranks highest, above 0 draws in proportion to
        exp(rank / rank_temperature), as in Dream.""",
    )
    options: ClassVar[tuple[str, ...]] = (*Static.options, "rank_temperature")

    def score(self, proposals: Proposals) -> np.ndarray:
        """Float64 (A,): the probabilities, unless a policy scores otherwise."""
        return proposals.confidence

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        """The scores, with noise where there is a temperature."""
        score = self.score(proposals)
        if not self.rank_temperature:
            return score
        u = np.maximum(rng.uniform(ORDER, proposals.positions, progress.request_step), 2.0**-54)
        out: np.ndarray = score - self.rank_temperature * np.log(-np.log(u))
        return out


def top(confidence: np.ndarray, count: int, waits: np.ndarray | None = None) -> np.ndarray:
    """Boolean (A,): the `count` highest, the leftmost first among equals; at least one. Those that wait come last, from
    the left.
    """
    chosen = np.zeros(len(confidence), dtype=bool)
    confidence = confidence if waits is None else np.where(waits, -np.inf, confidence)
    chosen[np.argsort(-confidence, kind="stable")[: max(1, count)]] = True
    return chosen
