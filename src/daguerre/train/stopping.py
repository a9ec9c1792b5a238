"""Signals that end a run after its step."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopRequest:
    """Whether a run was asked to stop after its step; calling it asks, and says whether that was asked before."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        before, self.asked = self.asked, True
        return before


@contextmanager
def stopped_by_signals(ask: Callable[[], bool]) -> Iterator[None]:
    """SIGINT and SIGTERM call `ask` inside the block, and interrupt at once where it says that it was asked before."""

    def handle(number: int, frame: object) -> None:
        if ask():
            raise KeyboardInterrupt

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
