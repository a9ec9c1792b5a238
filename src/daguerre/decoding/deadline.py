"""A deadline by which a text is finished: forwards are timed, and where time is short a step commits more.

A request that has time for F more forwards commits at least ceil(open / F) positions in the next one, so that the last
one fills the rest of the budget. Until a forward has been timed, the policy alone decides.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from daguerre.canvas import Decision
from daguerre.models.session import Counts
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import commit, top

RECENT = 3
"""The next forward is expected to take as long as the longest of the last this many."""

Clock = Callable[[], float]


class Deadline:
    """One sample's time. seconds: None is no limit, of which `spent` have passed; clock: in seconds, from any moment.

    `busy` is the time in seconds of the sample's steps, and of the forwards that it waited for; the driver adds to it.
    The time that a consumer of its events takes is not part of it.
    """

    def __init__(self, seconds: float | None, clock: Clock | None = None, spent: float = 0.0) -> None:
        self.clock = clock or time.perf_counter
        self.started = self.clock() - spent
        self.busy = 0.0
        self._end = math.inf if seconds is None else self.started + seconds
        self._took: deque[float] = deque(maxlen=RECENT)
        self._mark: tuple[float, Counts] | None = None

    @property
    def set(self) -> bool:
        """Whether there is a limit."""
        return self._end < math.inf

    def end(self) -> None:
        """End the time now."""
        self._end = min(self._end, self.clock())

    def late(self) -> bool:
        """Whether the time is up."""
        return self._end < math.inf and self.clock() >= self._end

    def passed(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.started

    def min_commits(self, num_open: int, counts: Counts) -> int:
        """How many of `num_open` positions the next forward must commit; 0: as few as the policy chooses.

        counts: what the sample has computed.
        """
        forwards = self.forwards_left(counts)
        return 0 if forwards == math.inf else math.ceil(num_open / max(1.0, forwards))

    def forwards_left(self, counts: Counts) -> float:
        """How many more forwards there is time for; infinity without a limit, and until one has been timed.

        counts: what the sample has computed. The time of a forward is scaled to the share of its rows that the next one
        will have too: all but the caller's text.
        """
        if self._end == math.inf:
            return math.inf
        if self._mark is None:
            self._mark = self.busy, replace(counts)
        before, old = self._mark
        if counts.forwards > old.forwards:
            prompt = counts.prefill_tokens - old.prefill_tokens
            again = sum(
                getattr(counts, n) - getattr(old, n) for n in ("query_tokens", "finalized_tokens", "recomputed_tokens")
            )
            self._took.append((self.busy - before) * (again / (again + prompt) if again else 1.0))
            self._mark = self.busy, replace(counts)
        return (self._end - self.clock()) // max(*self._took, 1e-9) if self._took else math.inf


def with_more(decision: Decision, ready: Proposals, ranked: np.ndarray, min_commits: int) -> Decision:
    """The decision with more of the proposals `ready` (A,), highest of `ranked` (A,) first, until it has `min_commits`
    or all.
    """
    chosen = np.isin(ready.positions, decision.positions)
    waits = None if ready.waits is None else ready.waits & ~chosen
    return commit(ready, top(np.where(chosen, np.inf, ranked), min_commits, waits), ranked)
