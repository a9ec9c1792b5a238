"""The main path: `denoise`, and `generate`, `infill` and `stream` around it.

The life of a token: a request's texts become a canvas with one gap (`plan.make_plan`); the last word before the gap is
drawn again where it was cut (`_heal`); then, span by span, the denoiser is asked for logits at the open positions, the
rules ban what may not be drawn, a token is drawn for each, the policy decides which to commit, the canvas is replaced.
What is committed is read as text (`result.read`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import InputError
from daguerre.models.denoiser import Denoiser, Session
from daguerre.models.tokenizer import Tokenizer
from daguerre.plan import Plan, Text, make_plan
from daguerre.result import Result, StreamEvent, committed_text, draft_text, make_result, stopped
from daguerre.sampling.decode import Decode
from daguerre.sampling.logits import Law, Proposals, biased, propose
from daguerre.sampling.policies.base import Policy, Progress, commit
from daguerre.sampling.random import TOKEN, Counter
from daguerre.sampling.rules import Rule, ban, complete, eligible
from daguerre.trace import Event

MAX_TOKENS = 64
INFILL_TOKENS = 24
"""A gap unless told: well within the lengths of text and <null> that infilling is trained with."""

Steps = Generator[Event, None, Canvas]


@dataclass(frozen=True)
class Draw:
    """How tokens are drawn. Without `by_step` a position's random number is the same in every step (mode "ar")."""

    law: Law
    rng: Counter
    by_step: bool = True

    def __call__(
        self, canvas: Canvas, asked: np.ndarray, logits: np.ndarray, rules: Sequence[Rule], step: int
    ) -> Proposals:
        """A token for each asked position (A,), from its logits (A, V) under the rules."""
        own = biased(logits, self.law)
        ban(rules, canvas, asked, own)
        greedy = self.law.temperature == 0
        u = np.zeros(len(asked)) if greedy else self.rng.uniform(TOKEN, asked, step if self.by_step else 0)
        return propose(asked, own, self.law, u)


def never() -> bool:
    return False


def denoise(
    session: Session,
    policy: Policy,
    canvas: Canvas,
    draw: Draw,
    rules: Sequence[Rule] = (),
    late: Callable[[], bool] = never,
) -> Steps:
    """Fill the active span of `canvas`: yields one event a step, returns the canvas; who iterates observes.

    Takes at most `policy.bound` forwards, and the last of them commits everything still open. Ends early, with open
    positions, once `late()` is true.
    """
    num_start = len(canvas.asked())
    bound = policy.bound(num_start)
    for step in range(bound):
        asked = canvas.asked()
        if not asked.size or late():
            break
        request_step = session.counts.forwards
        proposals = draw(canvas, asked, session.logits(canvas, asked), rules, request_step)
        if step + 1 < bound:
            ready = proposals.keep(eligible(rules, canvas, proposals))
            decision = policy.decide(ready, Progress(step, request_step, num_start), draw.rng)
        else:
            decision = commit(proposals, np.ones(len(proposals), dtype=bool))
        decision = complete(rules, canvas, decision)
        canvas = canvas.apply(decision)
        yield Event(request_step, decision, canvas)
    return canvas


def run(session: Session, plan: Plan, draw: Draw, late: Callable[[], bool] = never) -> Steps:
    """A whole request: heal, then one span after the other until the text ends, the budget does, or it is late."""
    policy = plan.decode.rule_of_commit
    canvas = yield from _heal(session, plan, draw, late)
    if late() or plan.healing.where(canvas)[1]:
        return canvas
    rules = plan.rules(canvas)
    for span in plan.spans(canvas):
        canvas = yield from denoise(session, policy, canvas.at(span), draw, rules, late)
        if late() or stopped(plan, canvas):
            break
    return canvas


def _heal(session: Session, plan: Plan, draw: Draw, late: Callable[[], bool]) -> Steps:
    """Draw again what was taken back from the prefix, one token at a time."""
    canvas, policy = plan.canvas, plan.decode.rule_of_commit
    while plan.healing.where(canvas)[1] and not late():
        position = plan.healing.where(canvas)[0]
        span = (position, position + 1)
        canvas = yield from denoise(session, policy, canvas.at(span), draw, [plan.healing], late)
    return canvas


