"""One sample of a request, from its plan to its result, and the drivers, which compute the forwards that samples yield:
`drive` for one, `Together` for many.

A sample never calls a model. It yields forwards and continues once it is sent their answers, so samples that are driven
together share batches, and none of them depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from daguerre.canvas import Canvas, Decision, Span
from daguerre.decoding.denoise import Clock, Deadline, Run
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import (
    Reader,
    Result,
    StreamEvent,
    committed_text,
    draft_text,
    has_ended,
    make_result,
)
from daguerre.decoding.sampler import TokenSampler
from daguerre.errors import InputError, no_concept_heads
from daguerre.kinds import Call, Kind, Number
from daguerre.models.catalog import Catalog
from daguerre.models.denoiser import Denoiser
from daguerre.models.drafting_model import DraftingModel, DraftingSession
from daguerre.models.forward import Answer, Backend, DraftStep, Forward
from daguerre.models.heads import Heads
from daguerre.models.session import Session
from daguerre.sampling.random import Counter
from daguerre.trace import Event, TraceStep


@dataclass
class History:
    """The events of a run, in order, as it adds them; another thread may read meanwhile. What is kept is what each has
    changed: the canvases are made again from the first one, which is `begin`, and the decisions.
    """

    begin: Canvas
    steps: list[TraceStep] = field(default_factory=list)
    _evidence: list[np.ndarray | None] = field(default_factory=list)
    _last: Canvas | None = None

    @property
    def last(self) -> Canvas:
        """The canvas after all events so far."""
        return self.begin if self._last is None else self._last

    def add(self, event: Event) -> None:
        """Add an event."""
        assert event.canvas.span is not None
        self._evidence.append(event.evidence)
        self.steps.append(TraceStep(event.step, event.canvas.span, event.decision))
        self._last = event.canvas

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Event]:
        return self.after(0, self.begin)

    def after(self, num: int, canvas: Canvas) -> Iterator[Event]:
        """The events after the first `num`, so far; `canvas` is the state of the text after these."""
        for step, evidence in zip(self.steps[num:], self._evidence[num:], strict=False):
            canvas = canvas.at(step.span).apply(step.decision)
            yield Event(step.step, step.decision, canvas, evidence)


if TYPE_CHECKING:
    from daguerre.decoding.steering import ProgramControls


class Sample:
    """One sample in progress: `advance` it until it is done, then take the `result`. Between steps the caller may
    `change` the canvas.
    """

    def __init__(
        self, denoiser: Denoiser, plan: Plan, sample: int, timeout: float | None, clock: Clock | None = None
    ) -> None:
        decode, constraint = plan.decode, plan.constraint
        self.plan, self.canvas = plan, plan.canvas
        self._bound: int | None = None
        self.events, self.backend = History(plan.canvas), denoiser.backend
        drafting, second = getattr(denoiser, "drafting", None), None
        if drafting is not None or decode.drafter == "second":
            second = self._drafted_by(drafting)
        self._heads: Heads | None = None
        self._controls: ProgramControls | None = None
        if decode.uses_concepts or decode.logit_guidance is not None:
            denoiser = self._wrapped(denoiser)
        session = denoiser.session(plan.canvas, decode.cache)
        rules = None if constraint is None else replace(constraint)
        sampler = TokenSampler(decode.sampling, Counter(decode.seed, sample), False, rules)
        if not plan.mode.autoregressive:
            sampler = replace(sampler, by_step=True, reads=decode.commit_policy.reads, as_drawn=decode.ranks_as_drawn)
        self._searched = plan.searched if sample == 0 else None
        self.deadline = Deadline(timeout, clock, 0.0 if self._searched is None else self._searched.seconds)
        times = getattr(self.backend, "row_times", None)  # which others than the native one do not keep
        self._run = Run(plan, session, sampler, self.deadline, session.counts, row_times=times, second=second)
        self._cut = False
        self._steps = self.plan.mode.run(self._run, plan.canvas)

    @property
    def bound(self) -> int:
        """The most forwards that the sample may have taken when it is done; a change updates it."""
        return self.plan.max_forwards if self._bound is None else self._bound

    def _drafted_by(self, drafting: DraftingModel | None) -> tuple[DraftingSession, Session] | None:
        """The second model's session, and the same with the scorer that changes the model's logits; None where it does
        not draft.
        """
        decode, canvas = self.plan.decode, self.plan.canvas
        if drafting is None:
            raise InputError('drafter="second" needs a second model: load it with drafts=MODEL, or leave out drafter')
        if "drafter" not in self.plan.mode.options or decode.drafter in ("head", "lookup"):
            return None
        self.backend, session = drafting.beside(self.backend), drafting.session(canvas)
        guiding = decode.logit_guidance
        if guiding is None or guiding.scorer is None:
            return session, session
        from daguerre.models.wrappers.guidance import GuidedSession

        return session, GuidedSession(session, guiding, None, None)

    def _wrapped(self, denoiser: Denoiser) -> Denoiser:
        """The denoiser with what the request adds, of its concepts and of guidance."""
        decode = self.plan.decode
        if decode.uses_concepts:
            self._heads = _heads_of(denoiser)
            if decode.steering:
                from daguerre.decoding.steering import controls

                self._controls = controls(decode.steering, self._heads, self._catalog)
        return wrapped(denoiser, self.plan, self._controls, decode.explain)

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
            self.canvas = item.canvas
            self.events.add(item)
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
        self.canvas = event.canvas
        self.events.add(event)
        self._bound = self.plan.bound_from(changed, counts.forwards)
        self._steps = self.plan.mode.run(self._run, changed)
        return event

    @property
    def _all_gaps(self) -> Span:
        return self.canvas.gaps[0][0], self.canvas.gaps[-1][1]

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
            from daguerre.decoding.explanation import explain_run

            assert self._heads is not None
            explained = partial(explain_run, self._heads, self._catalog, self._controls, self.events)
        seconds = self.deadline.clock() - self.deadline.started
        return make_result(self.plan, self.canvas, self.events.steps, counts, seconds, self._cut, explained)


def wrapped(denoiser: Denoiser, plan: Plan, steered: ProgramControls | None, explain: bool) -> Denoiser:
    """The denoiser with what a request adds, in this order: evidence, steering, guidance."""
    from daguerre.models.wrappers import explaining, guidance, steering

    if explain:
        denoiser = explaining.Explained(denoiser)
    if steered is not None:
        denoiser = steering.Steered(denoiser, steered)
    guiding = plan.decode.logit_guidance
    return denoiser if guiding is None else guidance.Guided(denoiser, guiding, plan.unconditional)


def _heads_of(denoiser: Denoiser) -> Heads:
    """The concept heads of a denoiser, which explain and steer. UnsupportedError where there are none."""
    heads: Heads | None = None if denoiser.config.concepts is None else getattr(denoiser, "heads", None)
    if heads is None:
        raise no_concept_heads()
    return heads


# ---- drivers --------------------------------------------------------------------------------------------------------


class Texts:
    """The texts after each event of a stream. What it decodes of an event is what is new in it."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._draft, self._firm = plan, Reader(plan), Reader(plan)

    def event(self, event: Event) -> StreamEvent:
        """An event with the texts after it."""
        plan, canvas = self._plan, event.canvas
        return StreamEvent(draft_text(plan, canvas, self._draft), committed_text(plan, canvas, self._firm), event)


