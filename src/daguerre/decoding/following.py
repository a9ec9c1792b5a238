"""The events of one sample, followed as they come: the canvas of each from the one before, and the texts after it."""

from __future__ import annotations

from collections.abc import Iterator

from daguerre.decoding.plan import Plan
from daguerre.decoding.reading import Reader, committed_text, draft_text
from daguerre.decoding.result import StreamEvent
from daguerre.trace import Event, History


class Texts:
    """The texts after each event of a stream. What it decodes of an event is what is new in it."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._draft, self._firm = plan, Reader(plan), Reader(plan)

    def event(self, event: Event) -> StreamEvent:
        """An event with the texts after it."""
        plan, canvas = self._plan, event.canvas
        return StreamEvent(draft_text(plan, canvas, self._draft), committed_text(plan, canvas, self._firm), event)


class Follower:
    """Makes the events of a stream from a history that grows."""

    def __init__(self, plan: Plan, history: History) -> None:
        self._history, self._texts = history, Texts(plan)
        self._seen, self._canvas = 0, plan.canvas

    def new(self, every: bool = True) -> Iterator[StreamEvent]:
        """The events of the history that are new; `every`: False leaves out all but the last."""
        num = len(self._history)
        for event in self._history.after(self._seen, self._canvas):
            self._seen, self._canvas = self._seen + 1, event.canvas
            if every or self._seen >= num:
                yield self._texts.event(event)

    @property
    def num_new(self) -> int:
        """How many events are new."""
        return len(self._history) - self._seen
