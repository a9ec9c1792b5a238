"""The process of `daguerre serve`."""

from __future__ import annotations

import sys
from threading import Thread

from daguerre.errors import DaguerreError
from daguerre.http.log import log_lines
from daguerre.http.process import BACKLOG, GracefulServer, bind, url_of, uvicorn_config
from daguerre.http.settings import Settings
from daguerre.server.app import make_app
from daguerre.server.models import CannotLoad, ModelPool
from daguerre.server.pulls import Pulls

SWITCH = 0.001
"""Seconds after which a thread that runs Python lets another one run: the event loop may wait so long for each."""


def run_server(pool: ModelPool, settings: Settings, host: str, port: int, pulls: Pulls | None = None) -> None:
    """Serve until a signal. The first model is loaded meanwhile: until it is, /ready says 503, and requests wait.
    InputError where it cannot listen; the model's own error where that cannot be loaded.
    """
    listening = bind(host, port)
    sys.setswitchinterval(SWITCH)
    app = make_app(pool, settings, pulls)
    server = GracefulServer(uvicorn_config(app, loop="asyncio", http="h11"), app, pool.close)
    log, failed = log_lines(), list[BaseException]()
    with listening:
        where = url_of(host, listening)
        listening.listen(BACKLOG)  # before it says so: who reads the line may connect at once

        def load() -> None:
            try:
                name = _first(pool)
            except BaseException as error:
                failed.append(error)
                server.should_exit = True
                return
            app.state.loading = None
            log.line(f"daguerre: serving {name} at {where} (OpenAI's base URL: {where}/v1)")

        app.state.loading = pool.names[0]
        log.line(f"daguerre: loading {pool.names[0]}; until that is done, {where}/ready says 503")
        Thread(target=load, name="daguerre-load", daemon=True).start()
        try:
            server.run(sockets=[listening])
        finally:
            log.close()
    if failed:
        raise failed[0]


def _first(pool: ModelPool) -> str:
    """The name of the first model, loaded. Its own error where it cannot be, which clients are not told."""
    try:
        return pool.get().name
    except CannotLoad as error:
        raise error.__cause__ if isinstance(error.__cause__, DaguerreError) else error from None