class Follower:
    """Makes the events of a stream from a history that grows."""

    def __init__(self, plan: Plan, history: History) -> None:
        self._history, self._texts = history, Texts(plan)
        self._seen, self._canvas = 0, plan.canvas

    def new(self, every: bool = True) -> Iterator[StreamEvent]:
        """The events of the history that are new; `every`: False leaves out all but the last."""
        num = len(self._history)
        for event in self._history.after(self._seen, self._canvas):
            self._seen, self._canvas = self._seen + 1, event.canvas
            if every or self._seen >= num:
                yield self._texts.event(event)

    @property
    def num_new(self) -> int:
        """How many events are new."""
        return len(self._history) - self._seen


def drive(sample: Sample) -> Iterator[Event]:
    """The events of a sample, as they come. The time of each step is charged to the deadline; the time between events,
    in which the caller works, is not.
    """
    backend, deadline = sample.backend, sample.deadline
    answers: list[Answer] | None = None
    while True:
        started = deadline.clock()
        item = sample.advance(answers)
        answers = None
        if isinstance(item, list):
            answers = backend.forward(item)
        deadline.busy += deadline.clock() - started
        if item is None:
            return
        if isinstance(item, Event):
            yield item


class Together:
    """Samples of one backend that are driven together: a step computes the forwards of all of them in one batch.

    A sample may be added at any time, and leaves as soon as it is done.
    """

    def __init__(self, backend: Backend, samples: Iterable[Sample] = ()) -> None:
        self.backend = backend
        self._waiting: dict[Sample, list[Forward | DraftStep]] = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Start a sample; it is part of the next step."""
        self._advance(sample, None)

    def __len__(self) -> int:
        """How many samples are not done."""
        return len(self._waiting)

    def step(self) -> None:
        """One batch: the next forwards of every sample. Each waits for all of the step, and is charged for it."""
        batches = dict(self._waiting)
        starts = {sample: sample.deadline.clock() for sample in batches}
        answers = iter(self.backend.forward([forward for batch in batches.values() for forward in batch]))
        for sample, batch in batches.items():
            self._advance(sample, [next(answers) for _ in batch])
        for sample, started in starts.items():
            sample.deadline.busy += sample.deadline.clock() - started

    def run(self) -> None:
        """Steps until every sample is done."""
        while self._waiting:
            self.step()

    def _advance(self, sample: Sample, answers: list[Answer] | None) -> None:
        """Run a sample up to its next forwards."""
        item = sample.advance(answers)
        while isinstance(item, Event):
            item = sample.advance()
        if item is None:
            self._waiting.pop(sample, None)
        else:
            self._waiting[sample] = item


TIMED: dict[str, Kind] = {
    "timeout": Number(low=0, above=True, infinite=True, none=True, what="a number of seconds"),
    "on_step": Call(none=True),
}
"""The kinds of the arguments of a run."""
OnStep = Callable[[StreamEvent], None]
"""Called with the events of `stream` while a request runs: one for each step, and the last, which has the result."""


def only_sample(denoiser: Denoiser, plan: Plan, timeout: float | None) -> Sample:
    """The one sample of a stream, before its first step. InputError where the plan asks for more."""
    if plan.decode.n != 1:
        raise InputError(f"a stream gives one sample and n={plan.decode.n}: leave out n")
    return Sample(denoiser, plan, 0, timeout)


def stream_events(one: Sample) -> Iterator[StreamEvent]:
    """The events of a sample, with the text after each, and its result."""
    texts = Texts(one.plan)
    for event in drive(one):
        yield texts.event(event)
    result = one.result()
    yield StreamEvent(result.text, result.text, None, result)


def run_samples(denoiser: Denoiser, plan: Plan, timeout: float | None, on_step: OnStep | None = None) -> Result:
    """The result of a plan, whose samples are driven together. on_step: called with each event of the only one."""
    if on_step is not None:
        TIMED["on_step"]("on_step", on_step)
        for event in stream_events(only_sample(denoiser, plan, timeout)):
            on_step(event)
        assert event.result is not None
        return event.result
    first, *others = [sample.result() for sample in driven(denoiser, plan, timeout)]
    return replace(first, others=tuple(others)) if others else first


def driven(denoiser: Denoiser, plan: Plan, timeout: float | None) -> list[Sample]:
    """The samples of a plan, driven together to their ends."""
    samples = [Sample(denoiser, plan, index, timeout) for index in range(plan.decode.n)]
    if len(samples) == 1:
        for _ in drive(samples[0]):
            pass
    else:
        Together(samples[0].backend, samples).run()
    return samples
