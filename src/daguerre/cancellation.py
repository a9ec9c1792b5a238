"""Whether somebody still waits for what a thread computes.

A server makes one `Cancellation` for each request, and long loops check it through their budgets. It is the one thing
that is not passed as an argument but kept in a context variable: the functions in between, from routes over planners to
the states of an automaton, know nothing of requests.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from daguerre.errors import CancelledError, TimeUpError


class Cancellation:
    """Whether, and until when, somebody waits for a computation. Any thread may cancel it, once and for good; compiled
    code reads that at `address`.

    max_bytes  of the memory of one compilation; None: what budgets have by default
    owner      whose request it is
    until      when its time is up, on the clock of `time.monotonic`; None: never
    """

    def __init__(self, max_bytes: int | None = None, owner: str = "", until: float | None = None) -> None:
        self.max_bytes, self.owner, self.until = max_bytes, owner, until
        self._cancelled = ctypes.c_int32(0)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits any more."""
        return bool(self._cancelled.value)

    @property
    def address(self) -> int:
        """Where the int32 is that is 1 once nobody waits; it lives as long as this object."""
        return ctypes.addressof(self._cancelled)

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._cancelled.value = 1

    def check(self) -> None:
        """CancelledError once nobody waits any more, TimeUpError once time is up."""
        if self.cancelled:
            raise CancelledError("nobody waits for this any more")
        if self.until is not None and time.monotonic() > self.until:
            raise TimeUpError("the request was not done in the time that this server allows: ask for less")


NEVER_CANCELLED = Cancellation()
"""Of callers that are no request of a server."""
_CANCELLATION = ContextVar("cancellation", default=NEVER_CANCELLED)


def current_cancellation() -> Cancellation:
    """That of the computation under way; `asyncio.to_thread` takes it along."""
    return _CANCELLATION.get()


def use_cancellation(cancellation: Cancellation) -> None:
    """Let it hold for what is computed in this context from here on."""
    _CANCELLATION.set(cancellation)


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
