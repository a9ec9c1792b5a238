"""The process of a router: it listens, says where, writes its log, and on SIGTERM ends what it has begun."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import orjson

from daguerre.errors import InputError, unknown
from daguerre.http.log import LineWriter, log_lines
from daguerre.http.process import BACKLOG, GracefulServer, bind, url_of, uvicorn_config
from daguerre.http.settings import Keys
from daguerre.router.app import make_app, make_router
from daguerre.router.bounded import BoundedProtocol
from daguerre.router.config import Config
from daguerre.router.steps import classify
from daguerre.router.store import Store


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
