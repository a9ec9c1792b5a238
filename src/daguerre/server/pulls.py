"""Models that a request brings onto the machine, where the operator lets the owner of one key do that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from threading import Event, Lock

from daguerre.http.errors import ApiError
from daguerre.model import Model
from daguerre.server.models import ModelPool

Told = Callable[[int, int], object]
"""Called with the bytes that are there, and those of all files together. What it raises ends the transfer."""
PAUSE = 0.25
"""Seconds between two lines about a transfer."""


@dataclass(eq=False)
class Pulls:
    """What brings models, one at a time.

    bring   brings a model by its name, tells how far it is, and returns what loads it
    owner   who may ask (`Keys`)
    most    bytes that requests may bring while the server runs
    """

    bring: Callable[[str, Told], Callable[[], Model]]
    owner: str
    most: int
    _used: int = field(default=0, init=False)
    _busy: Lock = field(default_factory=Lock, init=False)

    def check(self, owner: str) -> None:
        """ApiError, 403, for anybody else."""
        if owner != self.owner:
            message = "this key may bring no models: ask the operator (serve --pull names the key that may)"
            raise ApiError(message, 403, code="pull_forbidden")

    def pull(self, pool: ModelPool, name: str, told: Told) -> None:
        """Bring a model and add it to the others, by its name. ApiError while another one is brought, and, before
        anything beyond is written, where its files have more bytes than are left.
        """
        if not self._busy.acquire(blocking=False):
            raise ApiError("another model is being brought: ask again once it is there", 429, code="pull_busy")
        seen = 0

        def counted(done: int, total: int) -> None:
            nonlocal seen
            seen = max(seen, done)
            if max(done, total) > self.most - self._used:
                message = f"{name} has {max(done, total):,} bytes, and {self.most - self._used:,} may yet be brought"
                raise ApiError(f"{message}: the operator can allow more (serve --pull-gib)", 413, code="pull_too_large")
            told(done, total)

        try:
            pool.add(name, self.bring(name, counted))
        finally:
            self._used += seen
            self._busy.release()


async def pulled(pulls: Pulls, pool: ModelPool, name: str) -> AsyncIterator[tuple[int, int]]:
    """Bring a model: how many bytes are there, and of how many, a few times a second. Whoever stops reading ends it."""
    left, state = Event(), [(0, 0)]

    def told(so_far: int, total: int) -> None:
        if left.is_set():
            raise ApiError("the client has left", 499)
        state[0] = (so_far, total)

    working = asyncio.create_task(asyncio.to_thread(pulls.pull, pool, name, told))
    try:
        while not working.done():
            await asyncio.wait((working,), timeout=PAUSE)
            if state[0][1]:
                yield state[0]
        await working
    finally:
        left.set()
        if not working.done():
            working.add_done_callback(lambda task: task.cancelled() or task.exception())
