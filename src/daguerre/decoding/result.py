"""The result of a request: its text, tokens, usage and trace; and the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.context import Context
from daguerre.decoding.explanation import Explanation, Place
from daguerre.decoding.plan import Plan, Search
from daguerre.decoding.reading import joined, read
from daguerre.decoding.steering import Steering
from daguerre.decoding.text_spans import unified_diff
from daguerre.models.session import Counts
from daguerre.trace import Event, Trace

FinishReason = Literal["stop", "length", "timeout"]


@dataclass(frozen=True)
class TokenInfo:
    """One token of a result; the texts of all of them join to those of the result's gaps.

    logprob is in nats, at temperature 1 over the full vocabulary; `step` is the forward that committed it, from 0;
    `confidence` is the number that the policy ranked it by. The first token's text is without the bytes that healing
    took back. A token that moved later (mode "expand") has the step that moved it last. A token that was kept from a
    draft, or pinned, has logprob None and step -1; one that a constraint committed without a forward has the step of
    the next forward (logprob 0 where no other token was allowed, -log V where time was up).
    """

    text: str
    id: int
    logprob: float | None
    step: int
    confidence: float


@dataclass(frozen=True)
class Usage:
    """What a request computed.

    `query_tokens` are rows of open positions, anchors, and tokens to verify. Other rows are counted apart:
    `prefill_tokens` of the caller's text, `finalized_tokens` of committed text, and `recomputed_tokens`, computed again
    because there is no cache. All of them together are `computed_tokens`; `reused_tokens` were read from the cache
    instead. `accepted` of the `drafted` tokens were right (mode "speculative"): `lookup_accepted` of the
    `lookup_drafted` ones, which came from the text itself, `head_accepted` of the `head_drafted` ones, which the model
    drafted, and the rest of the caller's draft. In `deadline_forced` forwards the timeout decided how much was
    committed. `accepted_prediction_tokens` and `rejected_prediction_tokens` are tokens of
    the caller's draft: those that the text has where they were expected, and the others. `seconds` are wall-clock time,
    prefill included. `mode` is the mode that ran, also where the request named none.
    """

    prompt_tokens: int
    completion_tokens: int
    forwards: int
    query_tokens: int
    prefill_tokens: int
    finalized_tokens: int
    recomputed_tokens: int
    reused_tokens: int
    drafted: int
    accepted: int
    lookup_drafted: int
    lookup_accepted: int
    head_drafted: int
    head_accepted: int
    deadline_forced: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    seconds: float
    mode: str = ""
    computed_tokens: int = field(init=False)
    tokens_per_forward: float = field(init=False)
    tokens_per_second: float = field(init=False)

    def __post_init__(self) -> None:
        computed = self.query_tokens + self.prefill_tokens + self.finalized_tokens + self.recomputed_tokens
        object.__setattr__(self, "computed_tokens", computed)
        object.__setattr__(self, "tokens_per_forward", self.completion_tokens / max(1, self.forwards))
        object.__setattr__(self, "tokens_per_second", self.completion_tokens / max(self.seconds, 1e-9))


SHOWN = 60
"""Characters of its text that the line of a result shows."""


@dataclass(frozen=True, repr=False)
class Result:
    """One sample. `choices` are all samples of the request, this one first.

    `texts` has one text for each gap. `text` is the text of the only gap, or all of a filled or edited text; `spans`
    are the places of the gaps in it, in characters. `original` is the text that was edited. `ignored` lists the parts
    of a schema that are not enforced, each as "keyword at place". `searched` is the search of the gap's
    length, where there was one. `concepts` says what the tokens' logits consist of, where the request asked for it
    (`explain`); `steering` is the program that steered them. `context` is what the model was shown of the text, which
    may be longer than its positions; None: token ids were given. `looped`: the text was ended because it repeated
    itself (`Decode.stop_loops`).
    """

    text: str
    texts: tuple[str, ...]
    tokens: tuple[TokenInfo, ...]
    finish_reason: FinishReason
    usage: Usage
    trace: Trace
    spans: tuple[tuple[int, int], ...] = ()
    original: str | None = field(default=None)
    ignored: tuple[str, ...] = ()
    searched: Search | None = field(default=None)
    concepts: Explanation | None = field(default=None)
    steering: Steering | None = field(default=None)
    context: Context | None = field(default=None)
    looped: bool = False
    others: tuple[Result, ...] = field(default=())

    @property
    def diff(self) -> str:
        """The changes of an edit, as a unified diff; empty where nothing was edited."""
        return "" if self.original is None else unified_diff(self.original, self.text)

    @property
    def choices(self) -> tuple[Result, ...]:
        """This sample and the others, in order."""
        return (self, *self.others)

    def __str__(self) -> str:
        """The text."""
        return self.text

    def __repr__(self) -> str:
        """One line: the text or its beginning, and how it was made."""
        text = self.text if len(self.text) <= SHOWN else self.text[: SHOWN - 1] + "…"
        made = f"{self.usage.completion_tokens} tokens in {self.usage.forwards} forwards, {self.usage.mode}"
        others = f", {len(self.choices)} choices" if self.others else ""
        return f"Result({text!r}, {made}, {self.finish_reason}{others})"


@dataclass(frozen=True)
class StreamEvent:
    """A request in progress.

    `text` is the whole draft, OPEN at open positions; `committed` is the beginning of it that no later step, stop
    string or byte can change; it never shrinks. The last event has the `result`; the others have their `step`.
    """

    text: str
    committed: str
    step: Event | None = field(default=None, repr=False)
    result: Result | None = None


def make_result(
    plan: Plan,
    canvas: Canvas,
    events: Iterable[Event],
    counts: Counts,
    seconds: float,
    late: bool,
    explained: Callable[[Sequence[Place]], Explanation] | None = None,
) -> Result:
    """The result of a run that is over; `late`: its time was up before it was finished. explained: the explanation of
    tokens, from their text, id and position; None: it was not asked for.
    """
    readings = read(plan, canvas, done=True)
    facts: dict[int, tuple[int, float, float]] = {}
    for event in events:
        d = event.decision
        for position, probability, confidence in zip(
            d.positions.tolist(), d.probabilities.tolist(), d.confidence.tolist(), strict=True
        ):
            facts[position] = (event.step, probability, confidence)
        for position in d.pin.tolist():
            del facts[position]
    tokens, places = list[TokenInfo](), list[Place]()
    for reading in readings.gaps:
        for position, text in zip(reading.positions, reading.texts, strict=True):
            token = int(canvas.tokens[position])
            places.append((text, token, position))
            if position not in facts:
                tokens.append(TokenInfo(text, token, None, -1, 1.0))
                continue
            step, probability, confidence = facts[position]
            logprob = float(np.log(max(probability, np.finfo(np.float64).tiny)))
            tokens.append(TokenInfo(text, token, logprob, step, confidence))
    cut = plan.constraint is not None and plan.constraint.shortened(canvas)
    reason: FinishReason = "timeout" if late else "stop" if readings.stopped and not cut else "length"
    usage = Usage(plan.num_prompt, len(tokens), **asdict(counts), seconds=seconds, mode=plan.mode.name)
    texts = tuple(reading.text for reading in readings.gaps)
    trace = Trace.record(plan.canvas, events)
    ignored = () if plan.constraint is None else plan.constraint.ignored
    return Result(
        joined(plan, texts),
        texts,
        tuple(tokens),
        reason,
        usage,
        trace,
        _spans(plan, texts),
        plan.original,
        ignored,
        plan.searched,
        None if explained is None else explained(places),
        plan.decode.steering if plan.decode.steers else None,
        plan.context,
        readings.looped,
    )


def _spans(plan: Plan, texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """The places of the gaps' texts in the whole text, in characters."""
    spans, start = [], 0
    for before, text in zip(plan.around or ("",), texts, strict=False):
        start += len(before)
        spans.append((start, start + len(text)))
        start += len(text)
    return tuple(spans)
