"""The text of a request's canvas: the text so far, the part of it that cannot change, and the whole draft."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from daguerre.canvas import NO_POSITIONS, Canvas, Ints
from daguerre.decoding.plan import Plan
from daguerre.sampling.repetition import loops

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
    """The readings of all gaps of a request, left to right."""

    gaps: tuple[Reading, ...]

    @property
    def stopped(self) -> bool:
        """Whether every gap has ended before its budget."""
        return all(gap.stopped for gap in self.gaps)

    @property
    def looped(self) -> bool:
        """Whether a gap has ended because its text repeated itself."""
        return any(gap.looped for gap in self.gaps)


def has_ended(plan: Plan, canvas: Canvas) -> bool:
    """Whether `read` finds the text stopped; without stop strings, no text is decoded for it."""
    if plan.decode.stop:
        return read(plan, canvas, done=False).stopped
    for index in range(len(plan.gaps)):
        drawn, ended = _ending(plan, canvas, index)
        if not (ended or (plan.stops_loops and loops(drawn))):
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
    return drawn[:end], gap.start + end < gap.healing.end(canvas)


def read(plan: Plan, canvas: Canvas, *, done: bool) -> Readings:
    """Read the gaps of `canvas`. With `done`, half a character at an end becomes U+FFFD."""
    return Reader(plan).read(canvas, done=done)


class Reader:
    """Reads one canvas after another as `read` does. Where one begins as the last one did, only what is new is decoded,
    so that following a text costs as much as its tokens, and not as much each time.
    """

    def __init__(self, plan: Plan) -> None:
        self._gaps = [_GapReader(plan, index) for index in range(len(plan.gaps))]

    def read(self, canvas: Canvas, *, done: bool) -> Readings:
        """See `read`."""
        return Readings(tuple(gap.read(canvas, done) for gap in self._gaps))


class _GapReader:
    """Reads one gap of one canvas after another."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._plan, self._index, self._gap = plan, index, plan.gaps[index]
        self._begin()

    def _begin(self) -> None:
        """Forget what was read."""
        self._drawn, self._looped, self._num = NO_POSITIONS, None, 0  # type: Ints, int | None, int
        self._skip = len(self._gap.healing.text)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._positions, self._texts = list[int](), list[str]()

    def read(self, canvas: Canvas, done: bool) -> Reading:
        """The gap's reading."""
        plan, gap = self._plan, self._gap
        drawn, ended = _ending(plan, canvas, self._index)
        self._take(drawn)
        ended = ended or self._looped is not None
        whole = len(canvas.filled(canvas.gaps[self._index]))
        closed = gap.start + whole >= gap.healing.end(canvas) and not gap.healing.where(canvas)[1]
        texts = list(self._texts)
        if texts and (done or ended or closed):
            texts[-1] += self._decoder.getstate()[0].decode("utf-8", "replace")
        complete, looped = ended or closed, self._looped is not None
        return _cut(Reading(tuple(self._positions), tuple(texts), ended, complete, looped), plan.stops)

    def _take(self, drawn: Ints) -> None:
        """Decode the tokens that are new, up to where the text loops."""
        if len(drawn) < len(self._drawn) or not np.array_equal(drawn[: len(self._drawn)], self._drawn):
            self._begin()
        if self._looped is None and self._plan.stops_loops:
            lengths = range(len(self._drawn) + 1, len(drawn) + 1)
            self._looped = next((length for length in lengths if loops(drawn[:length])), None)
        self._drawn = drawn
        end = len(drawn) if self._looped is None else self._looped
        for position, token in enumerate(drawn[self._num : end].tolist(), self._gap.start + self._num):
            piece = self._plan.piece(token)
            new, self._skip = piece[self._skip :], max(0, self._skip - len(piece))
            if new:
                self._positions.append(position)
                self._texts.append(self._plan.written(token, self._decoder.decode(new)))
        self._num = end


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
