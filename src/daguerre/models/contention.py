"""Fewer threads under contention: while other threads want the same processors.

Threads of one product wait for each other by spinning. Where another process, or another thread of this one, wants the
same processors, the thread that all wait for is often not running: two processes of two threads on two processors are
several times as slow as one after the other. Then the threads of a computation have less of the processors than there
is time; otherwise nearly all of it. Involuntary switches do not tell the two apart: a server that sends each token has
a hundred a second on an idle machine.
"""

from __future__ import annotations

import os
import sys
import threading
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
KNOWN = 10.0
"""Seconds for which it is believed how long fewer threads take."""


@dataclass(frozen=True)
class Times:
    """Seconds: of a clock, and of processors that this thread and all threads of the process have had."""

    clock: float
    thread: float
    process: float

    @classmethod
    def now(cls) -> Times:
        """The times until now."""
        return cls(time.monotonic(), time.thread_time(), time.process_time())


class Contention:
    """How many threads to use now, by what the last ones had of processors. Results are the same for every number."""

    def __init__(self, times: Callable[[], Times] = Times.now) -> None:
        self._times = times
        self._share, self._rest = 1, LEAST_REST
        self._until, self._raised = 0.0, -MOST_REST  # when more are tried, and when they were last
        self._took = dict[tuple[int, int], tuple[float, float]]()  # by threads and size: when, and for how long
        self._clock = self._had = self._fewer = 0.0  # of a window: its time, what threads have had, what fewer take
        self._suspected = False  # whether the last window had contention

    def threads(self, most: int) -> int:
        """At most so many: half as many after each window with contention, down to one. It takes two such windows in a
        row to begin, as one may hold a moment in which others were busy.
        """
        if self._share > 1 and most > 1 and (now := self._times().clock) >= self._until:
            self._share, self._raised, self._until = self._share // 2, now, now + self._rest
        return max(1, most // self._share)

    @contextmanager
    def computing(self, threads: int, rows: int) -> Iterator[None]:
        """Within it so many threads, this one among them, compute all the time; so many rows."""
        before = self._times()
        yield
        after, size = self._times(), rows.bit_length()
        seconds = after.clock - before.clock
        known = self._known(threads, size, after.clock)
        self._took[threads, size] = after.clock, (known or seconds) / 2 + seconds / 2
        if threads == 1:
            return
        # Another thread of this process takes this one's time, another process that of all threads.
        self._had += min(after.thread - before.thread, (after.process - before.process) / threads)
        self._clock, self._fewer = self._clock + seconds, self._fewer + self._known(threads // 2, size, after.clock)
        if self._clock >= WINDOW:
            self._judge(after.clock, self._had < LEAST * self._clock and self._fewer < self._clock)
            self._clock = self._had = self._fewer = 0.0

    def _known(self, threads: int, size: int, now: float) -> float:
        """The seconds of such a computation; 0 where none was timed lately."""
        at, seconds = self._took.get((threads, size), (-KNOWN, 0.0))
        return seconds if now - at < KNOWN else 0.0

    def _judge(self, now: float, contention: bool) -> None:
        suspected, self._suspected = self._suspected, contention
        too_early = now - self._raised < MOST_REST
        if not contention or (self._share == 1 and not (suspected or too_early)):
            return
        self._share, self._rest = 2 * self._share, min(MOST_REST, 2 * self._rest) if too_early else LEAST_REST
        self._until = now + self._rest


CONTENTION = Contention()
"""Of this process."""


_chosen: list[int] = []
"""The number of threads, where PyTorch has not been told it; and then nothing."""
_choosing = threading.Lock()


def num_threads() -> int:
    """The threads to use: PyTorch's setting where it was imported; else what was set, OMP_NUM_THREADS, or one for each
    CPU that this process may use.
    """
    torch = sys.modules.get("torch")
    with _choosing:
        if torch is None or not hasattr(torch, "get_num_threads"):  # not imported, or not yet whole
            if not _chosen:
                _chosen.append(_default())
            return _chosen[0]
        if _chosen:
            torch.set_num_threads(_chosen.pop())
    num: int = torch.get_num_threads()
    return num


def set_num_threads(num: int) -> None:
    """Use so many from now on, in PyTorch, too."""
    with _choosing:
        _chosen[:] = [num]
    num_threads()


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _default() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdecimal() and int(given) else num_cpus()
