"""Fewer threads under contention: while other threads want the same processors.

Threads of one product wait for each other by spinning. Where another process, or another thread of this one, wants the
same processors, the thread that all wait for is often not running: two processes of two threads on two processors are
several times as slow as one after the other. Then the system preempts this process (an involuntary context switch) many
times a second; otherwise hardly ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

WINDOW = 0.1
"""Seconds of a window of forwards, unless one takes longer. With enough switches for contention it ends sooner."""
MANY = 100.0
"""Involuntary context switches a second, of all threads of this process, from which on there is contention. Two busy
threads on two processors were seen to have 20 to 50, for moments 120; beside another busy process, 120 to 180.
"""
LEAST_REST, MOST_REST = 0.25, 4.0
"""Seconds after which more threads are tried again; doubled each time that this was too early."""


def involuntary_switches() -> int:
    """How often the system has preempted a thread of this process; always 0 where it does not say."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class Contention:
    """How many threads to use now, by how the last ones were preempted. Results are the same for every number."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, count: Callable[[], int] = involuntary_switches
    ) -> None:
        self._clock, self._count = clock, count
        self._share, self._rest = 1, LEAST_REST
        self._until, self._raised = 0.0, -MOST_REST  # when more are tried, and when they were last
        self._began, self._before = -1.0, 0
        self._suspected = False  # whether the last window had many switches

    def threads(self, most: int) -> int:
        """At most so many: half as many after each window with contention, down to one. It takes two such windows in a
        row to begin, since the threads of another library spin for a moment before they sleep, and a window may hold a
        pause in which others were busy.
        """
        if most == 1:
            return 1
        now, count = self._clock(), self._count()
        length, switches = now - self._began, count - self._before
        if length >= WINDOW or switches >= WINDOW * MANY:
            self._judge(now, switches / length, most)
            self._began, self._before = now, count
        return max(1, most // self._share)

    def _judge(self, now: float, rate: float, most: int) -> None:
        suspected, self._suspected = self._suspected, rate >= MANY
        if rate >= MANY:
            too_early = now - self._raised < MOST_REST
            if self._share == 1 and not (suspected or too_early):
                return
            if self._share < most:
                self._share, self._rest = 2 * self._share, min(MOST_REST, 2 * self._rest) if too_early else LEAST_REST
            self._until = now + self._rest
        elif self._share > 1 and now >= self._until:
            self._share, self._raised, self._until = self._share // 2, now, now + self._rest


CONTENTION = Contention()
"""Of this process."""
