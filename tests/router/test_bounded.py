"""The size of a request's head, over a real socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from daguerre.router.app import make_app, make_router
from daguerre.router.run import MOST_HEAD, BoundedProtocol, Joined
from daguerre.router.store import Store
from routing import backend, config
from server.conftest import running

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture
def port() -> Iterator[int]:
    store = Store(None)
    router = make_router(config(backend("a")), store, lambda reading, body: {"plan": 1.0}, lambda line: None)
    app = make_app(router, store, lambda line: None)
    with running(app, BoundedProtocol) as url:
        yield int(url.rpartition(":")[2])


def asked(port: int, *parts: bytes) -> bytes:
    """What a connection is answered to parts that are sent one after the other, until it is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        out = b""
        try:
            for part in parts:
                one.sendall(part)
                time.sleep(0.001)  # so that they do not come as one
            one.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass
        try:
            while data := one.recv(65536):
                out += data
        except ConnectionError:
            pass
        return out


def test_a_head_of_some_size_is_read_and_the_next_on_the_connection_too(port: int) -> None:
    large = b"x-note: " + b"a" * (MOST_HEAD - 100) + b"\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        for _ in range(3):
            one.sendall(GET + large)
            found = b""
            while not found.endswith(b'{"status":"ok"}'):
                data = one.recv(65536)
                assert data, found
                found += data
            assert found.startswith(b"HTTP/1.1 200 OK")
        one.sendall(2 * (GET + b"\r\n"))  # the second while the first is answered
        found = b""
        while found.count(b'{"status":"ok"}') < 2:
            data = one.recv(65536)
            assert data, found
            found += data


@pytest.mark.parametrize("piece", [b"a" * 9000, b"x-a: " + b"b" * 9000 + b"\r\n"], ids=["one header", "many"])
def test_a_head_without_an_end_ends_the_connection(port: int, piece: bytes) -> None:
    found = asked(port, GET + b"x-note: ", *[piece] * 30)
    assert b"200 OK" not in found
    assert not found or (b"400 Bad Request" in found and b"65536" in found)


class Sent:
    """A transport and a loop, which note what is done with them."""

    def __init__(self) -> None:
        self.written, self.closed, self.later = list[bytes](), False, list[Callable[[], None]]()

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def call_soon(self, what: Callable[[], None]) -> None:
        self.later.append(what)


def test_a_head_goes_out_with_what_follows_or_alone_in_the_next_turn() -> None:
    sent = Sent()
    one: Any = Joined(sent, sent)  # type: ignore[arg-type]
    one.write(b"HTTP/1.1 200 OK\r\n\r\n")
    one.write(b"body")
    one.write(b"more")
    assert sent.written == [b"HTTP/1.1 200 OK\r\n\r\nbody", b"more"]
    sent.later.pop()()
    assert len(sent.written) == 2
    one.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    sent.later.pop()()
    one.write(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    one.close()
    assert sent.closed and [part[9:12] for part in sent.written[2:]] == [b"204", b"503"]
