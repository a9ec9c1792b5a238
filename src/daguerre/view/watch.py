"""A request drawn in place as it is refined: its canvas, the lines near its gaps, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.result import OPEN, StreamEvent
from daguerre.model import Model

STEP_SECONDS, FULL_STEPS = 0.15, 40
"""How long a step is shown, so that a person can follow; after so many steps each is shown for a shorter time."""
Part = tuple[str, str, bool]
"""Some text, its style ("dim" for what is open or was given), and whether this step committed it."""


def shade(probability: float) -> str:
    """Color of a committed token by the probability the model gave it."""
    return "green" if probability >= 0.9 else "yellow" if probability >= 0.5 else "red"


def canvas_parts(model: Model, canvas: Canvas, decision: Decision | None, seen: dict[int, float]) -> list[Part]:
    """The canvas as text; `seen` collects the probabilities at which tokens were committed."""
    new: set[int] = set()
    if decision is not None:
        new = set(decision.positions.tolist())
        seen.update(zip(decision.positions.tolist(), decision.probabilities.tolist(), strict=True))
    out: list[Part] = []
    end = len(canvas) if canvas.span is None or not canvas.continues else max(canvas.span[1], *new, 0)
    for position, token in enumerate(canvas.tokens[:end].tolist()):
        if canvas.open[position]:
            out.append((OPEN, "dim", False))
        elif token not in model.config.reserved_ids:
            style = shade(seen[position]) if position in seen else "dim"
            text = model.tokenizer.decode([token])
            out.append((text, f"{style} reverse" if position in new else style, position in new))
    return out


class RequestWatch:
    """Draws the events of a request: use it as a context, and call it with each event.

    rate   steps a second; 0: as fast as they come; None: a pace that a person can follow
    pause  waits for so many seconds
    """

    def __init__(
        self, model: Model, console: Console, rate: float | None = None, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._model, self._rate, self._pause = model, rate, pause
        self._console, self._live = console, Live(console=console, refresh_per_second=30, transient=True)
        self._seen: dict[int, float] = {}
        self._steps = 0

    def __enter__(self) -> RequestWatch:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, event: StreamEvent) -> None:
        """Draw a step."""
        if event.step is None:
            return
        self._steps += 1
        self._live.update(self.frame(event), refresh=True)
        self._pause(self._seconds())

    def frame(self, event: StreamEvent) -> Text:
        """The lines near what this step changed, as many as the terminal is high, and a line on the run."""
        assert event.step is not None
        canvas, decision = event.step.canvas, event.step.decision
        parts = canvas_parts(self._model, canvas, decision, self._seen)
        lines: list[Text] = [Text()]
        at = 0
        for content, style, new in parts:
            for number, piece in enumerate(content.split("\n")):
                if number:
                    lines.append(Text())
                lines[-1].append(piece.expandtabs(4), style=style)
            at = len(lines) - 1 if new else at
        first, last = self._window(len(lines), at)
        committed = int((~canvas.open & canvas.in_gap).sum())
        total, forwards = int(canvas.in_gap.sum()), event.step.step + 1
        status = f"step {self._steps}, {committed} of {total} tokens, {committed / forwards:.2f} a forward"
        shown = [line[: self._console.width] for line in lines[first:last]]
        return Text("\n").join([*shown, Text(status, style="bold")])

    def _window(self, num: int, at: int) -> tuple[int, int]:
        """The lines that are shown: as many as fit above the line on the run, the one called `at` among them."""
        room = max(1, self._console.height - 3)
        first = max(0, min(at - 2 * room // 3, num - room))
        return first, first + room

    def _seconds(self) -> float:
        if self._rate is not None:
            return 1 / self._rate if self._rate else 0.0
        return STEP_SECONDS * min(1.0, FULL_STEPS / self._steps)
