"""The application of a router: OpenAI's routes in front of backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import daguerre
from daguerre.http import errors, pages
from daguerre.http.middleware import RequestMiddleware
from daguerre.http.pages import COUNTERS
from daguerre.http.settings import Keys, Settings
from daguerre.http.sites import allowing
from daguerre.router import stored
from daguerre.router.config import Config
from daguerre.router.log import config_line
from daguerre.router.openapi import describe
from daguerre.router.proxy import Classify, Router
from daguerre.router.routed_request import Write
from daguerre.router.store import Store
from daguerre.router.upstream import Upstreams

ROUTES = {
    "/v1/chat/completions": ("chat", "/chat/completions"),
    "/v1/completions": ("completions", "/completions"),
    "/v1/responses": ("responses", "/responses"),
    "/v1/embeddings": ("embeddings", "/embeddings"),
    "/v1/fim/completions": ("fim", "/fim/completions"),
    "/v1/edit/completions": ("edit", "/edit/completions"),
    "/v1/decisions": ("decisions", "/decisions"),
}
"""By path: the operation, and the path below a backend's base URL."""


def make_app(router: Router, store: Store, write: Write) -> FastAPI:
    """The application of a router."""
    config = router.config
    told = config.server
    settings = Settings(keys=router.keys, max_body=told.most_body, body_timeout=told.body_timeout, origins=told.origins)

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        write(config_line(config))
        yield
        await router.close()
        store.close()

    app = App(title="Daguerre router", version=daguerre.__version__, lifespan=living, docs_url=None, redoc_url=None)
    app.state.settings, app.state.draining, app.state.num_running = settings, False, 0
    app.state.router = router
    errors.install(app)
    backed = {path: Backed(router, path) for path in ROUTES}
    app.router.routes += [Route(path, one, methods=["POST"]) for path, one in backed.items()]
    app.add_api_route("/metrics", lambda: Response(router.watch.text(), media_type=COUNTERS), methods=["GET"])
    app.add_api_route("/status", status, methods=["GET"])
    app.add_api_route("/health", lambda: {"status": "ok"}, methods=["GET"])
    app.include_router(pages.static_pages("daguerre.router", "page"))
    app.include_router(pages.router)
    app.include_router(stored.router)
    describe(app, config)
    gate = RequestMiddleware(app, settings, router.watch)
    app.add_middleware(partial(allowing, settings))
    app.add_middleware(gate.around)
    app.short = {path: gate.around(allowing(settings, one)) for path, one in backed.items()}
    return app


def make_router(
    config: Config, store: Store, classify: Classify, write: Write, keys: Keys | None = None, **how: Any
) -> Router:
    """A router of a configuration, whose lines `write` takes. keys: of those who may ask."""
    return Router(config, Upstreams(config, **how), store, classify, write, keys or Keys())


async def status(request: Request) -> dict[str, Any]:
    """How the router and its backends are doing."""
    router: Router = request.app.state.router
    return router.status(request.state.owner)


class App(FastAPI):
    """The application. A request that a backend answers goes to its route at once, without what FastAPI puts before
    one, which takes as long as a decision.

    short  by path: the gate, and such a route behind it
    """

    short: Mapping[str, RequestMiddleware] = MappingProxyType({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        gate = self.short.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if gate is None:
            await super().__call__(scope, receive, send)
        else:
            scope["app"] = self
            await gate(scope, receive, send)


class Backed:
    """The route of a path that backends serve, in plain ASGI."""

    def __init__(self, router: Router, path: str) -> None:
        self.path, self._router = path, router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        scope["route"] = self
        response = await self._router.serve(Request(scope, receive, send), *ROUTES[self.path])
        await response(scope, receive, send)
