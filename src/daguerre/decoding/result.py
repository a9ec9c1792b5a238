"""What a request has written: the text of its canvas, what of it cannot change, the whole draft; and its result, with
its tokens, usage and trace.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from daguerre.canvas import NO_POSITIONS, Canvas, Ints
from daguerre.decoding.context import Context
from daguerre.decoding.plan import Plan, Search
from daguerre.decoding.text_spans import unified_diff
from daguerre.models.session import Counts
from daguerre.sampling.repetition import LOOPING, loops
from daguerre.trace import Event, Place, Trace, TraceStep

if TYPE_CHECKING:
    from daguerre.decoding.explanation import Explanation
    from daguerre.decoding.steering import Steering

OPEN = "░"
"""An open position in a draft's text."""


@dataclass(frozen=True)
class Reading:
    """The text of a gap up to its first open position: positions and texts of its tokens, and whether it ended.

    `complete`: none of it can change any more. `looped`: it ended because it repeated itself.
    """

    positions: tuple[int, ...]
    texts: tuple[str, ...]
    stopped: bool
    complete: bool
    looped: bool = False

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True)
class Readings:
    """The readings of all gaps of a request, left to right.

    stopped  every gap has ended before its budget
    looped   a gap has ended because its text repeated itself
    """

    gaps: tuple[Reading, ...]
    stopped: bool
    looped: bool


def has_ended(plan: Plan, canvas: Canvas) -> bool:
    """Whether `read` finds the text stopped; without stop strings, no text is decoded for it."""
    if plan.decode.stop:
        return read(plan, canvas, done=False).stopped
    for index in range(len(plan.gaps)):
        drawn, ended = _ending(plan, canvas, index)
        if not (ended or (plan.stops_loops and len(drawn) >= LOOPING and loops(drawn))):
            return False
    return True


def _ending(plan: Plan, canvas: Canvas, index: int) -> tuple[Ints, bool]:
    """The tokens of a gap before its first open position or ending token, int64, and whether the text ends there: by
    that token, within the budget, or because a constraint lets nothing follow.
    """
    gap, drawn = plan.gaps[index], canvas.filled(canvas.gaps[index])
    found = [(drawn == token).nonzero()[0] for token in plan.ending]
    ends = NO_POSITIONS if not found else found[0] if len(found) == 1 else np.sort(np.concatenate(found))
    if not ends.size:
        return drawn, plan.constraint is not None and plan.constraint.ended(canvas.gaps[index], drawn)
    end = int(ends[0])
    return drawn[:end], gap.healing.start + end < gap.healing.end(canvas)


def read(plan: Plan, canvas: Canvas, *, done: bool) -> Readings:
    """Read the gaps of `canvas`. With `done`, half a character at an end becomes U+FFFD."""
    return Reader(plan).read(canvas, done=done)


