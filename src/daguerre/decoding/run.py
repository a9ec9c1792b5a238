"""One sample of a request, from its plan to its result.

A `Run` is what a mode works with: plan, session, sampler, deadline. A `Sample` holds a run in progress; its driver
(`decoding.drive`) computes the forwards that it yields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from daguerre.canvas import Canvas, Decision, Span
from daguerre.decoding.deadline import Clock, Deadline
from daguerre.decoding.denoise import denoise
from daguerre.decoding.mode import Steps
from daguerre.decoding.plan import Plan
from daguerre.decoding.reading import has_ended, num_as_drafted
from daguerre.decoding.result import Result, make_result
from daguerre.decoding.sampler import TokenSampler
from daguerre.models.denoiser import Denoiser
from daguerre.models.forward import Answer, DraftStep, Forward
from daguerre.models.session import Counts, Session
from daguerre.models.wrappers.guidance import Guided
from daguerre.sampling.policies.base import Policy
from daguerre.sampling.random import Counter
from daguerre.trace import Event


@dataclass(eq=False)
class Run:
    """What a mode runs with: the plan of one request, and the session, sampler and deadline of one sample."""

    plan: Plan
    session: Session
    sampler: TokenSampler
    deadline: Deadline
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
        return self.plan.decode.autoregressive or not self.deadline.set

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

    def accept_draft(self, canvas: Canvas) -> None:
        """Count the tokens of the caller's draft that the text has at the drafted positions."""
        self.counts.accept(num_as_drafted(self.plan, canvas))

    def heal(self, canvas: Canvas) -> Steps:
        """Draw the text that was taken back before each gap again, one token at a time."""
        for gap in self.plan.gaps:
            while gap.healing.where(canvas)[1] and not self.late():
                position = gap.healing.where(canvas)[0]
                here = canvas.at((position, position + 1))
                canvas = yield from denoise(self, here, [gap.healing], lambda now: self.late())
        return canvas


class Sample:
    """One sample in progress: `advance` it until it is done, then take the `result`. Between steps the caller may
    `change` the canvas.

    `bound` is the most forwards that the sample may have taken when it is done; a change updates it.
    """

    def __init__(
        self, denoiser: Denoiser, plan: Plan, sample: int, timeout: float | None, clock: Clock | None = None
    ) -> None:
        decode, constraint = plan.decode, plan.constraint
        self.plan, self.canvas, self.bound = plan, plan.canvas, plan.bound
        self.events: list[Event] = []
        self.backend = denoiser.backend
        guidance = decode.logit_guidance
        guided = denoiser if guidance is None else Guided(denoiser, guidance, plan.unconditional)
        session = guided.session(plan.canvas, decode.cache)
        sampler = TokenSampler(
            decode.sampling,
            Counter(decode.seed, sample),
            not decode.autoregressive,
            None if constraint is None else replace(constraint),
            decode.commit_policy.reads,
        )
        self._searched = plan.searched if sample == 0 else None
        self.deadline = Deadline(timeout, clock, 0.0 if self._searched is None else self._searched.seconds)
        self._run, self._cut = Run(plan, session, sampler, self.deadline), False
        self._steps = decode.how.run(self._run, plan.canvas)

    def advance(self, answers: list[Answer] | None = None) -> Event | list[Forward | DraftStep] | None:
        """The next event, or a batch of forwards, whose answers belong to the next call; None once the run is over.

        Where a constrained run was late, a last event completes its texts.
        """
        item: Event | list[Forward | DraftStep] | None
        try:
            item = self._steps.send(answers)
        except StopIteration:
            item = self._completion()
        if isinstance(item, Event):
            self._add(item)
        return item

    def change(self, decision: Decision) -> Event:
        """Apply a decision of the caller, and continue from there; returns its event. InputError, and nothing changes,
        for one that does not fit the canvas or leaves the constraint no text.
        """
        changed, counts = self.canvas.apply(decision), self._run.counts
        opened = [(start, end) for start, end in self.plan.spans(changed) if changed.open[start:end].any()]
        changed = changed.at(min([*opened[:1], self.canvas.span or self._all_gaps]))
        if self.plan.constraint is not None:
            self.plan.constraint.check(changed, 1)
        event = Event(counts.forwards, decision, changed)
        self._add(event)
        self.bound = self.plan.bound_from(changed, counts.forwards)
        self._steps = self.plan.decode.how.run(self._run, changed)
        return event

    @property
    def _all_gaps(self) -> Span:
        return self.canvas.gaps[0][0], self.canvas.gaps[-1][1]

    def _add(self, event: Event) -> None:
        self.canvas = event.canvas
        self.events.append(event)

    def _completion(self) -> Event | None:
        """The event that completes the texts of a constrained run that was cut short; None for any other."""
        cut = not (has_ended(self.plan, self.canvas) or self.plan.finished(self.canvas))
        self._cut |= cut
        if not cut or self.plan.constraint is None:
            return None
        decision = self.plan.constraint.finish(self.canvas)
        return Event(self._run.counts.forwards, decision, self.canvas.at(self._all_gaps).apply(decision))

    def result(self) -> Result:
        """The result, once the run is over."""
        counts = replace(self._run.counts)
        if self._searched is not None:
            counts.add(self._searched.counts)
        return make_result(self.plan, self.canvas, self.events, counts, self.deadline.passed(), self._cut)
