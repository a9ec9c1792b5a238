"""A running request that its caller changes between steps: it pins tokens, unpins them, and opens text again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.pins import ordinary, pinning, place
from daguerre.decoding.result import Result, StreamEvent, committed_text, draft_text
from daguerre.decoding.sample import Sample, stream_events
from daguerre.errors import InputError
from daguerre.kinds import TOKENS, Kind, Whole, checks
from daguerre.models.tokenizer import Tokenizer
from daguerre.trace import Event

PLACE = Whole(low=-(2**63), high=2**63 - 1)
POSITIONS: dict[str, Kind] = {"start": PLACE, "end": Whole(low=-(2**63), high=2**63 - 1, none=True)}
"""The kinds of the arguments that change a run; what is outside the gap is found later."""


class Running:
    """Iterate it for the events of `stream`; between two of them `pin`, `unpin` and `remask` change the canvas.

    Each change is the next event: the trace replays it. Committed text changes by such a change alone: after one, show
    all of `event.committed` again. A change that is refused leaves the run as it was. Positions count the gap's tokens,
    from 0.
    """

    def __init__(self, sample: Sample, tokenizer: Tokenizer) -> None:
        self._sample, self._tokenizer = sample, tokenizer
        self._events: Iterator[StreamEvent] = stream_events(sample)
        self._changes: deque[Event] = deque()
        self._result: Result | None = None

    def __iter__(self) -> Running:
        return self

    def __next__(self) -> StreamEvent:
        if self._changes:
            change, plan = self._changes.popleft(), self._sample.plan
            return StreamEvent(draft_text(plan, change.canvas), committed_text(plan, change.canvas), change)
        event = next(self._events)
        self._result = event.result
        return event

    def _change(self, decision: Decision) -> None:
        self._changes.append(self._sample.change(decision))

    @property
    def bound(self) -> int:
        """The most forwards that the request may have taken when it is done. A change sets it to the forwards so far
        and those that the policy may take for the positions that are open then.
        """
        return self._sample.bound

    def result(self) -> Result:
        """Run the remaining steps and return the result."""
        for _ in self:
            pass
        assert self._result is not None
        return self._result

    @checks({"at": PLACE, "text": TOKENS})
    def pin(self, at: int, text: str | Sequence[int]) -> None:
        """Fix a text, or token ids, at a position (below 0: that of its last token, from the right; see `Pin`), in
        place of what was drawn there.

        InputError if it does not fit the gap, something is pinned there, the text has ended before it, or the
        constraint then allows no text.
        """
        self._change(pinned(self._open_sample, self._tokenizer, at, text))

    @checks(POSITIONS)
    def unpin(self, start: int, end: int | None = None) -> None:
        """Open the pinned positions of [start, end), by default the one at `start`. InputError where none is pinned."""
        self._change(unpinned(self._open_sample, start, end))

    @checks(POSITIONS)
    def remask(self, start: int, end: int | None = None) -> None:
        """Open the drawn positions of [start, end), by default the one at `start`. InputError where none was drawn."""
        self._change(reopened(self._open_sample, start, end))

    @property
    def _open_sample(self) -> Sample:
        if self._result is not None:
            raise InputError("this request is done: start another one")
        return self._sample


def pinned(sample: Sample, tokenizer: Tokenizer, at: int, text: str | Sequence[int]) -> Decision:
    """The decision of `Running.pin`."""
    tokens, canvas = ordinary(text, tokenizer), sample.canvas
    if not tokens:
        raise InputError("a pin needs some text or tokens")
    positions = place(at, tokens, canvas.gaps[0], text)
    decision = pinning(canvas, positions, tokens)
    ends = np.flatnonzero(canvas.drawn & np.isin(canvas.tokens, sample.plan.config.ends))
    if np.any(np.setdiff1d(ends, positions) < positions[-1]):
        raise InputError(f"the text ended before the pin at {at}: remask its end first")
    return decision


def unpinned(sample: Sample, start: int, end: int | None = None) -> Decision:
    """The decision of `Running.unpin`."""
    found = np.intersect1d(_positions(sample.canvas, start, end), sample.canvas.pins)
    return _opening(found, "pinned", unpin=found)


def reopened(sample: Sample, start: int, end: int | None = None) -> Decision:
    """The decision of `Running.remask`."""
    inside = _positions(sample.canvas, start, end)
    found = inside[sample.canvas.drawn[inside]]
    return _opening(found, "drawn", reopen=found)


def _opening(found: np.ndarray, what: str, **decision: np.ndarray) -> Decision:
    if not found.size:
        raise InputError(f"nothing is {what} there: name other positions")
    none = np.zeros(0)
    return Decision(none, none, none, none, **decision)


def _positions(canvas: Canvas, start: int, end: int | None) -> np.ndarray:
    first, last = canvas.gaps[0]
    stop = start + 1 if end is None else end
    if not 0 <= start < stop <= last - first:
        raise InputError(f"positions {start} to {stop} are not in the gap, which has {last - first}")
    return np.arange(first + start, first + stop)
