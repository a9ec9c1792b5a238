"""Errors in the words of other APIs: whoever wrote an error writes OpenAI's object, which is restated by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daguerre.http.sites import under


@dataclass(frozen=True)
class Restating:
    """How an API has its errors.

    error      from OpenAI's object, the status, and the id of the request
    id_header  in which all answers have the id, too; None: in none
    """

    error: Callable[[Any, int, str | None], dict[str, Any]]
    id_header: str | None = None


class RestatedErrors:
    """The middleware that rewrites errors under some paths; other answers pass through as they come."""

    def __init__(self, app: ASGIApp, ways: Mapping[str, Restating]) -> None:
        self._app, self._ways = app, dict(ways)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            found = (way for place, way in self._ways.items() if under(scope.get("path", ""), (place,)))
            way = next(found, None)
            send = send if way is None else _Rewriting(send, way)
        await self._app(scope, receive, send)


class _Rewriting:
    """`send` that rewrites the body of an error."""

    def __init__(self, send: Send, way: Restating) -> None:
        self._send, self._way, self._start, self._body = send, way, dict[str, Any](), b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if self._way.id_header is not None:
                headers[self._way.id_header] = headers.get("x-request-id", "")
            if message["status"] >= 400:
                self._start = dict(message)
                return
        if not self._start:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if not message.get("more_body"):
            await self._finish()

    async def _finish(self) -> None:
        headers = MutableHeaders(raw=self._start["headers"])
        try:
            told = orjson.loads(self._body)
            self._body = orjson.dumps(self._way.error(told, self._start["status"], headers.get("x-request-id")))
        except (ValueError, KeyError, TypeError):
            pass
        headers["content-length"] = str(len(self._body))
        await self._send({**self._start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": self._body})
