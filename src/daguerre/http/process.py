"""The process of a server: it listens, says where, and on SIGTERM ends what it has begun."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from daguerre.errors import InputError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CUT = 2.0
"""Seconds in which answers that were cut off at the end of the drain are sent."""
BACKLOG = 2048
"""Connections that wait to be accepted."""
KEEP_ALIVE = 75
"""Seconds after which a connection is closed that nobody uses: later than clients close theirs, or they would now and
then ask on one that is being closed.
"""
GRACE = 5.0
"""Seconds after the drain at which the process ends whatever hangs."""


class GracefulServer(uvicorn.Server):
    """A server whose process ends with status 0 after a signal, once what it has begun is done.

    Until then it listens: /ready says 503, and so does the answer to a new request. After `drain` seconds requests that
    still run end with an error (`close`). A second signal ends the process at once, with the signal's status.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, close: Callable[[], object] = lambda: None) -> None:
        super().__init__(config)
        self._app, self._close, self._stop_at = app, close, None  # type: FastAPI, Callable[[], object], float | None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take no more requests; end at once on a second signal."""
        if self._stop_at is not None:
            os._exit(128 + sig)
        drain = self._app.state.settings.drain
        self._app.state.draining, self._stop_at = True, time.monotonic() + drain
        last = Timer(drain + GRACE, os._exit, (0,))
        last.daemon = True
        last.start()

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop, ten times a second."""
        if self._stop_at is not None:
            late = time.monotonic() >= self._stop_at
            if late:
                await asyncio.to_thread(self._close)
            self.should_exit = late or not self._app.state.num_running
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections, once what was answered is sent."""
        left = 0.0 if self._stop_at is None else self._stop_at - time.monotonic()
        self.config.timeout_graceful_shutdown = int(max(CUT, left))
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the block runs. uvicorn's own raises them again afterward, which would end the process
        with the signal's status.
        """
        old = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket with this address, which does not listen yet. InputError for an address that cannot be had."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port") from None
    return found


def url_of(host: str, listening: socket.socket) -> str:
    """The URL of a socket that was bound for this host."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def uvicorn_config(app: FastAPI, **how: Any) -> uvicorn.Config:
    """How an application is served. how: as `uvicorn.Config` takes it."""
    return uvicorn.Config(
        app, log_config=None, log_level="warning", access_log=False, timeout_keep_alive=KEEP_ALIVE, **how
    )
