"""A request on its way: read, decided, sent to one backend after the other until one answers, passed on, logged.

Before the first byte reaches the client, a backend that fails is followed by the next of the decision's order; after
it, nothing is sent again: a stream that breaks ends with an error event. A client that leaves ends the request to the
backend. An answer that is not streamed is read whole first, so that one that is no JSON counts as a failure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson
from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from daguerre.router.choose import Decision, choose
from daguerre.router.config import Config
from daguerre.router.features import Features
from daguerre.router.log import decision_line
from daguerre.router.requests import Asked, features_of
from daguerre.router.store import Store
from daguerre.router.upstream import PASSED_BACK, BackendError, EventCheck, Upstreams, tool_calls_of, whole_body
from daguerre.server.errors import ApiError, error_body

MOST_ATTEMPTS = 4
BACKOFF = 0.1
"""Seconds before a second attempt at the same backend; twice as long each time."""
GONE = 499
Classify = Callable[[str, Mapping[str, Any]], Mapping[str, float]]
"""The probability of each step type of a request of an operation."""
Write = Callable[[dict[str, Any]], None]


@dataclass
class Trip:
    """A request on its way, and what its line in the log will say."""

    id: str
    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    asked: Asked
    features: Features
    decision: Decision
    line: dict[str, Any]
    started: float = field(default_factory=time.perf_counter)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    """Expected ones of the answer, by whose number latencies are kept."""

    @property
    def backend(self) -> str:
        """The one of the last attempt."""
        return str(self.attempts[-1]["backend"])

    def passed(self) -> float:
        """Milliseconds since it came."""
        return 1000 * (time.perf_counter() - self.started)

    def reply_headers(self) -> dict[str, str]:
        """What the client is told of the decision."""
        said = {"x-route-id": self.id, "x-route-step": self.features.step, "x-route-backend": self.backend}
        return said | {"x-route-reason": self.decision.reason.encode("ascii", "replace").decode()[:200]}


class Router:
    """Serves requests by a configuration.

    classify  step types of requests
    write     takes the lines of the log
    """

    def __init__(self, config: Config, upstreams: Upstreams, store: Store, classify: Classify, write: Write) -> None:
        self.config, self.upstreams, self._store = config, upstreams, store
        self._classify, self._write = classify, write

    async def serve(self, request: Request, operation: str, path: str) -> Response:
        """The answer to a request. ApiError where no backend has one."""
        trip = self._trip(request, operation, path, await _json_of(request))
        try:
            if trip.asked.stream:
                return await self._streamed(trip)
            found = await _unless_gone(request, self._whole(trip))
            self._end(trip, found.status_code)
            return found
        except ApiError as error:
            self._end(trip, error.http_status)
            raise
        except asyncio.CancelledError:
            self._end(trip, GONE)
            raise

    def _trip(self, request: Request, operation: str, path: str, body: dict[str, Any]) -> Trip:
        key = request.state.request_id
        asked = features_of(operation, body, request.headers, self.config, key)
        held = self._store.holder(call_ids(operation, body))
        features = asked.features(self._classify(operation, body), conversation=held)
        tokens = self.config.rule(features.step).tokens
        state = self.upstreams.state(features, tokens)
        decision = choose(features, state, self.config)
        line = {"id": key, "time": time.time(), "path": path, **decision_line(features, state, decision)}
        if asked.ignored:
            line["ignored"] = list(asked.ignored)
        if self.config.server.log_text:
            line["body"] = body
        trip = Trip(key, path, body, request.headers, asked, features, decision, line, tokens=tokens)
        if decision.backend is None:
            error = _none_can(decision)
            self._end(trip, error.http_status)
            raise error
        return trip

    def _order(self, trip: Trip) -> list[str]:
        """Which backends are tried, in order: the decision's, and again from its first where there are few."""
        decision = trip.decision
        assert decision.backend is not None
        all_ = [decision.backend, *decision.fallbacks]
        return (all_ * MOST_ATTEMPTS)[: max(2, min(MOST_ATTEMPTS, len(all_)))]

    async def _tried(self, trip: Trip, ask: Callable[[str], Awaitable[Response]]) -> Response:
        """The first answer of the backends in their order. ApiError where none has one."""
        errors = list[BackendError]()
        for name in self._order(trip):
            if not self.upstreams[name].circuit.allows(time.monotonic()):
                continue
            before = sum(each["backend"] == name for each in trip.attempts)
            if before:
                await asyncio.sleep(BACKOFF * 2 ** (before - 1))
            attempt: dict[str, Any] = {"backend": name, "begun_ms": round(trip.passed(), 3)}
            trip.attempts.append(attempt)
            try:
                return await ask(name)
            except BackendError as error:
                attempt |= {"error": error.kind, "message": str(error), "status": error.status}
                errors.append(error)
        raise _all_failed(errors)

    async def _whole(self, trip: Trip) -> Response:
        async def ask(name: str) -> Response:
            async with self.upstreams.ask(name, trip.path, trip.body, trip.headers) as response:
                body, status = await whole_body(name, response), response.status_code
                headers = _passed_back(response)
            value = orjson.loads(body)
            said = value if isinstance(value, dict) else {}
            self._answered(trip, status, len(body), said.get("usage"), tool_calls_of(said), trip.passed())
            return Response(body, status, headers | trip.reply_headers())

        return await self._tried(trip, ask)

    async def _streamed(self, trip: Trip) -> Response:
        stack = AsyncExitStack()

        async def ask(name: str) -> Response:
            async with AsyncExitStack() as opening:
                response = await opening.enter_async_context(
                    self.upstreams.ask(name, trip.path, trip.body, trip.headers)
                )
                status, headers = response.status_code, _passed_back(response) | trip.reply_headers()
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    body = await whole_body(name, response)
                    self._answered(trip, status, len(body), None, [], trip.passed())
                    self._end(trip, status)
                    return Response(body, status, headers)
                chunks, check = aiter(response.aiter_raw()), EventCheck(name)
                first = await anext(chunks, b"")
                check.add(first)
                if not first:
                    raise BackendError("body", f"{name} sent no event")
                trip.attempts[-1]["first_ms"] = round(trip.passed(), 3)
                await stack.enter_async_context(opening.pop_all())
                passing = self._passing(trip, status, stack, first, chunks, check)
                return _Stream(passing, status, headers, stack, lambda: self._end(trip, GONE))

        try:
            return await self._tried(trip, ask)
        except BaseException:
            await stack.aclose()
            raise

    async def _passing(
        self,
        trip: Trip,
        status: int,
        stack: AsyncExitStack,
        first: bytes,
        chunks: AsyncIterator[bytes],
        check: EventCheck,
    ) -> AsyncIterator[bytes]:
        """The chunks as they come. Where they break off, an error event is the last."""
        size, ended = 0, GONE
        try:
            try:
                async with stack:
                    yield first
                    size = len(first)
                    async for chunk in chunks:
                        check.add(chunk)
                        yield chunk
                        size += len(chunk)
                    if not check.done:
                        raise BackendError("broken", f"{trip.backend} ended the stream before its end")
                ended = status
            except BackendError as error:
                trip.attempts[-1] |= {"error": error.kind, "message": str(error)}
                ended = 502
                yield b"\n\ndata: " + orjson.dumps(error_body(str(error), 502, None, "backend_failed")) + b"\n\n"
        finally:
            if ended == status:
                first_ms = float(trip.attempts[-1]["first_ms"])
                self._answered(trip, status, size, check.usage, check.tool_calls, first_ms, check.finish)
            self._end(trip, ended)

    def _answered(
        self,
        trip: Trip,
        status: int,
        size: int,
        usage: object,
        calls: list[str],
        first: float,
        finish: str | None = None,
    ) -> None:
        """Note what an answer says of its backend."""
        name, whole = trip.backend, trip.passed()
        begun = float(trip.attempts[-1]["begun_ms"])
        trip.attempts[-1] |= {"status": status, "bytes": size, "first_ms": round(first, 3), "ms": round(whole, 3)}
        if status >= 400:
            return
        counts = _counts(usage, trip.features.input_tokens, size)
        price = self.upstreams[name].backend.price
        cost = price.request + (counts["input"] * price.input + counts["output"] * price.output) / 1e6
        trip.line |= {"tokens": counts, "cost": cost} | ({"finish": finish} if finish else {})
        if calls:
            self._store.hold(calls, name)
        tokens = int(counts["output"]) if trip.asked.stream else 1
        sized = (trip.features.input_tokens, trip.tokens)
        self.upstreams.latencies.add(name, sized, first - begun, whole - begun, tokens, time.monotonic())

    def _end(self, trip: Trip, status: int) -> None:
        """Write the line of a request, once."""
        if trip.line:
            done = {"attempts": trip.attempts, "status": status, "ms": round(trip.passed(), 3)}
            self._write(trip.line | done)
            trip.line = {}