class Reader:
    """Reads one canvas after another as `read` does. Where one begins as the last one did, only what is new is decoded,
    so that following a text costs as much as its tokens, and not as much each time.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._gaps = [_GapText(len(gap.healing.text)) for gap in plan.gaps]

    def read(self, canvas: Canvas, *, done: bool) -> Readings:
        """See `read`."""
        plan, found = self._plan, list[Reading]()
        for index, (gap, text) in enumerate(zip(plan.gaps, self._gaps, strict=True)):
            drawn, ended = _ending(plan, canvas, index)
            if len(drawn) < len(text.drawn) or not np.array_equal(drawn[: len(text.drawn)], text.drawn):
                text = self._gaps[index] = _GapText(len(gap.healing.text))
            text.take(plan, gap.healing.start, drawn)
            looped, whole = text.looped is not None, len(canvas.filled(canvas.gaps[index]))
            ended = ended or looped
            closed = gap.healing.start + whole >= gap.healing.end(canvas) and not gap.healing.where(canvas)[1]
            texts = list(text.texts)
            if texts and (done or ended or closed):
                texts[-1] += text.decoder.getstate()[0].decode("utf-8", "replace")
            reading = Reading(tuple(text.positions), tuple(texts), ended, ended or closed, looped)
            found.append(_cut(reading, plan.stops) if plan.stops else reading)
        return Readings(tuple(found), all(one.stopped for one in found), any(one.looped for one in found))


@dataclass
class _GapText:
    """What was read of one gap: its tokens, how many of them, and the length at which it loops. skip: bytes that
    healing took back, and that are still to come.
    """

    skip: int
    drawn: Ints = field(default_factory=lambda: NO_POSITIONS)
    num: int = 0
    looped: int | None = None
    positions: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def take(self, plan: Plan, start: int, drawn: Ints) -> None:
        """Decode the tokens that are new, up to where the text loops."""
        if self.looped is None and plan.stops_loops:
            lengths = range(max(LOOPING, len(self.drawn) + 1), len(drawn) + 1)
            self.looped = next((length for length in lengths if loops(drawn[:length])), None)
        self.drawn = drawn
        end, of = len(drawn) if self.looped is None else self.looped, plan.vocabulary.of
        for position, token in enumerate(drawn[self.num : end].tolist(), start + self.num):
            piece = of[token] if plan.shown is None else plan.piece(token)
            new, self.skip = piece[self.skip :], max(0, self.skip - len(piece))
            if new:
                self.positions.append(position)
                text = self.decoder.decode(new)
                self.texts.append(text if plan.shown is None else plan.written(token, text))
        self.num = end


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
    return Reading(reading.positions[: len(texts)], tuple(texts), stopped=True, complete=True)


def joined(plan: Plan, texts: Sequence[str], closed: bool = True) -> str:
    """The gaps' texts, joined with those around them where the plan has these; after the last gap only if `closed`."""
    if plan.around is None:
        return texts[0]
    pieces = [piece for pair in zip(plan.around, texts, strict=False) for piece in pair]
    return "".join(pieces) + (plan.around[len(texts)] if closed else "")


def num_as_drafted(plan: Plan, canvas: Canvas) -> int:
    """How many tokens of the caller's draft the text has at the drafted positions."""
    origin, draft = plan.drafted(canvas)
    positions = np.array(read(plan, canvas, done=True).gaps[0].positions, dtype=np.int64)
    positions = positions[(positions >= origin) & (positions < origin + len(draft))]
    return int((canvas.tokens[positions] == draft[positions - origin]).sum())


def committed_text(plan: Plan, canvas: Canvas, reader: Reader | None = None) -> str:
    """The text that no later step can change: what is read, without a tail that may become a stop string. reader: one
    that has read the canvases before.

    Where a policy edits, finished spans are revised, or noise is undone, all may still change from the active span on.
    """
    edits = plan.decode.revise or plan.decode.commit_policy.edits
    if (edits or not plan.mode.keeps_commits) and canvas.span is not None:
        start = canvas.span[0]
        if edits and plan.healed(canvas):  # the caller may have opened positions of an earlier span, which is next
            start = min([start, *(first for first, last in plan.spans(canvas) if canvas.open[first:last].any())])
        may_change = canvas.drawn
        may_change[:start] = False
        canvas = replace(canvas, open=canvas.open | may_change)
    texts, closed = [], True
    for reading in (reader or Reader(plan)).read(canvas, done=False).gaps:
        firm = plan.mode.num_firm(plan, reading.text) if reading.looped or not reading.stopped else None
        texts.append(reading.text[:firm])
        if not reading.complete:
            begun = max((_num_begun(texts[-1], stop) for stop in plan.stops), default=0)
            texts[-1] = texts[-1][: len(texts[-1]) - begun]
            closed = False
            break
    return joined(plan, texts, closed)


