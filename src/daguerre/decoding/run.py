"""What a mode runs with: the plan of one request, and the session, sampler and deadline of one of its samples."""

from __future__ import annotations

from dataclasses import dataclass, field

from daguerre.canvas import Canvas
from daguerre.decoding.deadline import Deadline
from daguerre.decoding.plan import Plan
from daguerre.decoding.reading import has_ended, num_as_drafted
from daguerre.decoding.sampler import TokenSampler
from daguerre.models.session import Counts, Session
from daguerre.sampling.policies.base import Policy


@dataclass(eq=False)
class Run:
    """One run of a mode.

    crowd  how many texts are written in its forwards, with this one: whoever computes them changes it
    """

    plan: Plan
    session: Session
    sampler: TokenSampler
    deadline: Deadline
    crowd: int = 1
    _last_end: tuple[object, bool] = field(default=(None, False))

    @property
    def counts(self) -> Counts:
        """What the sample has computed."""
        return self.session.counts

    @property
    def policy(self) -> Policy:
        """The request's policy."""
        return self.plan.decode.commit_policy

    @property
    def threshold(self) -> float:
        """The probability from which on tokens are kept."""
        return self.plan.decode.threshold

    @property
    def fixed_pace(self) -> bool:
        """Whether a deadline does not change how much a step commits."""
        return self.plan.mode.autoregressive or not self.deadline.set

    def late(self) -> bool:
        """Whether the time is up."""
        return self.deadline.late()

    def has_ended(self, canvas: Canvas) -> bool:
        """Whether the text has ended, or the time is up."""
        if self._last_end[0] is not canvas.open:  # another span of the canvas has the same array
            self._last_end = canvas.open, has_ended(self.plan, canvas)
        return self._last_end[1] or self.late()

    def min_commits(self, canvas: Canvas) -> int:
        """How many positions the next forward must commit, because time is short; 0 where it is not."""
        if self.fixed_pace:
            return 0
        return self.deadline.min_commits(self.plan.num_opened(canvas), self.counts)

    def has_time_to_edit(self, canvas: Canvas) -> bool:
        """Whether a forward that commits nothing leaves time for one for each open position."""
        return self.fixed_pace or self.deadline.forwards_left(self.counts) > self.plan.num_opened(canvas)

    def accept_draft(self, canvas: Canvas) -> None:
        """Count the tokens of the caller's draft that the text has at the drafted positions."""
        self.counts.accept(num_as_drafted(self.plan, canvas))
