"""A request under way that its caller changes between steps: pins tokens, lets them go, and opens text again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.errors import InputError, UnsupportedError
from daguerre.generate import begin, told
from daguerre.models.denoiser import Denoiser
from daguerre.models.tokenizer import Tokenizer
from daguerre.request import Text
from daguerre.result import Result, StreamEvent
from daguerre.sample import Sample
from daguerre.sampling.decode import Decode
from daguerre.sampling.pins import ordinary, pinning, place


def start(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompt: Text,
    max_tokens: int | None = None,
    decode: Decode | None = None,
    *,
    suffix: Text | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Running:
    """`stream`, as a request that may be changed between its steps. The last word of the prompt is not healed, so that
    positions count what is new.

    UnsupportedError for stop strings, which may end the text before a pin, and for modes "speculative",
    "beam" and "ancestral".
    """
    asked = Decode.of(decode, **options)
    if asked.stop or asked.mode in ("speculative", "beam", "ancestral"):
        what = "stop" if asked.stop else f'mode "{asked.mode}"'
        raise UnsupportedError(f"a request that may be changed while it runs has no {what}: leave it out")
    sample = begin(denoiser, tokenizer, prompt, max_tokens, asked, suffix=suffix, heal=False, timeout=timeout)
    return Running(sample, tokenizer)


class Running:
    """Iterate it for the events of `stream`; between two of them `pin`, `unpin` and `remask` change the canvas.

    Each change is an event too, the next one: the trace replays it. What is committed never changes but by such a
    change, so whoever shows `event.committed` to somebody shows it anew after one of his own. A change that is refused
    leaves the run as it was. Positions count the gap's tokens, from 0.
    """

    def __init__(self, sample: Sample, tokenizer: Tokenizer) -> None:
        self._sample, self._tokenizer = sample, tokenizer
        self._events: Iterator[StreamEvent] = told(sample)
        self._result: Result | None = None

    def __iter__(self) -> Running:
        return self

    def __next__(self) -> StreamEvent:
        event = next(self._events)
        self._result = event.result
        return event

    @property
    def bound(self) -> int:
        """The most forwards that the request may have taken when it is done. A change sets it to those taken so far and
        what the policy may take for all that is open then.
        """
        return self._sample.bound

    def result(self) -> Result:
        """Take all steps that are left; what came of them."""
        for _ in self:
            pass
        assert self._result is not None
        return self._result

    def pin(self, at: int, text: str | Sequence[int]) -> None:
        """Fix a text, or token ids, at a position (below 0: of its last token, from the right; see `Pin`), whatever was
        drawn there.

        InputError where it does not fit the gap, something is pinned there, the text has ended before it, or the
        constraint then allows no text.
        """
        tokens, canvas = ordinary(text, self._tokenizer), self._canvas
        if not tokens:
            raise InputError("a pin needs some text or tokens")
        positions = place(at, tokens, canvas.gaps[0], text)
        decision = pinning(canvas, positions, tokens)
        ends = np.flatnonzero(canvas.drawn & np.isin(canvas.tokens, self._sample.plan.config.ends))
        if np.any(np.setdiff1d(ends, positions) < positions[-1]):
            raise InputError(f"the text ended before the pin at {at}: remask its end first")
        self._sample.change(decision)

    def unpin(self, start: int, end: int | None = None) -> None:
        """Open the pinned positions of [start, end), by default the one at `start`. InputError where none is pinned."""
        inside = self._run(start, end)
        found = np.intersect1d(inside, self._canvas.pins)
        self._reopen(found, "pinned", unpin=found)

    def remask(self, start: int, end: int | None = None) -> None:
        """Open again what was drawn at [start, end), by default at `start`; pins stay. InputError where nothing was."""
        inside = self._run(start, end)
        found = inside[self._canvas.drawn[inside]]
        self._reopen(found, "drawn", reopen=found)

    def _reopen(self, found: np.ndarray, what: str, **decision: np.ndarray) -> None:
        if not found.size:
            raise InputError(f"nothing is {what} there: name other positions")
        none = np.zeros(0)
        self._sample.change(Decision(none, none, none, none, **decision))

    def _run(self, start: int, end: int | None) -> np.ndarray:
        first, last = self._canvas.gaps[0]
        stop = start + 1 if end is None else end
        if not 0 <= start < stop <= last - first:
            raise InputError(f"positions {start} to {stop} are not in the gap, which has {last - first}")
        return np.arange(first + start, first + stop)

    @property
    def _canvas(self) -> Canvas:
        if self._result is not None:
            raise InputError("this request is done: start another one")
        return self._sample.canvas
