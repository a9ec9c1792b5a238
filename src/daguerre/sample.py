"""One sample of a request, from its plan to its result: `run` heals, then fills span by span; `Sample` holds it.

The last word before a gap is drawn again where it was cut (`_heal`); a span is filled by `denoise.denoise` or
`denoise.speculate`, and read again where that is asked (`_revise`). What is committed is read as text (`result.read`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from daguerre.beam import fill_by_beam
from daguerre.canvas import Canvas, Decision, Run
from daguerre.denoise import Draw, Least, Over, Steps, denoise, read_draft, speculate
from daguerre.models.denoiser import Counts, Denoiser, Session
from daguerre.noise.process import process_of
from daguerre.plan import Plan
from daguerre.result import Result, has_ended, make_result, num_as_drafted
from daguerre.sampling.ancestral import ancestral
from daguerre.sampling.deadline import Clock, Deadline
from daguerre.sampling.draft import Alignment
from daguerre.sampling.guidance import Guided
from daguerre.sampling.logits import biased, tempered
from daguerre.sampling.random import Counter
from daguerre.sampling.revision import readings, revise
from daguerre.sampling.rules import Rule, ban
from daguerre.trace import Event


def run(session: Session, plan: Plan, canvas: Canvas, draw: Draw, deadline: Deadline) -> Steps:
    """What is left of a request at `canvas`: heal, then one span after the other until the text ends, the budget does,
    or it is late. Spans before the active one are over.

    Where time is short a span is widened, so that the forwards left reach the end of the budget.
    """
    decode, late, begun = plan.decode, deadline.late, 0 if canvas.span is None else canvas.span[0]
    if decode.mode == "beam":
        return (yield from _search(session, plan, canvas.at(canvas.gaps[0]), late))
    canvas = yield from _heal(session, plan, canvas, draw, late)
    if not plan.healed(canvas):
        return canvas
    if decode.mode == "ancestral":
        return (yield from _undo_noise(session, plan, canvas, draw, late))
    rules = plan.rules(canvas)

    def over(now: Canvas) -> bool:
        return late() or has_ended(plan, now)

    def within(now: Canvas) -> bool:  # a span that is read again is finished first
        return late() if decode.revise else over(now)

    def least(now: Canvas) -> int:
        return deadline.least(plan.num_opened(now), session.counts)

    origin, draft = plan.drafted(canvas)
    session.counts.rejected_prediction_tokens = len(draft)
    spans, reached = plan.spans(canvas), 0
    tested = decode.mode == "speculative" or (decode.autoregressive and draft.size > 0)
    if tested and spans:
        spans = [(spans[0][0], spans[-1][1])]
    for span in spans:
        if over(canvas):
            break
        if span[1] <= max(begun, reached):
            continue
        if tested:
            given = Alignment(draft) if len(draft) else None
            canvas = yield from speculate(session, canvas.at(span), draw, rules, decode.draft_size, over, given)
        else:
            own = draft[max(0, span[0] - origin) : max(0, span[1] - origin)]
            if own.size:
                canvas = yield from read_draft(session, canvas.at(span), own, draw, rules, decode.threshold)
            started = canvas.at((max(span[0], reached), span[1]))
            canvas = yield from _fill(session, plan, started, draw, rules, within, least)
            reached = canvas.span[1] if canvas.span else reached
            canvas = yield from _revise(session, plan, canvas, draw, late)
    if not tested:
        session.counts.accept(num_as_drafted(plan, canvas))
    return canvas


def _search(session: Session, plan: Plan, canvas: Canvas, late: Callable[[], bool]) -> Steps:
    """Fill the gap with the best of what a beam finds, in one event."""
    decision = fill_by_beam(session, plan, late)
    if decision is not None:
        canvas = canvas.apply(decision)
        yield Event(session.counts.forwards - 1, decision, canvas)
    return canvas


def _undo_noise(session: Session, plan: Plan, canvas: Canvas, draw: Draw, late: Callable[[], bool]) -> Steps:
    """Write all gaps by the posterior of the model's process, with the law of the request in place of the model's."""
    rules, canvas = plan.rules(canvas), canvas.at((canvas.gaps[0][0], canvas.gaps[-1][1]))

    def probs(tokens_BL: Tensor, t: float, asked: np.ndarray) -> Tensor:
        logits = biased(session.noisy_logits(tokens_BL, t, asked)[0], draw.law)
        ban(rules, canvas, asked, logits)
        return torch.from_numpy(tempered(logits, draw.law))[None]

    steps = plan.decode.steps or len(canvas.asked())
    return (yield from ancestral(process_of(plan.config), probs, canvas, draw.rng, steps, late))


def _fill(
    session: Session, plan: Plan, canvas: Canvas, draw: Draw, rules: Sequence[Rule], over: Over, least: Least
) -> Steps:
    """Denoise the active span, which grows once time is too short for those behind it."""

    def wanted(now: Canvas) -> Run:
        assert now.span is not None
        return now.span if plan.decode.autoregressive else plan.widened(now, now.span, least(now))

    def narrow(now: Canvas) -> bool:
        return over(now) or wanted(now) != now.span

    while canvas.asked().size and not over(canvas):
        canvas = canvas.at(wanted(canvas))
        canvas = yield from denoise(session, plan.decode.rule_of_commit, canvas, draw, rules, narrow, least)
    return canvas


def _revise(session: Session, plan: Plan, canvas: Canvas, draw: Draw, late: Callable[[], bool]) -> Steps:
    """Read the finished span again, up to `revise` times, and replace what the model no longer believes in."""
    decode, never = plan.decode, plan.config.ends
    for _ in range(decode.revise):
        positions, step, found = plan.revisable(canvas), session.counts.forwards, []
        if not positions.size:
            break
        for now, asked in readings(canvas, positions, decode.revise_reading):
            if late():
                return canvas
            found.append(biased(session.logits(now, asked), draw.law))
        logits = np.concatenate(found)
        logits[:, never] = -np.inf
        decision = revise(canvas, positions, logits, decode.revise_threshold, reading=decode.revise_reading)
        if not len(decision):
            break
        canvas = canvas.apply(decision)
        yield Event(step, decision, canvas)
    return canvas


def _heal(session: Session, plan: Plan, canvas: Canvas, draw: Draw, late: Callable[[], bool]) -> Steps:
    """Draw again what was taken back before each gap, one token at a time."""
    policy = plan.decode.rule_of_commit
    for slot in plan.slots:
        while slot.healing.where(canvas)[1] and not late():
            position = slot.healing.where(canvas)[0]
            span = (position, position + 1)
            canvas = yield from denoise(session, policy, canvas.at(span), draw, [slot.healing], lambda now: late())
    return canvas


class Sample:
    """One sample under way: iterate `steps`, then take the `result`. Between steps its caller may `change` the canvas.

    `bound` is the most forwards that it may have taken when it is done; a change sets it anew.
    """

    def __init__(
        self, denoiser: Denoiser, plan: Plan, sample: int, timeout: float | None, clock: Clock | None = None
    ) -> None:
        self.plan, self.canvas, self.bound = plan, plan.canvas, plan.bound
        self.events: list[Event] = []
        leaning = plan.decode.leaning
        asked = denoiser if leaning is None else Guided(denoiser, leaning, plan.other)
        self._session = asked.session(plan.canvas, plan.decode.cache)
        decode, rng = plan.decode, Counter(plan.decode.seed, sample)
        self._draw = Draw(decode.law, rng, not decode.autoregressive, plan.constraint)
        self._searched = plan.searched if sample == 0 else None
        self._deadline = Deadline(timeout, clock, 0.0 if self._searched is None else self._searched.seconds)
        self._cut = False
        self._steps = run(self._session, plan, plan.canvas, self._draw, self._deadline)

    def steps(self) -> Iterator[Event]:
        """Events of the run, as they come, and its caller's changes among them; where it is late and constrained, one
        more that completes its texts.
        """
        num = 0
        while num < len(self.events) or self._step():
            num += 1
            yield self.events[num - 1]

    def change(self, decision: Decision) -> None:
        """Apply a decision of the caller's, and go on from there. InputError, and nothing is changed, where it does not
        fit the canvas, or leaves the constraint no text.
        """
        changed = self.canvas.apply(decision)
        opened = [(start, end) for start, end in self.plan.spans(changed) if changed.open[start:end].any()]
        changed = changed.at(min([*opened[:1], self.canvas.span or self._all_gaps]))
        if self.plan.constraint is not None:
            self.plan.constraint.check(changed, 1)
        self._add(Event(self._session.counts.forwards, decision, changed))
        self.bound = self.plan.bound_from(changed, self._session.counts.forwards)
        self._steps = run(self._session, self.plan, changed, self._draw, self._deadline)

    @property
    def _all_gaps(self) -> Run:
        return self.canvas.gaps[0][0], self.canvas.gaps[-1][1]

    def _add(self, event: Event) -> None:
        self.canvas = event.canvas
        self.events.append(event)

    def _step(self) -> bool:
        """Add the next event; False when the run is over."""
        event = next(self._steps, None) or self._completion()
        if event is not None:
            self._add(event)
        return event is not None

    def _completion(self) -> Event | None:
        """Where the run was cut short under a constraint, the event that completes its texts."""
        cut = not (has_ended(self.plan, self.canvas) or self.plan.finished(self.canvas))
        self._cut |= cut
        if not cut or self.plan.constraint is None:
            return None
        decision = self.plan.constraint.finish(self.canvas)
        return Event(self._session.counts.forwards, decision, self.canvas.at(self._all_gaps).apply(decision))

    def result(self) -> Result:
        """What the run gave, once `steps` is exhausted."""
        searched = Counts() if self._searched is None else self._searched.counts
        counts, seconds = self._session.counts + searched, self._deadline.passed()
        return make_result(self.plan, self.canvas, self.events, counts, seconds, self._cut)
