"""Fewer threads under contention: while other threads want the same processors.

Threads of one product wait for each other by spinning. Where another process, or another thread of this one, wants the
same processors, the thread that all wait for is often not running: two processes of two threads on two processors are
several times as slow as one after the other. Then the threads of a computation have less of the processors than there
is time; otherwise nearly all of it. Involuntary switches do not tell the two apart: a server that sends each token has
a hundred a second on an idle machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WINDOW = 0.1
"""Seconds of a window of computations, unless one takes longer."""
LEAST = 0.85
"""Of the time, what threads have of processors where there is no contention. Two threads on two idle processors were
seen to have .92 and more, a moment .83; beside another busy thread, of this process or not, .49 to .78.
"""
LEAST_REST, MOST_REST = 0.25, 4.0
"""Seconds after which more threads are tried again; doubled each time that this was too early."""


@dataclass(frozen=True)
class Times:
    """Seconds: of a clock, and of processors that this thread and all threads of the process have had."""

    clock: float
    thread: float
    process: float

    @classmethod
    def now(cls) -> Times:
        """The times until now."""
        return cls(time.perf_counter(), time.thread_time(), time.process_time())


class Contention:
    """How many threads to use now, by what the last ones had of processors. Results are the same for every number."""

    def __init__(self, times: Callable[[], Times] = Times.now) -> None:
        self._times = times
        self._share, self._rest = 1, LEAST_REST
        self._until, self._raised = 0.0, -MOST_REST  # when more are tried, and when they were last
        self._clock = self._had = 0.0  # of this window: the time, and the part of it that threads have had
        self._suspected = False  # whether the last window had contention

    def threads(self, most: int) -> int:
        """At most so many: half as many after each window with contention, down to one. It takes two such windows in a
        row to begin, as one may hold a moment in which others were busy.
        """
        if self._share > 1 and most > 1 and (now := self._times().clock) >= self._until:
            self._share, self._raised, self._until = self._share // 2, now, now + self._rest
        return max(1, most // self._share)

    @contextmanager
    def computing(self, threads: int) -> Iterator[None]:
        """Within it so many threads, this one among them, compute all the time."""
        if threads == 1:
            yield
            return
        before = self._times()
        yield
        after = self._times()
        # Another thread of this process takes this one's time, another process that of all threads.
        self._had += min(after.thread - before.thread, (after.process - before.process) / threads)
        self._clock += after.clock - before.clock
        if self._clock >= WINDOW:
            self._judge(after.clock, self._had < LEAST * self._clock, threads)
            self._clock = self._had = 0.0

    def _judge(self, now: float, contention: bool, threads: int) -> None:
        suspected, self._suspected = self._suspected, contention
        too_early = now - self._raised < MOST_REST
        if not contention or (self._share == 1 and not (suspected or too_early)):
            return
        if threads > 1:
            self._share, self._rest = 2 * self._share, min(MOST_REST, 2 * self._rest) if too_early else LEAST_REST
        self._until = now + self._rest


CONTENTION = Contention()
"""Of this process."""
