"""HTTP of clients, parsed in C, with heads of a bounded size."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 << 10
"""Bytes of a request's line and headers; what arrives with them in one piece does not count."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol over httptools, which has no limit of its own: a longer head ends the connection with 400."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head, self._in_head = 0, True

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