def _num_begun(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop string, and are not all of it."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) - at if at >= 0 else 0


def draft_text(plan: Plan, canvas: Canvas, reader: Reader | None = None) -> str:
    """The whole draft: what is read, then committed tokens with OPEN between them, to the end of the active span or of
    the last pin. reader: one that has read the canvases before.
    """
    readings = (reader or Reader(plan)).read(canvas, done=False).gaps
    return joined(plan, [_draft_of(plan, canvas, index, reading) for index, reading in enumerate(readings)])


def _draft_of(plan: Plan, canvas: Canvas, index: int, reading: Reading) -> str:
    gap = canvas.gaps[index]
    start = gap[0] + len(canvas.filled(gap))
    end = gap[1]
    if not plan.infilling and canvas.span is not None:
        committed = np.flatnonzero(~canvas.open[gap[0] : gap[1]])
        end = max(canvas.span[1], gap[0] + int(committed[-1]) + 1 if committed.size else 0)
    if reading.stopped or start >= end:
        return reading.text
    if canvas.open[start:end].all():
        return reading.text + OPEN * (end - start)
    decoder, parts = codecs.getincrementaldecoder("utf-8")("replace"), [reading.text]
    for position in range(start, end):
        token = int(canvas.tokens[position])
        if not canvas.open[position] and token in plan.ending:
            break
        if canvas.open[position]:
            parts.append(decoder.decode(OPEN.encode()))
        else:
            parts.append(plan.written(token, decoder.decode(plan.piece(token))))
    return "".join(parts) + decoder.decode(b"", True)


# ---- the result -----------------------------------------------------------------------------------------------------

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
    `lookup_drafted` ones, which came from the text itself, `head_accepted` of the `head_drafted` ones, which the model,
    or a second one, drafted, and the rest of the caller's draft. In `deadline_forced` forwards the timeout decided how
    much was committed. `accepted_prediction_tokens` and `rejected_prediction_tokens` are tokens of
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
    steps: Sequence[TraceStep],
    counts: Counts,
    seconds: float,
    late: bool,
    explained: Callable[[Sequence[Place]], Explanation] | None = None,
) -> Result:
    """The result of a run that is over, of these steps; `late`: its time was up before it was finished. explained: the
    explanation of tokens, from their text, id and position; None: it was not asked for.
    """
    readings = Reader(plan).read(canvas, done=True)
    facts: dict[int, tuple[int, float, float]] = {}
    for step in steps:
        d = step.decision
        for position, probability, confidence in zip(
            d.positions.tolist(), d.probabilities.tolist(), d.confidence.tolist(), strict=True
        ):
            facts[position] = (step.step, probability, confidence)
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
            number, probability, confidence = facts[position]
            logprob = float(np.log(max(probability, np.finfo(np.float64).tiny)))
            tokens.append(TokenInfo(text, token, logprob, number, confidence))
    cut = plan.constraint is not None and plan.constraint.shortened(canvas)
    reason: FinishReason = "timeout" if late else "stop" if readings.stopped and not cut else "length"
    usage = Usage(plan.num_prompt, len(tokens), **asdict(counts), seconds=seconds, mode=plan.mode.name)
    texts = tuple("".join(reading.texts) for reading in readings.gaps)
    text, spans = texts[0], [(0, len(texts[0]))]
    if plan.around is not None:
        text, spans = joined(plan, texts), _spans(plan.around, texts)
    ignored = () if plan.constraint is None else plan.constraint.ignored
    return Result(
        text,
        texts,
        tuple(tokens),
        reason,
        usage,
        Trace(plan.canvas, tuple(steps)),
        tuple(spans),
        plan.original,
        ignored,
        plan.searched,
        None if explained is None else explained(places),
        plan.decode.steering if plan.decode.uses_concepts and plan.decode.steers else None,
        plan.context,
        readings.looped,
    )


def _spans(around: Sequence[str], texts: Sequence[str]) -> list[tuple[int, int]]:
    """The places of the gaps' texts in the whole text, in characters."""
    spans, start = list[tuple[int, int]](), 0
    for before, text in zip(around, texts, strict=False):
        start += len(before)
        spans.append((start, start + len(text)))
        start += len(text)
    return spans