class _Stream(StreamingResponse):
    """A stream whose backend is left at its end, also where the client was gone before the first chunk: then nobody
    begins to read `chunks`, and what they would close stays open.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        status: int,
        headers: Mapping[str, str],
        stack: AsyncExitStack,
        end: Callable[[], None],
    ) -> None:
        super().__init__(chunks, status, headers)
        self._stack, self._end = stack, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stack.aclose()
            self._end()


async def _json_of(request: Request) -> dict[str, Any]:
    try:
        value = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise ApiError(f"the body is no JSON: {error}", 400, code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError("the body must be a JSON object", 400, code="invalid_json")
    return value


async def _unless_gone(request: Request, answer: Awaitable[Response]) -> Response:
    """An answer, which is given up where the client leaves."""

    async def leaves() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(answer), asyncio.ensure_future(leaves())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return Response(status_code=GONE)
    finally:
        gone.cancel()
        task.cancel()


def call_ids(operation: str, body: Mapping[str, Any]) -> list[str]:
    """The ids by which a request goes on with a conversation whose tool calls are open: of results that follow the
    model's last turn, and of an earlier response.
    """
    out = list[str]()
    if operation == "responses" and isinstance(body.get("previous_response_id"), str):
        out.append(body["previous_response_id"])
    given = body.get("input") if operation == "responses" else body.get("messages")
    for item in reversed(given if isinstance(given, list) else []):
        if not isinstance(item, dict):
            break
        key = item.get("call_id") if item.get("type") == "function_call_output" else item.get("tool_call_id")
        if not isinstance(key, str):
            break
        out.append(key)
    return out


def _passed_back(response: httpx2.Response) -> dict[str, str]:
    return {name: response.headers[name] for name in PASSED_BACK if name in response.headers}


def _counts(usage: object, input_tokens: int, size: int) -> dict[str, float | bool]:
    """Tokens of a request and its answer: the backend's own count, or an estimate."""
    said = usage if isinstance(usage, dict) else {}
    into = said.get("prompt_tokens", said.get("input_tokens"))
    out = said.get("completion_tokens", said.get("output_tokens"))
    if isinstance(into, int):
        return {"input": into, "output": out if isinstance(out, int) else 0, "counted": True}
    return {"input": input_tokens, "output": size // 4, "counted": False}


def _none_can(decision: Decision) -> ApiError:
    """The error where no backend can serve a request, now or ever."""
    for_now = ("its circuit is open", "has as many requests as it takes")
    if any(each.excluded in for_now for each in decision.candidates):
        return ApiError(decision.reason, 503, code="no_backend_now")
    return ApiError(decision.reason, 400, code="no_backend")


def _all_failed(errors: list[BackendError]) -> ApiError:
    """The error where every backend that was tried failed."""
    if not errors:
        return ApiError("no backend takes requests at the moment: try again", 503, code="no_backend_now")
    last = errors[-1]
    status = 504 if last.kind == "timeout" else 429 if last.status == 429 else 502
    said = "; ".join(dict.fromkeys(map(str, errors)))
    return ApiError(f"no backend answered: {said}", status, code="backend_failed")
