"""The ordered, replayable list of decisions: what streaming, the playground and audits read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from daguerre.canvas import Canvas, Decision, Span
from daguerre.errors import DataError, InputError

VERSION = 3
Place = tuple[str, int, int]
"""A token: its text, its id, and its position on the canvas."""
BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What values raise that no run has written."""


@dataclass(frozen=True, eq=False, slots=True)
class Event:
    """One step of a request: `decision` turned the canvas, whose active span it names, into `canvas`.

    `step` counts the forwards of the request, from 0. `evidence` (k, ...) is what the model's head says about each
    token of the decision; None for a head that says nothing, as the vocabulary projection does.
    """

    step: int
    decision: Decision
    canvas: Canvas
    evidence: np.ndarray | None = None


@dataclass(frozen=True)
class TraceStep:
    """A decision, the step it was taken at, and the span that was active then."""

    step: int
    span: Span
    decision: Decision


@dataclass(frozen=True)
class Trace:
    """The canvas at the start and every decision since, in order."""

    canvas: Canvas
    steps: tuple[TraceStep, ...] = ()

    @classmethod
    def record(cls, canvas: Canvas, events: Iterable[Event]) -> Trace:
        """The trace of a run that began at `canvas`."""
        steps = []
        for event in events:
            assert event.canvas.span is not None
            steps.append(TraceStep(event.step, event.canvas.span, event.decision))
        return cls(canvas, tuple(steps))

    def replay(self, canvas: Canvas | None = None) -> Iterator[Canvas]:
        """The canvas after each step, beginning at `canvas` (default: the recorded one).

        InputError at the first step that the canvas does not admit.
        """
        now = self.canvas if canvas is None else canvas
        for number, step in enumerate(self.steps):
            try:
                now = now.at(step.span).apply(step.decision)
            except InputError as error:
                raise InputError(f"step {number} of the trace does not fit this canvas: {error}") from None
            yield now

    def to_json(self) -> str:
        """JSON of the whole trace; `from_json` reads it back."""
        value = {
            "version": VERSION,
            "tokens": self.canvas.tokens.tolist(),
            "open": np.flatnonzero(self.canvas.open).tolist(),
            "gaps": self.canvas.gaps,
            "pins": self.canvas.pins.tolist(),
            "steps": [
                {
                    "step": s.step,
                    "span": s.span,
                    "positions": s.decision.positions.tolist(),
                    "tokens": s.decision.tokens.tolist(),
                    "probabilities": s.decision.probabilities.tolist(),
                    "confidence": s.decision.confidence.tolist(),
                    "reopen": s.decision.reopen.tolist(),
                    "replace": s.decision.replace.tolist(),
                    "pin": s.decision.pin.tolist(),
                    "unpin": s.decision.unpin.tolist(),
                }
                for s in self.steps
            ],
        }
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read a trace and check that it replays. DataError when it is damaged or of another version."""
        try:
            value = json.loads(text)
            if value.get("version") != VERSION:
                raise DataError(
                    f"this trace has version {value.get('version')!r} and {VERSION} is read: record it again"
                )
            trace = cls._parse(value)
            for _ in trace.replay():
                pass
        except DataError:
            raise
        except (InputError, *BROKEN) as error:
            raise DataError(f"not a trace of Daguerre ({str(error)[:200]}): record it again") from None
        return trace

    @classmethod
    def _parse(cls, value: dict[str, Any]) -> Trace:
        tokens = np.array(value["tokens"], dtype=np.int64)
        opened = np.zeros(len(tokens), dtype=bool)
        opened[np.array(value["open"], dtype=np.int64)] = True
        gaps = tuple((int(a), int(b)) for a, b in value["gaps"])
        steps = []
        for s in value["steps"]:
            arrays = [s[f.name] for f in fields(Decision)]
            start, end = s["span"]
            steps.append(TraceStep(int(s["step"]), (int(start), int(end)), Decision(*arrays)))
            if not np.isfinite([steps[-1].decision.probabilities, steps[-1].decision.confidence]).all():
                raise DataError("a number of this trace is not finite: record it again")
        return cls(Canvas(tokens, opened, gaps, pins=np.array(value["pins"], dtype=np.int64)), tuple(steps))
