"""The application: models, routes and what is around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from fastapi import Depends, FastAPI

import daguerre
from daguerre.http import errors, pages
from daguerre.http.middleware import RequestMiddleware
from daguerre.http.settings import Settings
from daguerre.http.sites import allowing
from daguerre.server.bodies import Bodies
from daguerre.server.bounds import within_bounds
from daguerre.server.metrics import Metrics
from daguerre.server.models import ModelPool
from daguerre.server.openapi import describe
from daguerre.server.pulls import Pulls
from daguerre.server.restated import RestatedErrors
from daguerre.server.routes import ROUTERS, messages, ollama
from daguerre.server.stored import ResponseStore
from daguerre.server.watching import Registry

THREADS, MOST_THREADS = 64, 1024
"""In which requests are planned, and models loaded; and with those beside them that wait for a place (`slots`). These
hold up nobody while they are at most `max_waiting` of one owner for each model, and fewer than MOST_THREADS.
"""


def request_threads(pool: ModelPool) -> ThreadPoolExecutor:
    """The threads for the requests to these models. None of them is started before it is needed."""
    waiting = 2 * pool.max_waiting * len(pool.names)
    return ThreadPoolExecutor(min(THREADS + waiting, MOST_THREADS), "daguerre-request")


def make_app(pool: ModelPool, settings: Settings | None = None, pulls: Pulls | None = None) -> FastAPI:
    """The application that serves these models. pulls: what brings more of them; None: nothing does."""
    settings = settings or Settings()

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(request_threads(pool))
        yield
        await asyncio.to_thread(pool.close, settings.drain)

    app = FastAPI(title="Daguerre", version=daguerre.__version__, lifespan=living, docs_url=None, redoc_url=None)
    app.state.pool, app.state.settings, app.state.metrics = pool, settings, Metrics(pool)
    app.state.draining, app.state.loading, app.state.num_running = False, None, 0
    app.state.requests, app.state.responses, app.state.pulls = Registry(), ResponseStore(), pulls
    pool.on_done, pool.bounds = app.state.metrics.done, settings
    errors.install(app)
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(within_bounds)])
    app.include_router(pages.router)
    describe(app)
    app.add_middleware(Bodies)
    if settings.origins:
        app.add_middleware(partial(allowing, settings))
    app.add_middleware(RequestMiddleware, settings=settings, metrics=app.state.metrics)
    app.add_middleware(RestatedErrors, ways={"/v1/messages": messages.RESTATED, "/api": ollama.RESTATED})
    return app