class Sample:
    """One sample under way: iterate `steps`, then take the `result`."""

    def __init__(self, denoiser: Denoiser, plan: Plan, sample: int, timeout: float | None) -> None:
        self.plan, self.canvas = plan, plan.canvas
        self.events: list[Event] = []
        self._session = denoiser.session(plan.canvas, plan.decode.cache)
        self._draw = Draw(plan.decode.law, Counter(plan.decode.seed, sample), by_step=plan.decode.mode != "ar")
        self._started = time.perf_counter()
        self._deadline = math.inf if timeout is None else self._started + timeout

    def _late(self) -> bool:
        return time.perf_counter() >= self._deadline

    def steps(self) -> Iterator[Event]:
        """Events of the run, as they come."""
        for event in run(self._session, self.plan, self._draw, self._late):
            self.canvas = event.canvas
            self.events.append(event)
            yield event

    def result(self) -> Result:
        """What the run gave, once `steps` is exhausted."""
        seconds = time.perf_counter() - self._started
        return make_result(self.plan, self.canvas, self.events, self._session.counts, seconds)


def _sample(denoiser: Denoiser, plan: Plan, sample: int, timeout: float | None) -> Result:
    one = Sample(denoiser, plan, sample, timeout)
    for _ in one.steps():
        pass
    return one.result()


def _request(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prefix: Text,
    suffix: Text | None,
    max_tokens: int,
    heal: bool | None,
    timeout: float | None,
    decode: Decode | None,
    options: dict[str, Any],
) -> Plan:
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise InputError(f"timeout must be a number of seconds above 0, not {timeout}")
    return make_plan(denoiser.config, tokenizer, Decode.of(decode, **options), prefix, suffix, max_tokens, heal)


def generate(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompt: Text,
    max_tokens: int = MAX_TOKENS,
    decode: Decode | None = None,
    *,
    heal: bool | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Result:
    """Continue `prompt`, a text or its token ids, by at most `max_tokens`.

    `options` are fields of `Decode` and go before those of `decode`. heal: draw again a last word that may have been
    cut; the result's text follows the prompt byte for byte either way. timeout: seconds, after which the result has
    what is committed so far. With n samples, the result is the first and `choices` are all.
    """
    plan = _request(denoiser, tokenizer, prompt, None, max_tokens, heal, timeout, decode, options)
    return _all_samples(denoiser, plan, timeout)


def infill(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prefix: Text,
    suffix: Text,
    max_tokens: int = INFILL_TOKENS,
    decode: Decode | None = None,
    *,
    heal: bool | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Result:
    """What goes between `prefix` and `suffix`, at most `max_tokens`; exactly as many with `min_tokens` equal to it.

    With nothing behind the gap it is a completion, which <eos> ends: an empty suffix is `generate`. Other arguments are
    those of `generate`. UnsupportedError for a model that cannot see a suffix.
    """
    if suffix is None:
        raise InputError("infill needs the text behind the gap: give a suffix, or call generate")
    plan = _request(denoiser, tokenizer, prefix, suffix, max_tokens, heal, timeout, decode, options)
    return _all_samples(denoiser, plan, timeout)


def stream(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompt: Text,
    max_tokens: int | None = None,
    decode: Decode | None = None,
    *,
    suffix: Text | None = None,
    heal: bool | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Iterator[StreamEvent]:
    """`generate`, or with a `suffix` `infill`, as events: one for each step, and a last one that has the result.

    max_tokens: None is the default of the one or the other. Wrong arguments raise at the call, not at the first event.
    """
    if max_tokens is None:
        max_tokens = MAX_TOKENS if suffix is None else INFILL_TOKENS
    plan = _request(denoiser, tokenizer, prompt, suffix, max_tokens, heal, timeout, decode, options)
    if plan.decode.n != 1:
        raise InputError(f"a stream gives one sample and n={plan.decode.n}: leave out n")
    return _stream(Sample(denoiser, plan, 0, timeout))


def _stream(one: Sample) -> Iterator[StreamEvent]:
    for event in one.steps():
        yield StreamEvent(draft_text(one.plan, event.canvas), committed_text(one.plan, event.canvas), event)
    result = one.result()
    yield StreamEvent(result.text, result.text, None, result)


def _all_samples(denoiser: Denoiser, plan: Plan, timeout: float | None) -> Result:
    first, *others = (_sample(denoiser, plan, index, timeout) for index in range(plan.decode.n))
    return replace(first, others=tuple(others)) if others else first
