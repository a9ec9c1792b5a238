"""The process of a router: it listens, says where, writes its log, and on SIGTERM ends what it has begun."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from daguerre.errors import InputError, unknown
from daguerre.http.log import LineWriter, log_lines
from daguerre.http.process import BACKLOG, GracefulServer, bind, url_of, uvicorn_config
from daguerre.http.settings import Keys
from daguerre.router.app import make_app, make_router
from daguerre.router.config import Config
from daguerre.router.steps import classify
from daguerre.router.store import Store

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


def run_router(config: Config, keys: Keys, port: int | None = None) -> None:
    """Serve until a signal. InputError where it cannot."""
    _check_names(config, keys)
    host, listening = config.server.host, bind(config.server.host, config.server.port if port is None else port)
    try:
        store = Store(config.server.state)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"cannot open {config.server.state}: {error}") from None
    decisions = None if config.server.log is None else decision_log(config.server.log)

    def write(line: dict[str, Any]) -> None:
        if decisions is not None:
            decisions.line(orjson.dumps(line).decode())

    app = make_app(make_router(config, store, classify, write, keys), store, write)
    served = uvicorn_config(app, http=BoundedProtocol, proxy_headers=False)
    log = log_lines()
    with listening:
        where = url_of(host, listening)
        listening.listen(BACKLOG)
        names = ", ".join(one.name for one in config.backends)
        log.line(f"daguerre: routing to {names} at {where} (OpenAI's base URL: {where}/v1)")
        gc.collect()
        gc.freeze()  # what lives as long as the process is not looked through again and again
        try:
            GracefulServer(served, app).run(sockets=[listening])
        finally:
            log.close()
            if decisions is not None:
                decisions.close()


def _check_names(config: Config, keys: Keys) -> None:
    """InputError for limits of a name that no key has."""
    names = [*keys.names.values(), "default"]
    for name in config.keys:
        if name not in names:
            raise unknown("owner in the table [keys]", name, names)


def decision_log(path: Path) -> LineWriter:
    """A writer of lines at the end of a file, which begins on a line of its own. InputError where it cannot."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")
    return LineWriter(descriptor)
