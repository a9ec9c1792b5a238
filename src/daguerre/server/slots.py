"""Places for what takes a processor for seconds before a request joins the engine: compiling a constraint, following a
pattern through a text. Few are taken at once, so that hostile ones leave processors, and threads, to the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from daguerre.errors import QueueFullError
from daguerre.wanted import asker

LOOK = 0.1
"""Seconds between two looks at whether somebody who waits for a place has left."""


class Slots:
    """`num` places, of which one owner has at most `each` and for which at most `waiting` of one owner wait; the owner
    "", who is everybody, may have them all.
    """

    def __init__(self, num: int, each: int, waiting: int) -> None:
        self._num, self._each, self._most = num, each, waiting
        self._taken, self._waiting = Counter[str](), Counter[str]()
        self._changed = Condition()

    @contextmanager
    def taken(self, owner: str) -> Iterator[None]:
        """Wait for a place and have it. QueueFullError where too many wait; CancelledError once the asker has left."""
        with self._changed:
            if self._waiting[owner] >= self._most:
                raise QueueFullError(f"{self._most} constraints or patterns of this key wait already: ask again later")
            self._waiting[owner] += 1
            try:
                while not self._free(owner):
                    self._changed.wait(LOOK)
                    asker().check()
            finally:
                self._waiting[owner] -= 1
            self._taken[owner] += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken[owner] -= 1
                self._changed.notify_all()

    def _free(self, owner: str) -> bool:
        each = self._each if owner else self._num
        return self._taken.total() < self._num and self._taken[owner] < each
