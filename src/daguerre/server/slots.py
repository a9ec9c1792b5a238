"""Places for what takes a processor for seconds before a request joins the engine: compiling a constraint, following a
pattern through a text, embeddings. Few are taken at once, so that hostile ones leave processors to the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock

from daguerre.cancellation import current_cancellation
from daguerre.errors import QueueFullError

LOOK = 0.25
"""Seconds between two looks at whether somebody who waits for a place has left."""


class Slots:
    """`num` places, of which one owner has at most `each`; the owner "", who is everybody, may have them all. Owners
    who wait have turns. `waiting` more may wait, as in the engine's queue: who has less than its share of all of them
    by `weight` may also wait when others have filled them. `what` is done there, for errors.
    """

    def __init__(
        self, what: str, num: int, each: int, waiting: int, weight: Callable[[str], float] = lambda owner: 1.0
    ) -> None:
        self._what, self._num, self._each, self._weight = what, num, each, weight
        self._most = num + waiting
        self._taken = Counter[str]()
        self._waiting = dict[str, deque[Event]]()  # the owner whose turn is next is first
        self._lock = Lock()

    @contextmanager
    def taken(self, owner: str) -> Iterator[None]:
        """Wait for a place and have it. QueueFullError where too many wait; `Cancellation.check` ends the wait."""
        given = self._enter(owner)
        try:
            while not given.wait(LOOK):
                current_cancellation().check()
            yield
        finally:
            self._leave(owner, given)

    def num_waiting(self, owner: str) -> int:
        """How many of an owner wait."""
        return len(self._waiting.get(owner, ()))

    def _enter(self, owner: str) -> Event:
        given = Event()
        with self._lock:
            self._check_share(owner)
            self._waiting.setdefault(owner, deque()).append(given)
            self._give()
        return given

    def _leave(self, owner: str, given: Event) -> None:
        with self._lock:
            if given.is_set():
                self._taken[owner] -= 1
                if not self._taken[owner]:
                    del self._taken[owner]
            else:
                self._waiting[owner].remove(given)
                if not self._waiting[owner]:
                    del self._waiting[owner]
            self._give()

    def _check_share(self, owner: str) -> None:
        num = self._taken.total() + sum(map(len, self._waiting.values()))
        own = self._taken[owner] + self.num_waiting(owner)
        weights = sum(map(self._weight, {owner, *self._taken, *self._waiting}))
        if num + 1 > self._most and own + 1 > self._most * self._weight(owner) / weights:
            raise QueueFullError(f"{num} {self._what} are computed or wait, of at most {self._most}: ask again later")

    def _give(self) -> None:
        """Give the free places to those whose turn it is."""
        while self._taken.total() < self._num and (owner := self._next()) is not None:
            line = self._waiting.pop(owner)
            self._taken[owner] += 1
            line.popleft().set()
            if line:
                self._waiting[owner] = line

    def _next(self) -> str | None:
        for owner in self._waiting:
            if self._taken[owner] < (self._each if owner else self._num):
                return owner
        return None
