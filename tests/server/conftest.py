"""A server in a thread, on a real socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI

import daguerre
from concept_models import with_heads
from daguerre.http.settings import Settings
from daguerre.model import Model
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool


class Prompt(uvicorn.Server):
    """uvicorn's server without its pauses of a tenth of a second: it says when it listens, and stops when told to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens, self._stopped = threading.Event(), asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.listens.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._stopped.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in (*self.servers, *(sockets or ())):
            one.close()
        told = set[Any]()
        await asyncio.sleep(0.002)
        while self.server_state.connections or self.server_state.tasks:
            for connection in self.server_state.connections - told:  # one may have been accepted just now
                told.add(connection)
                connection.shutdown()
            await asyncio.sleep(0.002)
        await self.lifespan.shutdown()

    def stop(self) -> None:
        """From another thread."""
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._stopped.set)


@contextmanager
def running(app: FastAPI, http: Any = "h11") -> Iterator[str]:
    """The application on a free port of this machine; its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        server = Prompt(uvicorn.Config(app, http=http, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert server.listens.wait(60)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.stop()
            thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def tiny(make_model: Callable[..., Model]) -> Model:
    """A random model of two layers; its texts mean nothing. A server takes it as it is, not a copy of it."""
    made = make_model(draft_head=24)
    made.tokenizer = made.tokenizer.limited(made.config.max_positions)
    return made


@pytest.fixture(scope="session")
def trained() -> Model:
    """The default model."""
    return daguerre.load()


@pytest.fixture(scope="session")
def server(tiny: Model, trained: Model) -> Iterator[str]:
    """The address of a server of both models, "tiny" and "default"."""
    pool = ModelPool({"default": lambda: trained, "tiny": lambda: tiny})
    with running(make_app(pool)) as url:
        yield url


@pytest.fixture(scope="session")
def headed(make_model: Callable[..., Model]) -> Model:
    """A random model with concept heads."""
    return with_heads(make_model, draft_head=24)


@pytest.fixture(scope="module")
def concept_pool(headed: Model, tiny: Model) -> ModelPool:
    """That model as "headed", and as "tiny" one without heads; PyTorch computes both, whose last
    bits depend on what is computed at once: no prefix is stored. A server closes its pool.
    """
    loaders = {"headed": lambda: headed, "tiny": lambda: Model(tiny.backbone, tiny.tokenizer, "torch")}
    return ModelPool(loaders, store_prefixes=False)


@pytest.fixture
def client(server: str) -> Iterator[httpx2.Client]:
    """A client of `server`."""
    with httpx2.Client(base_url=server, timeout=60) as one:
        yield one


@pytest.fixture
def serve(tiny: Model) -> Iterator[Callable[..., httpx2.Client]]:
    """serve(**settings): a client of a server of its own, whose model is "tiny"."""
    open_now: list[Any] = []

    def start(limits: dict[str, Any] | None = None, **settings: Any) -> httpx2.Client:
        pool = ModelPool({"tiny": lambda: tiny}, **(limits or {}))
        context = running(make_app(pool, Settings(**settings)))
        one = httpx2.Client(base_url=context.__enter__(), timeout=60)
        open_now.append((context, one))
        return one

    yield start
    for context, one in open_now:
        one.close()
        context.__exit__(None, None, None)
