"""Whether somebody still waits for what a thread computes.

A server says so once for each request (`Asker`), and the loops that take long look at it through their budgets. It is
the one thing that is not passed as an argument: what it would have to be passed through, from a route over planners to
the states of an automaton, has nothing to do with requests.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from daguerre.errors import CancelledError, TimeUpError


class Asker:
    """Who waits for a computation. `left` is set once, from any thread; compiled code reads it at `address`.

    max_bytes  of the memory of one compilation; None: what budgets have by default
    owner      whose request it is
    until      when its time is up, on the clock of `time.monotonic`; None: never
    """

    def __init__(self, max_bytes: int | None = None, owner: str = "", until: float | None = None) -> None:
        self.max_bytes, self.owner, self.until = max_bytes, owner, until
        self._left = ctypes.c_int32(0)

    @property
    def left(self) -> bool:
        """Whether nobody waits any more."""
        return bool(self._left.value)

    @property
    def address(self) -> int:
        """Where the int32 is that is 1 once nobody waits; it lives as long as this object."""
        return ctypes.addressof(self._left)

    def leave(self) -> None:
        """Nobody waits any more."""
        self._left.value = 1

    def check(self) -> None:
        """CancelledError once nobody waits any more, TimeUpError once time is up."""
        if self.left:
            raise CancelledError("nobody waits for this any more")
        if self.until is not None and time.monotonic() > self.until:
            raise TimeUpError("the request was not done in the time that this server allows: ask for less")


NOBODY_LEFT = Asker()
"""Of whoever is not the request of a server."""
_ASKER = ContextVar("asker", default=NOBODY_LEFT)


def asker() -> Asker:
    """Who waits for what is computed here; `asyncio.to_thread` takes it along."""
    return _ASKER.get()


def asked_by(one: Asker) -> None:
    """Say who waits for what is computed in this context from here on."""
    _ASKER.set(one)


Place = Callable[[], AbstractContextManager[None]]
_PLANNING: ContextVar[tuple[float, Place] | None] = ContextVar("planning", default=None)


@contextmanager
def planning(place: Place = nullcontext) -> Iterator[float]:
    """Within it one request is planned: budgets that are made there count from its beginning, all together, and what is
    compiled there is compiled in a `place`. It yields that beginning: the processor time of this thread, in seconds,
    which is of no use to another one.
    """
    began = time.thread_time()
    token = _PLANNING.set((began, place))
    try:
        yield began
    finally:
        _PLANNING.reset(token)


def began() -> float:
    """Where a budget that is made now counts from, on the clock of this thread's processor time."""
    found = _PLANNING.get()
    return time.thread_time() if found is None else found[0]


def compiling() -> AbstractContextManager[None]:
    """The place for what takes a processor for seconds; outside of `planning` there is always one."""
    found = _PLANNING.get()
    return nullcontext() if found is None else found[1]()
