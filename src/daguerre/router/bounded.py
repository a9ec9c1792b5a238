"""HTTP of clients, parsed in C, with heads of a bounded size, and an answer's head in one piece with its body."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 << 10
"""Bytes of a request's line and headers; what arrives with them in one piece does not count."""


class Joined:
    """A transport that sends the head of an answer with what is written next, if that follows at once: each write is a
    call of the system, and wakes the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._head = transport, loop, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes, or keep a head until the next ones or the loop's next turn."""
        if not self._head and data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._send_head)
            return
        self._transport.write(self._head + data)
        self._head = b""

    def close(self) -> None:
        """Close when all is sent."""
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol over httptools, which has no limit of its own: a longer head ends the connection with 400."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head, self._in_head = 0, True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        if self._in_head and self._head > MOST_HEAD:
            self.send_400_response(f"The line and the headers of a request are at most {MOST_HEAD} bytes.")
            return
        if self._in_head:
            self._head += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole: the next one may follow."""
        self._head, self._in_head = 0, True
        super().on_message_complete()
