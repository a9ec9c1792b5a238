"""What a request gives back: its text, tokens, usage and trace; and the events of a stream."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from daguerre.canvas import Canvas
from daguerre.models.denoiser import Counts
from daguerre.plan import Plan
from daguerre.trace import Event, Trace

FinishReason = Literal["stop", "length", "timeout"]
OPEN = "░"
"""Stands for an open position in a draft."""


@dataclass(frozen=True)
class TokenInfo:
    """One token of a result; the texts of all of them join to the result's text.

    logprob is in nats, at temperature 1 over the full vocabulary; `step` is the forward that committed it, from 0;
    `confidence` is what the policy ranked it by. The first token's text lacks what healing took back.
    """

    text: str
    id: int
    logprob: float
    step: int
    confidence: float


@dataclass(frozen=True)
class Usage:
    """What a request took. `rows` were active in its forwards (open positions, seeds); settled ones are counted apart:
    `prefill_rows` of the caller's text, `settle_rows` of what was drawn. `seconds` are of the wall clock, prefill and
    all.
    """

    prompt_tokens: int
    completion_tokens: int
    forwards: int
    rows: int
    prefill_rows: int
    settle_rows: int
    seconds: float
    tokens_per_forward: float = field(init=False)
    tokens_per_second: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens_per_forward", self.completion_tokens / max(1, self.forwards))
        object.__setattr__(self, "tokens_per_second", self.completion_tokens / max(self.seconds, 1e-9))


@dataclass(frozen=True)
class Result:
    """One sample. `choices` are all samples of the request, this one first."""

    text: str
    tokens: tuple[TokenInfo, ...]
    finish_reason: FinishReason
    usage: Usage
    trace: Trace = field(repr=False)
    others: tuple[Result, ...] = field(default=(), repr=False)

    @property
    def choices(self) -> tuple[Result, ...]:
        """This sample and the others, in the order of their number."""
        return (self, *self.others)


@dataclass(frozen=True)
class StreamEvent:
    """A request under way.

    `text` is the whole draft, OPEN at open positions; `committed` is the beginning of it that no policy, stop string or
    byte to come can change, and never shrinks. The last event has the `result`; the others the `step` they tell of.
    """

    text: str
    committed: str
    step: Event | None = field(default=None, repr=False)
    result: Result | None = None


@dataclass(frozen=True)
class Reading:
    """The text of a canvas up to its first open position: positions and texts of its tokens, and whether it ended."""

    positions: tuple[int, ...]
    texts: tuple[str, ...]
    stopped: bool

    @property
    def text(self) -> str:
        return "".join(self.texts)


def read(plan: Plan, canvas: Canvas, *, done: bool) -> Reading:
    """Read what the gap of `canvas` says so far. With `done`, half a character at the end becomes U+FFFD."""
    table, start = plan.healing.table.of, plan.gap[0]
    drawn = canvas.filled(plan.gap)
    length, ended = _end(plan, canvas, drawn)
    drawn = drawn[:length]
    skip = len(plan.healing.text)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    positions, texts = [], []
    for position, token in enumerate(drawn.tolist(), start):
        piece = table[token]
        new, skip = piece[skip:], max(0, skip - len(piece))
        if new:
            positions.append(position)
            texts.append(decoder.decode(new))
    if texts:
        texts[-1] += decoder.decode(b"", final=done or ended)
    return _cut(Reading(tuple(positions), tuple(texts), ended), plan.decode.stop)


def stopped(plan: Plan, canvas: Canvas) -> bool:
    """`read(...).stopped`: whether the text ends in what is committed; nothing is decoded where no stop string is."""
    if plan.decode.stop:
        return read(plan, canvas, done=False).stopped
    return _end(plan, canvas, canvas.filled(plan.gap))[1]


def _end(plan: Plan, canvas: Canvas, drawn: np.ndarray) -> tuple[int, bool]:
    """How many of the drawn tokens come before an ending, and whether there is one within the budget."""
    ends = np.flatnonzero(drawn == plan.ending) if plan.ending is not None else np.zeros(0)
    if not ends.size:
        return len(drawn), False
    return int(ends[0]), plan.gap[0] + int(ends[0]) < plan.healing.end(canvas)


def _cut(reading: Reading, stop: Sequence[str]) -> Reading:
    """The reading before the first stop string in it."""
    text = reading.text
    places = [place for place in (text.find(s) for s in stop) if place >= 0]
    if not places:
        return reading
    left, texts = min(places), []
    for piece in reading.texts:
        if left <= 0:
            break
        texts.append(piece[:left])
        left -= len(piece)
    return Reading(reading.positions[: len(texts)], tuple(texts), stopped=True)


def committed_text(plan: Plan, canvas: Canvas) -> str:
    """The text that nothing to come can change: what is read, less a tail that may yet become a stop string."""
    reading = read(plan, canvas, done=False)
    text = reading.text
    if reading.stopped:
        return text
    held = [n for stop in plan.decode.stop for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return text[: len(text) - max(held, default=0)]


def draft_text(plan: Plan, canvas: Canvas) -> str:
    """The whole draft: what is read, then committed tokens with OPEN between them, to the end of what is denoised."""
    reading = read(plan, canvas, done=False)
    start = plan.gap[0] + len(canvas.filled(plan.gap))
    end = plan.gap[1] if plan.infilling or canvas.span is None else canvas.span[1]
    if reading.stopped or start >= end:
        return reading.text
    table = plan.healing.table.of
    parts = [reading.text.encode()]
    for position in range(start, end):
        token = int(canvas.tokens[position])
        if not canvas.open[position] and token == plan.ending:
            break
        parts.append(OPEN.encode() if canvas.open[position] else table[token])
    return b"".join(parts).decode("utf-8", errors="replace")


def make_result(plan: Plan, canvas: Canvas, events: Sequence[Event], counts: Counts, seconds: float) -> Result:
    """The result of a run that is over, be it finished or late."""
    reading = read(plan, canvas, done=True)
    facts: dict[int, tuple[int, float, float]] = {}
    for event in events:
        d = event.decision
        for position, probability, confidence in zip(
            d.positions.tolist(), d.probabilities.tolist(), d.confidence.tolist(), strict=True
        ):
            facts[position] = (event.step, probability, confidence)
    tokens = []
    for position, text in zip(reading.positions, reading.texts, strict=True):
        step, probability, confidence = facts[position]
        logprob = float(np.log(max(probability, np.finfo(np.float64).tiny)))
        tokens.append(TokenInfo(text, int(canvas.tokens[position]), logprob, step, confidence))
    reason: FinishReason = "stop" if reading.stopped else "length" if plan.finished(canvas) else "timeout"
    usage = Usage(
        plan.num_prompt, len(tokens), counts.forwards, counts.rows, counts.prefill_rows, counts.settle_rows, seconds
    )
    return Result(reading.text, tuple(tokens), reason, usage, Trace.record(plan.canvas, events))
