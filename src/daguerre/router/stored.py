"""Responses that a backend keeps: fetched, listed, canceled and deleted where they are."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from daguerre.http.errors import ApiError
from daguerre.router.replies import BackendError, passed_back
from daguerre.router.upstream import Reply

router = APIRouter()
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
    name = served.holder(getattr(request.state, "owner", ""), key)
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
    return _Passed(reply, headers, stack)


class _Passed(StreamingResponse):
    """What a backend sends, as it comes, so that none of it is kept here. `stack` ends the request to the backend."""

    def __init__(self, reply: Reply, headers: dict[str, str], stack: AsyncExitStack) -> None:
        super().__init__(reply.chunks, reply.status, headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._stack:
            await super().__call__(scope, receive, send)
