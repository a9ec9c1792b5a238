"""The main path: `denoise`, beside it `speculate`, and `generate`, `infill` and `stream` around them.

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

from daguerre.canvas import Canvas, Decision
from daguerre.errors import InputError
from daguerre.models.denoiser import Denoiser, Session
from daguerre.models.tokenizer import Tokenizer
from daguerre.plan import Plan, Text, make_plan
from daguerre.result import Result, StreamEvent, committed_text, draft_text, has_ended, make_result
from daguerre.sampling.decode import Decode
from daguerre.sampling.logits import Law, Proposals, biased, propose
from daguerre.sampling.policies.base import Policy, Progress, commit
from daguerre.sampling.random import TOKEN, Counter
from daguerre.sampling.rules import Rule, ban, complete, eligible
from daguerre.trace import Event

MAX_TOKENS = 64
INFILL_TOKENS = 24
"""A gap unless told: well within the lengths of text and <null> that infilling is trained with."""

WORTH = 0.05
"""A drafted token is put to the test while the draft gives itself and those before it at least this probability."""

Steps = Generator[Event, None, Canvas]
Over = Callable[[Canvas], bool]
"""Whether a run is to end early at this canvas: its text has ended, or its time."""


@dataclass(frozen=True)
class Draw:
    """How tokens are drawn. Without `by_step` a position's random number is the same in every step: modes "ar" and
    "speculative".
    """

    law: Law
    rng: Counter
    by_step: bool = True

    def __call__(
        self, canvas: Canvas, asked: np.ndarray, logits: np.ndarray, rules: Sequence[Rule], step: int
    ) -> Proposals:
        """A token for each asked position (A,), from its logits (A, V) under the rules."""
        own = biased(logits, self.law)
        ban(rules, canvas, asked, own)
        return propose(asked, own, self.law, self.rng.uniform(TOKEN, asked, step if self.by_step else 0))


def never(canvas: Canvas) -> bool:
    return False


def denoise(
    session: Session,
    policy: Policy,
    canvas: Canvas,
    draw: Draw,
    rules: Sequence[Rule] = (),
    over: Over = never,
) -> Steps:
    """Fill the active span of `canvas`: yields one event a step, returns the canvas; who iterates observes.

    Takes at most `policy.bound` forwards, and the last of them commits everything still open. Ends early, with open
    positions, once the canvas is `over`.
    """
    num_start = len(canvas.asked())
    bound = policy.bound(num_start)
    for step in range(bound):
        asked = canvas.asked()
        if not asked.size or over(canvas):
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


def speculate(
    session: Session,
    canvas: Canvas,
    draw: Draw,
    rules: Sequence[Rule],
    size: int,
    over: Over = never,
) -> Steps:
    """Fill the active span with the tokens that one span of one position after the other would get, in fewer forwards.

    A forward verifies a draft of fewer than `size` tokens against the autoregressive law: what that draws stands, up to
    the first token that the draft has otherwise. The same forward drafts what comes behind each place where this may
    be. It commits one token or more, and none that mode "ar" would not draw.
    """
    assert canvas.span is not None
    (start, end), draft = canvas.span, np.zeros(0, dtype=np.int64)
    while start < end and not over(canvas):
        step = session.counts.forwards
        verified = session.verify(canvas.at((start, end)), draft, size - 1)
        canvas, decision = _agreed(canvas, start, draft, verified.logits, draw, rules, over)
        num = len(decision)
        session.counts.drafted += len(draft)
        session.counts.accepted += int((decision.tokens[: len(draft)] == draft[:num]).sum())
        canvas = canvas.at((start, start + num))
        yield Event(step, decision, canvas)
        start += num
        if not over(canvas):
            draft = _draft(canvas, start, verified.behind(num - 1), draw, rules)
    return canvas


def _agreed(
    canvas: Canvas,
    start: int,
    draft: np.ndarray,
    logits: np.ndarray,
    draw: Draw,
    rules: Sequence[Rule],
    over: Over,
) -> tuple[Canvas, Decision]:
    """What the autoregressive law, logits (D + 1, V), draws from `start` on: as far as it draws the draft (D,), and one
    token more.
    """
    decisions: list[Decision] = []
    for position, row in enumerate(logits, start):
        canvas = canvas.at((position, position + 1))
        proposals = draw(canvas, canvas.asked(), row[None], rules, 0)
        decisions.append(complete(rules, canvas, commit(proposals, np.ones(1, dtype=bool))))
        canvas = canvas.apply(decisions[-1])
        if not np.array_equal(decisions[-1].tokens, draft[position - start :][:1]) or over(canvas):
            break
    return canvas, Decision.join(decisions)


def _draft(canvas: Canvas, start: int, logits: np.ndarray, draw: Draw, rules: Sequence[Rule]) -> np.ndarray:
    """Tokens (D,) for the positions from `start` on, from their logits (A, V), as far as they are worth a test.

    The most likely ones at every temperature: at 1 more of them stand than of tokens drawn by the same random numbers
    from a law that knows less (docs/log.md).
    """
    likely = replace(draw, law=replace(draw.law, temperature=0.0))
    proposals = likely(canvas, start + np.arange(len(logits)), logits, rules, 0)
    return proposals.tokens[np.cumprod(proposals.probabilities) >= WORTH]


def run(session: Session, plan: Plan, draw: Draw, late: Callable[[], bool]) -> Steps:
    """A whole request: heal, then one span after the other until the text ends, the budget does, or it is late."""
    decode = plan.decode
    canvas = yield from _heal(session, plan, draw, late)
    if plan.healing.where(canvas)[1]:
        return canvas
    rules = plan.rules(canvas)

    def over(now: Canvas) -> bool:
        return late() or has_ended(plan, now)

    for span in plan.spans(canvas):
        if over(canvas):
            break
        if decode.mode == "speculative":
            canvas = yield from speculate(session, canvas.at(span), draw, rules, decode.draft_size, over)
        else:
            canvas = yield from denoise(session, decode.rule_of_commit, canvas.at(span), draw, rules, over)
    return canvas


def _heal(session: Session, plan: Plan, draw: Draw, late: Callable[[], bool]) -> Steps:
    """Draw again what was taken back from the prefix, one token at a time."""
    canvas, policy = plan.canvas, plan.decode.rule_of_commit
    while plan.healing.where(canvas)[1] and not late():
        position = plan.healing.where(canvas)[0]
        span = (position, position + 1)
        canvas = yield from denoise(session, policy, canvas.at(span), draw, [plan.healing], lambda now: late())
    return canvas


class Sample:
    """One sample under way: iterate `steps`, then take the `result`."""

    def __init__(self, denoiser: Denoiser, plan: Plan, sample: int, timeout: float | None) -> None:
        self.plan, self.canvas = plan, plan.canvas
        self.events: list[Event] = []
        self._session = denoiser.session(plan.canvas, plan.decode.cache)
        self._draw = Draw(plan.decode.law, Counter(plan.decode.seed, sample), by_step=not plan.decode.autoregressive)
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
