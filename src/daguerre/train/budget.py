"""What a run may spend, and what it has spent: steps, and minutes in which every phase counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

EVALUATION, CURVES, CHECKPOINT, EXPORT = "evaluation", "curves", "checkpoint", "export"
FILES = "files"
CLOSING = {EVALUATION: 0.0, FILES: 0.0, CURVES: 2.0, CHECKPOINT: 1.0, EXPORT: 1.0}
"""The phases after the last step, and the seconds that each is expected to take before anything was measured."""
STEP, GRADIENTS = "step", "gradients"
RECENT = 9
"""Steps whose time says how long the next one takes."""
FIGURES = {EVALUATION: "held-out figures", CURVES: "curves", FILES: "scoring held-out files"}
"""The phases that a run can do without, in words."""
MOST = 0.25
"""The share of what is left of a budget that all times of one of these may take."""
LATE = 0.1
"""The share of its budget that a run may be late by for one of these."""


@dataclass
class RunProgress:
    """Where a run stands: finished steps, micro-batches drawn, tokens of text seen, minutes spent."""

    step: int = 0
    micro: int = 0
    tokens: int = 0
    minutes: float = 0.0


class RunBudget:
    """Counts a run's minutes, from `began` on, and holds back the time that its closing phases take.

    The share of the budget that is spent decides learning rates, stages, and when the last step is over. By minutes it
    is the time spent over the time that steps have: all but that of the closing phases, as long as they last took or
    are expected to take, and but half a step, so that a run ends neither early nor late on average.

    steps, minutes  the limits; 0: none
    clock           seconds
    began           the reading of the clock from which on minutes count; None: now
    """

    def __init__(
        self, steps: int, minutes: float, progress: RunProgress, clock: Callable[[], float], began: float | None = None
    ) -> None:
        self.steps, self.minutes, self.progress, self._clock = steps, minutes, progress, clock
        self.seconds: dict[str, float] = {}
        """How long each phase took when it last ran."""
        self._counted = clock() if began is None else began
        self._share = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._expected = dict(CLOSING)
        self._ends: float | None = None
        self._closed_before = False

    def tick(self) -> None:
        """Count the time since the last call."""
        now = self._clock()
        self.progress.minutes += (now - self._counted) / 60
        self._counted = now

    def share(self) -> float:
        """Share of the budget spent, in [0, 1]: of steps or of minutes, whichever is further along. It never falls."""
        self.tick()
        by_steps = self.progress.step / self.steps if self.steps else 0.0
        self._share = min(1.0, max(self._share, by_steps, self._share_of_minutes()))
        return self._share

    def _share_of_minutes(self) -> float:
        if not self.minutes:
            return 0.0
        half_a_step = median(self._recent) / 2 if self._recent else 0.0
        left = self.minutes - (self.closing_seconds + half_a_step) / 60
        return self.progress.minutes / left if left > 0 else 1.0

    @property
    def closing_seconds(self) -> float:
        """How long the phases after the last step are expected to take."""
        return sum(map(self._takes, self._expected))

    def _takes(self, phase: str) -> float:
        return self.seconds.get(phase, self._expected.get(phase, 0.0))

    def left(self) -> float:
        """Seconds that are left, less those that saving the run takes; infinity for a budget without minutes."""
        self.tick()
        saving = sum(self._takes(phase) for phase in (CHECKPOINT, EXPORT))
        return 60 * (self.minutes - self.progress.minutes) - saving if self.minutes else float("inf")

    def leaves_out(self, phase: str) -> bool:
        """Whether a phase was left out."""
        return phase not in self._expected

    def leave_out(self, phase: str) -> None:
        """Do without a phase."""
        self._expected.pop(phase, None)

    def is_too_long(self, phase: str) -> bool:
        """Whether there is no time for a phase: before the last step, or after it, where a run may be a little late."""
        if not self.minutes:
            return False
        return self._takes(phase) > (self.left() if self._ends is None else self._ends - self._clock())

    def expect(self, phase: str, seconds: float) -> None:
        """Say how long a closing phase will take; what was measured counts for more."""
        if not self.leaves_out(phase):
            self._expected[phase] = seconds

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Measure a phase."""
        began = self._clock()
        yield
        self.seconds[phase] = self._clock() - began
        if phase == STEP:
            self._recent.append(self.seconds[phase])

    def go_on_from(self, progress: RunProgress) -> None:
        """Take over where a resumed run stands; the time since `began` is still to be counted."""
        self.progress = progress
        self._closed_before = bool(self.minutes) and progress.minutes >= self.minutes

    def close(self) -> None:
        """Count the closing phases before they run, since the last checkpoint is written first.

        A budget in minutes that is spent is spent as a whole: a run that is resumed does not begin another step.
        """
        self.tick()
        if not self.minutes:
            return
        spent = self._share_of_minutes() >= 1.0
        left = 60 * ((1 + LATE) * self.minutes - self.progress.minutes)
        if self._closed_before:  # what follows was paid for, and may have been cut off
            left = float("inf")
        self._ends = self._clock() + left
        self.progress.minutes += self.closing_seconds / 60
        if spent:
            self.progress.minutes = max(self.progress.minutes, self.minutes)
