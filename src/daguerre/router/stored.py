"""Routes of what the router and its backends keep: the names of models, and responses, fetched, listed, canceled and
deleted where they are.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from daguerre.errors import shown
from daguerre.http.errors import ApiError
from daguerre.router.config import Config
from daguerre.router.replies import BackendError, passed_back
from daguerre.router.upstream import PassedOn

router = APIRouter()


@router.get("/v1/models", response_model=None)
async def all_models(request: Request) -> dict[str, Any]:
    """All names."""
    return {"object": "list", "data": [_model(name) for name in _names(request)]}


@router.get("/v1/models/{name:path}", response_model=None)
async def one_model(request: Request, name: str) -> dict[str, Any]:
    """One name. ApiError for one that is not listed."""
    known = _names(request)
    if name not in known:
        said = f"there is no model {shown(name)}: ask for one of {', '.join(known)}"
        raise ApiError(said, 404, "model", "model_not_found")
    return _model(name)


def _names(request: Request) -> list[str]:
    config: Config = request.app.state.router.config
    return ["auto", *(one.name for one in config.backends if "backend" in config.overrides)]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "daguerre"}


Key = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,128}$")]


@router.get("/v1/responses/{key}")
async def fetch(request: Request, key: Key) -> Response:
    """A response that is kept."""
    return await _at_its_backend(request, key, "")


@router.delete("/v1/responses/{key}")
async def delete(request: Request, key: Key) -> Response:
    """Forget a response."""
    return await _at_its_backend(request, key, "")


@router.post("/v1/responses/{key}/cancel")
async def cancel(request: Request, key: Key) -> Response:
    """Cancel a response that is computed in the background."""
    return await _at_its_backend(request, key, "/cancel")


@router.get("/v1/responses/{key}/input_items")
async def input_items(request: Request, key: Key) -> Response:
    """What a response was asked."""
    return await _at_its_backend(request, key, "/input_items")


async def _at_its_backend(request: Request, key: str, below: str) -> Response:
    """The answer of the backend that keeps a response. ApiError where none does, or it does not answer."""
    served = request.app.state.router
    name = served.store.holder(getattr(request.state, "owner", ""), [key])
    if name is None:
        raise ApiError(f"there is no response {key!r} here: it was not kept, or 30 days have passed", 404, "id")
    if request.query_params.get("stream") == "true":
        raise ApiError("a response that is kept is given whole: leave stream out", 400, "stream")
    stack = AsyncExitStack()
    try:
        asked = served.upstreams.fetch(name, request.method, f"/responses/{key}{below}", request.url.query)
        reply = await stack.enter_async_context(asked)
    except BackendError as error:
        raise ApiError(str(error), 502, code="backend_failed") from None
    headers = {"content-type": passed_back(reply.headers, reply.streamed)["content-type"], "x-route-backend": name}
    return PassedOn(reply.chunks, reply.status, headers, stack)
