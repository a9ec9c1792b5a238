"""Bodies of requests that are being received. Each has a deadline and a least rate; all together have a limit, which
their senders share.

When there are too many bodies or bytes, one body is given up, with status 503: of the owner who is sending most, and
of that owner's addresses the one that is sending most. If the new body comes from there, it is given up itself; else
the oldest of theirs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from starlette.types import Message, Receive

from daguerre.http.errors import ApiError

MOST_BODIES = 256
MOST_BYTES = 64 << 20
"""Of all bodies on their way; or as many as one may have, where an operator allows it more."""
LEAST_RATE = 1024
"""Bytes a second."""
FREE_SECONDS = 10.0
"""After which the rate counts."""


class ClientLeft(Exception):
    """The client went away before its request was whole."""


class IncomingBody:
    """One of them, of an owner, from an address."""

    def __init__(self, owner: str, address: str, seconds: float) -> None:
        self.owner, self.address = owner, address
        self.parts, self.size, self.given_up = list[bytes](), 0, False
        self.timeout = asyncio.timeout(None)
        self._began, self._seconds = asyncio.get_running_loop().time(), seconds

    def wait(self) -> None:
        """Move the deadline to where the bytes so far allow."""
        self._until(min(self._seconds, FREE_SECONDS + self.size / LEAST_RATE))

    def give_up(self) -> None:
        """End the wait for it."""
        self.given_up = True
        self._until(0.0)

    def _until(self, seconds: float) -> None:
        if not self.timeout.expired():
            self.timeout.reschedule(self._began + seconds)


class Incoming:
    """All bodies of a server that are on their way. seconds: within which each must be there."""

    def __init__(self, seconds: float, most: int = MOST_BODIES, most_bytes: int = MOST_BYTES) -> None:
        self._seconds, self._most, self._most_bytes = seconds, most, most_bytes
        self._open = dict[IncomingBody, None]()

    async def read(self, receive: Receive, owner: str, address: str, most: int) -> bytes:
        """A whole body. ApiError if it has more than `most` bytes, is late, or is given up;
        ClientLeft where the client goes away.
        """
        body = IncomingBody(owner, address, self._seconds)
        self._open[body] = None
        try:
            async with body.timeout:
                self._share(body)
                while await self._part(body, receive, most):
                    self._share(body)
        except TimeoutError:
            raise _too_many() if body.given_up else _too_late() from None
        finally:
            self._open.pop(body, None)
        return b"".join(body.parts)

    async def _part(self, body: IncomingBody, receive: Receive, most: int) -> bool:
        """Read the next part; whether others follow."""
        body.wait()
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        body.parts.append(part)
        body.size += len(part)
        if body.size > most:
            raise too_large(most)
        return bool(message.get("more_body"))

    def _share(self, body: IncomingBody) -> None:
        """Give bodies up until the others are within the limits. ApiError where it is this one."""
        while (many := len(self._open) > self._most) or sum(one.size for one in self._open) > self._most_bytes:
            other = self._of_most(body, (lambda one: 1) if many else (lambda one: one.size))
            if other is body:
                raise _too_many()
            self._open.pop(other)
            other.give_up()

    def _of_most(self, body: IncomingBody, measure: Callable[[IncomingBody], int]) -> IncomingBody:
        """The body to be given up."""
        owners = Counter[str]()
        for one in self._open:
            owners[one.owner] += measure(one)
        most = max(owners.values())
        owner = body.owner if owners[body.owner] == most else next(name for name in owners if owners[name] == most)
        addresses = Counter[str]()
        for one in self._open:
            if one.owner == owner:
                addresses[one.address] += measure(one)
        most = max(addresses.values())
        if owner == body.owner and addresses[body.address] == most:
            return body
        return next(one for one in self._open if one.owner == owner and addresses[one.address] == most)


def received(body: bytes, receive: Receive) -> Receive:
    """`receive` of a request whose body is there: what comes after it is that the client leaves."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


def too_large(most: int) -> ApiError:
    """The error of a body that is too large."""
    return ApiError(f"the request is larger than {most} bytes: send less", 413, code="request_too_large")


def _too_late() -> ApiError:
    return ApiError("the request's body did not come in time: send it faster", 408, code="body_timeout")


def _too_many() -> ApiError:
    return ApiError("too many requests are still being received: send it again later", 503, code="too_many_bodies")
