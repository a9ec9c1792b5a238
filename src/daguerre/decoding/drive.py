"""The drivers, which compute what samples yield: `drive` for one, `Together` for many; and what comes of both.

A sample never calls a model. It yields forwards and continues once it is sent their answers, so samples that are driven
together share batches, and none of them depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from daguerre.arguments import Call, Kind, Number, checks
from daguerre.decoding.plan import Plan
from daguerre.decoding.reading import Reader, committed_text, draft_text
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.sample import Sample
from daguerre.errors import InputError
from daguerre.models.denoiser import Denoiser
from daguerre.models.forward import Answer, Backend, DraftStep, Forward
from daguerre.trace import Event, History


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


@checks(TIMED)
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


@checks(TIMED)
def run_samples(denoiser: Denoiser, plan: Plan, timeout: float | None, on_step: OnStep | None = None) -> Result:
    """The result of a plan, whose samples are driven together. on_step: called with each event of the only one."""
    if on_step is not None:
        for event in stream_events(only_sample(denoiser, plan, timeout)):
            on_step(event)
        assert event.result is not None
        return event.result
    samples = [Sample(denoiser, plan, index, timeout) for index in range(plan.decode.n)]
    if len(samples) == 1:
        for _ in drive(samples[0]):
            pass
    else:
        Together(denoiser.backend, samples).run()
    first, *others = [sample.result() for sample in samples]
    return replace(first, others=tuple(others)) if others else first
