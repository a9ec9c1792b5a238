"""What every request passes first: an id, where it comes from, a key, limits, its body, and a line in the log.

Plain ASGI, so that streams are not held back.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from starlette.datastructures import Headers, MutableHeaders, State
from starlette.types import ASGIApp, Receive, Scope, Send

from daguerre.http.errors import ApiError, answer
from daguerre.http.incoming import MOST_BYTES, ClientLeft, Incoming, received, too_large
from daguerre.http.log import ACCESS, stamp
from daguerre.http.settings import Settings
from daguerre.http.sites import check_site, under

LOG = logging.getLogger(ACCESS)
AS_JSON = json.JSONEncoder(ensure_ascii=False).encode
OPEN = (
    "/",
    "/health",
    "/v1/health",
    "/ready",
    "/metrics",
    "/version",
    "/api/version",
    "/openapi.json",
    "/docs",
    "/playground",
    "/page",
)
"""Paths, and folders, that need no key."""
MINUTE = 60.0
LONGEST_PATH = 1_000
"""Characters of a path that a log has."""
LOGGED = 64 << 10
"""Bytes of a request, and of an answer, that a log with texts has."""


class AnswerCounter(Protocol):
    """What counts answers."""

    def answered(self, route: str, status: int) -> None:
        """An answer of a route, by its path, with this status."""


class RequestMiddleware:
    """The middleware. While the application's state is `draining`, no more requests are taken."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: AnswerCounter) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._asked: dict[str, deque[float]] = defaultdict(deque)
        self._running: dict[str, int] = defaultdict(int)
        self._incoming = Incoming(settings.body_timeout, most_bytes=max(MOST_BYTES, settings.max_body))

    def around(self, app: ASGIApp) -> RequestMiddleware:
        """A copy in front of another application, which shares the limits and counts."""
        other = copy.copy(self)
        other._app = app
        return other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if 0 < len(given) <= 128 and given.isprintable() else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        state, texts = scope["app"].state, _Texts() if self._settings.log_text else None
        seen = _Seen(send, request_id, self._settings.write_timeout, state, texts)
        owner, started = None, time.perf_counter()
        try:
            check_site(scope, headers, self._settings)
            owner = self._enter(scope, headers)
            state.num_running += owner is not None
            if owner is None:
                await self._app(scope, receive, seen)
            else:
                await self._served(scope, owner, receive, seen, texts)
        except ClientLeft:
            return
        except Exception as error:
            if seen.late:  # there is nobody to tell
                return
            if seen.status:
                raise
            await answer(error)(scope, receive, seen)
        finally:
            state.num_running -= owner is not None
            self._log(scope, request_id, seen.status, time.perf_counter() - started, texts)

    def _enter(self, scope: Scope, headers: Headers) -> str | None:
        """The owner of a request that is let in; None for what everybody may ask. ApiError for one that is not."""
        path, keys = scope["path"], self._settings.keys
        if scope["method"] == "OPTIONS" or under(path, OPEN):
            return None
        if scope["app"].state.draining:
            raise ApiError("the server is stopping: ask another one", 503, code="draining")
        owner = keys.owner(_key(headers))
        if owner is None:
            message = "this API key is not known: send it as `Authorization: Bearer KEY`"
            raise ApiError(message, 401, code="invalid_api_key")
        if int(headers.get("content-length") or 0) > self._settings.max_body:
            raise too_large(self._settings.max_body)
        self._count(owner)
        scope["state"] |= {"owner": owner, "owner_name": keys.name(owner)}
        return owner

    def _count(self, owner: str) -> None:
        """Count a request of an owner against the limit of a minute."""
        most, now = self._settings.requests_per_minute, time.monotonic()
        if most is None:
            return
        asked = self._asked[owner]
        while asked and asked[0] < now - MINUTE:
            asked.popleft()
        if len(asked) >= most:
            raise ApiError(f"this key may ask {most} times a minute: wait", 429, code="rate_limit_exceeded")
        asked.append(now)

    async def _served(self, scope: Scope, owner: str, receive: Receive, seen: _Seen, texts: _Texts | None) -> None:
        """Serve a request that was let in, once all of it is there: until then it takes no place of its owner."""
        address = (scope.get("client") or ("",))[0]
        try:
            body = await self._incoming.read(receive, owner, address, self._settings.max_body)
        except ApiError as error:
            seen.closes = error.http_status != 413  # what is only too large ends, and then the next request follows
            raise
        scope["state"]["body"] = body
        if texts is not None:
            texts.request += body[:LOGGED]
        with self._running_of(owner):
            await self._app(scope, received(body, receive), seen)

    @contextmanager
    def _running_of(self, owner: str) -> Iterator[None]:
        """Count a request among those that its owner has at once."""
        most = self._settings.running_per_key
        if most is not None and self._running[owner] >= most:
            raise ApiError(f"this key may have {most} requests at once: wait for one", 429, code="too_many_running")
        self._running[owner] += 1
        try:
            yield
        finally:
            self._running[owner] -= 1

    def _log(self, scope: Scope, request_id: str, status: int, seconds: float, texts: _Texts | None) -> None:
        owner = scope["state"].get("owner_name")
        line = {
            "time": stamp(time.time()),
            "id": request_id,
            "method": scope["method"],
            "path": scope["path"][:LONGEST_PATH],
            "status": status or 499,
            "seconds": round(seconds, 4),
            **({"key": owner} if owner else {}),
            **scope["state"].get("log", {}),
            **({} if texts is None else texts.read()),
        }
        LOG.info("%s", AS_JSON(line))
        route = scope.get("route")
        self._metrics.answered("other" if route is None else route.path, status or 499)


def _key(headers: Headers) -> str | None:
    """The key of a request: a bearer token, or Anthropic's header."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key if scheme.lower() == "bearer" else headers.get("x-api-key")


class _Texts:
    """The beginning of a request and of its answer, for the log."""

    def __init__(self) -> None:
        self.request, self.answer = bytearray(), bytearray()

    def read(self) -> dict[str, str]:
        """Both, as text."""
        return {name: getattr(self, name).decode("utf-8", "replace") for name in ("request", "answer")}


class _Seen:
    """`send` that adds the request's id and notes the status. TimeoutError where the client reads nothing for so many
    seconds. closes: whether the connection ends with the answer.
    """

    def __init__(self, send: Send, request_id: str, seconds: float, state: State, texts: _Texts | None) -> None:
        self._send, self._id, self._seconds, self._state, self._texts = send, request_id, seconds, state, texts
        self.status, self.late, self.closes = 0, False, False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._id
            if self._state.draining or self.closes:
                headers["connection"] = "close"  # or a client would ask again where nobody answers, or send the rest
        if self._texts is not None:
            self._texts.answer += message.get("body", b"")[: LOGGED - len(self._texts.answer)]
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            self.late = True
            raise
