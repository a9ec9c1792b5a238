"""Errors on Anthropic's routes, as its clients read them: {"type": "error", "error": {"type", "message"}}."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daguerre.http import errors

PATH = "/v1/messages"
THREADS = "thread_unsupported_request"
"""The code by which a client learns to send whole conversations."""
TYPES = {**errors.TYPES, 408: "timeout_error", 413: "request_too_large", 503: "overloaded_error"}


def error_json(body: Any, status: int | None = None, request_id: str | None = None) -> dict[str, Any]:
    """OpenAI's error object as Anthropic's. status: that of the answer; None in a stream, which has none."""
    error = body["error"]
    kind = error["type"] if status is None else TYPES.get(status, "invalid_request_error")
    if kind == "server_error" or (status is not None and status >= 500 and status not in TYPES):
        kind = "api_error"
    named = {} if request_id is None else {"request_id": request_id}
    details = {"details": {"error_code": THREADS}} if error.get("code") == THREADS else {}
    return {"type": "error", "error": {"type": kind, "message": error["message"], **details}, **named}


class MessageErrors:
    """The middleware that rewrites errors, whoever wrote them; other answers pass through as they come."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope.get("path", "")
        if scope["type"] == "http" and (path == PATH or path.startswith(PATH + "/")):
            send = _Rewriting(send)
        await self._app(scope, receive, send)


class _Rewriting:
    """`send` that rewrites the body of an error."""

    def __init__(self, send: Send) -> None:
        self._send, self._start, self._body = send, dict[str, Any](), b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["request-id"] = headers.get("x-request-id", "")
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
            restated = error_json(orjson.loads(self._body), self._start["status"], headers.get("request-id"))
            self._body = orjson.dumps(restated)
        except (ValueError, KeyError, TypeError):
            pass
        headers["content-length"] = str(len(self._body))
        await self._send({**self._start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": self._body})
