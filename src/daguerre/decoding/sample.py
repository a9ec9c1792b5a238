"""One sample of a request, from its plan to its result; `decoding.drive` computes the forwards that it yields."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from daguerre.canvas import Decision, Span
from daguerre.decoding.deadline import Clock, Deadline
from daguerre.decoding.denoise import Run
from daguerre.decoding.explanation import explain_run
from daguerre.decoding.plan import Plan
from daguerre.decoding.reading import has_ended
from daguerre.decoding.result import Result, make_result
from daguerre.decoding.sampler import TokenSampler
from daguerre.decoding.steering import ProgramControls, controls
from daguerre.errors import no_concept_heads
from daguerre.models.catalog import Catalog
from daguerre.models.denoiser import Denoiser
from daguerre.models.forward import Answer, DraftStep, Forward
from daguerre.models.wrappers.explaining import Explained
from daguerre.models.wrappers.guidance import Guided
from daguerre.models.wrappers.steering import Steered
from daguerre.sampling.random import Counter
from daguerre.trace import Event, History

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone


class Sample:
    """One sample in progress: `advance` it until it is done, then take the `result`. Between steps the caller may
    `change` the canvas.

    `bound` is the most forwards that the sample may have taken when it is done; a change updates it.
    """

    def __init__(
        self, denoiser: Denoiser, plan: Plan, sample: int, timeout: float | None, clock: Clock | None = None
    ) -> None:
        decode, constraint = plan.decode, plan.constraint
        self.plan, self.canvas, self.bound = plan, plan.canvas, plan.max_forwards
        self.events = History(plan.canvas)
        self.backend = denoiser.backend
        self._backbone = _with_heads(denoiser) if decode.uses_concepts else None
        self._controls = self._steering()
        session = wrapped(denoiser, plan, self._controls, decode.explain).session(plan.canvas, decode.cache)
        sampler = TokenSampler(
            decode.sampling,
            Counter(decode.seed, sample),
            not plan.mode.autoregressive,
            None if constraint is None else replace(constraint),
            decode.commit_policy.reads,
            decode.ranks_as_drawn,
        )
        self._searched = plan.searched if sample == 0 else None
        self.deadline = Deadline(timeout, clock, 0.0 if self._searched is None else self._searched.seconds)
        self._run, self._cut = Run(plan, session, sampler, self.deadline), False
        self._steps = self.plan.mode.run(self._run, plan.canvas)

    def _steering(self) -> ProgramControls | None:
        """What the request's steering comes to; None where it has none."""
        if self._backbone is None or not self.plan.decode.steering:
            return None
        return controls(self.plan.decode.steering, self._backbone, self._catalog)

    @property
    def _catalog(self) -> Catalog:
        assert self.plan.config.concepts is not None
        return self.plan.catalog or Catalog.numbered(self.plan.config.concepts)

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

    def beside(self, crowd: int) -> None:
        """Its next forward is computed with those of others: as many texts in all."""
        self._run.crowd = crowd

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
        self._steps = self.plan.mode.run(self._run, changed)
        return event

    @property
    def _all_gaps(self) -> Span:
        return self.canvas.gaps[0][0], self.canvas.gaps[-1][1]

    def _add(self, event: Event) -> None:
        self.canvas = event.canvas
        self.events.add(event)

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
        explained = None
        if self.plan.decode.explain:
            assert self._backbone is not None
            explained = partial(explain_run, self._backbone, self._catalog, self._controls, self.events)
        return make_result(self.plan, self.canvas, self.events, counts, self.deadline.passed(), self._cut, explained)


def wrapped(denoiser: Denoiser, plan: Plan, steered: ProgramControls | None, explain: bool) -> Denoiser:
    """The denoiser with what a request adds, in this order: evidence, steering, guidance."""
    guidance = plan.decode.logit_guidance
    if explain:
        denoiser = Explained(denoiser)
    if steered is not None:
        denoiser = Steered(denoiser, steered)
    return denoiser if guidance is None else Guided(denoiser, guidance, plan.unconditional)


def _with_heads(denoiser: Denoiser) -> Backbone:
    """The backbone of a denoiser, whose concept heads explain and steer. UnsupportedError where there are none."""
    backbone: Backbone | None = None if denoiser.config.concepts is None else getattr(denoiser, "backbone", None)
    if backbone is None:
        raise no_concept_heads()
    return backbone
