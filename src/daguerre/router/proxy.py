"""A request on its way: read, decided, answered by one backend, passed on, logged.

Before the first byte reaches the client, a backend that fails is followed by the next; after it, nothing is sent again:
of a stream that breaks the client has whole events, and an error event as the last one. A client that leaves ends the
request to the backend. An answer that is not streamed is read whole first, so that one that is no JSON, or only an
error, counts as a failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from daguerre.errors import DaguerreError
from daguerre.http.errors import ApiError, error_body
from daguerre.http.settings import Keys
from daguerre.router.attempts import Attempts, Opened
from daguerre.router.cache import CacheKey, Hit, ResponseCache, hit_headers
from daguerre.router.cascade import Cascading, of_draft, small_of
from daguerre.router.choose import RoutingDecision, choose, expected_tokens
from daguerre.router.config import Config
from daguerre.router.graders import MOST_CHECKED, checks_of, has_checks
from daguerre.router.limits import OwnerLimits
from daguerre.router.log import decision_line, text_hash
from daguerre.router.quality import quality_in
from daguerre.router.reading import ParsedRequest, json_of
from daguerre.router.replies import BackendError
from daguerre.router.requests import ObservedFeatures, features_of
from daguerre.router.routed_request import RoutedRequest, Write, call_ids, cost_of, counts_of
from daguerre.router.shadow import MOST_KEPT, Shadows
from daguerre.router.store import Store
from daguerre.router.upstream import PassedOn, Upstreams
from daguerre.router.watching import LogWatcher, RunningTotals

LOG = logging.getLogger("daguerre.router")
GONE = 499
AT_ONCE = 64 << 10
"""Bytes of a body that is read where all requests are served; longer ones are read beside it."""
Classify = Callable[[ParsedRequest, Mapping[str, Any]], Mapping[str, float]]
"""The probability of each step type of a request, of which it gets the reading and the body."""


@dataclass(frozen=True)
class Told:
    """What a request of an owner says: its body, what it asks for, the probability of each step type, and how likely
    each backend's answer is right.
    """

    owner: str
    body: dict[str, Any]
    asked: ObservedFeatures
    steps: Mapping[str, float]
    quality: dict[str, float]


class Router:
    """Serves requests by a configuration. DataError for a model of quality that cannot be used.

    classify  step types of requests
    write     takes the lines of the log
    keys      of those who may ask
    """

    def __init__(
        self, config: Config, upstreams: Upstreams, store: Store, classify: Classify, write: Write, keys: Keys
    ) -> None:
        self.config, self.upstreams, self.keys, self.store = config, upstreams, keys, store
        self._classify, self._write = classify, write
        path, names = config.quality_model, [one.name for one in config.backends]
        self._quality = None if path is None else quality_in(path, names)
        version = "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
        self.watch = LogWatcher(config)
        self._answers = Cascading(config, upstreams, Attempts(config, upstreams))
        self._shadows = Shadows(config, upstreams, self._note)
        self._kept, self._limits = ResponseCache(config, store, version), OwnerLimits(store.db, config.keys, keys.name)

    def _note(self, line: dict[str, Any]) -> None:
        """Write a line, and count what it says. It is written whatever the counters make of it."""
        self._write(line)
        try:
            self.watch.line(line)
        except Exception:
            LOG.exception("a line of the log could not be counted")

    def _ended(self, routed: RoutedRequest, line: dict[str, Any]) -> None:
        """A request has its line, and its owner is charged."""
        self._note(line | {"text_hash": text_hash(routed.body, self.store.salt)})
        if routed.reservation is not None:
            tokens = line.get("tokens", {"input": 0, "output": 0})
            total = int(tokens["input"] + tokens["output"]) + routed.small_tokens
            self._limits.settle(routed.reservation, line.get("cost", 0.0), total, time.time())

    def status(self, owner: str = "") -> dict[str, Any]:
        """How the router and its backends are doing, as JSON values. Of requests and of what owners have used an owner
        is told its own, and an operator all.
        """
        now, name = time.monotonic(), self.keys.name(owner)
        sees_all = not self.keys.names or self._limits.of(owner).operator
        found = self.watch.status(None if sees_all else name)
        for backend in self.config.backends:
            one = self.upstreams[backend.name]
            found["backends"].setdefault(backend.name, RunningTotals().to_dict())
            found["backends"][backend.name] |= {
                "model": backend.model,
                "circuit": one.circuit.state(now, owner),
                "in_flight": one.in_flight,
                "most_in_flight": backend.most_in_flight,
                "cold": one.cold(now),
            }
        usages = self._limits.usages(time.time())
        used = {
            self.keys.name(one) or "all": asdict(usage) for one, usage in usages.items() if sees_all or one == owner
        }
        return found | {"cache": asdict(self._kept.answers.stats()), "used_today": used}

    async def close(self) -> None:
        """End what runs in the background, and close all connections."""
        await self._shadows.close()
        await self.upstreams.close()

    async def serve(self, request: Request, operation: str, path: str) -> Response:
        """The answer to a request. ApiError where no backend has one."""
        raw, began = await request.body(), time.perf_counter()
        owner, number = getattr(request.state, "owner", ""), f"route_{uuid.uuid4().hex}"
        read = partial(self._read, raw, operation, request.headers, number, owner)
        told = await asyncio.to_thread(read) if len(raw) > AT_ONCE else read()
        routed = self._begin(request, operation, path, number, told, began)
        try:
            kept = self._kept.key
            key = await asyncio.to_thread(kept, routed) if len(raw) > AT_ONCE else kept(routed)
            if key is not None and (hit := self._kept.get(routed, key)) is not None:
                return self._repeated(routed, hit)
            if routed.decision.backend is None:
                raise self._none_can(routed.decision, routed.owner)
            small = small_of(routed, self.config)
            asked = {routed.decision.backend, routed.decision.backend if small is None else small.name}
            cost = sum(each.cost for each in routed.decision.candidates if each.name in asked)
            routed.reservation = self._limits.admit(routed.owner, cost, len(asked) * sum(routed.size), time.time())
            opened = await _unless_gone(request, self._answers.answer(routed, small))
            if opened is None:
                routed.end(GONE)
                return Response(status_code=GONE)
            routed.line["backend"] = opened.backend
            headers = opened.headers | routed.reply_headers(opened.backend)
            if opened.chunks is not None:
                stack = AsyncExitStack()
                stack.callback(routed.end, GONE)  # where nobody began to read, and so the line is not written
                stack.push_async_callback(opened.stack.aclose)
                return PassedOn(self._passing(routed, opened, key), opened.status, headers, stack)
            await opened.stack.aclose()
            return WholeResponse(opened, headers, lambda took: self._whole(routed, opened, key, took), routed.passed())
        except DaguerreError as error:
            routed.end(error.http_status)
            raise
        except asyncio.CancelledError:
            routed.end(GONE)
            raise
        except Exception:
            routed.end(500)
            raise

    def _read(self, raw: bytes, operation: str, headers: Mapping[str, str], key: str, owner: str) -> Told:
        """Read a request: the part that takes long for a long one, and uses no state, so that a thread may do it."""
        body = json_of(raw)
        asked = features_of(operation, body, headers, self.config, key, self._limits.of(owner).tags)
        named = asked.wishes.get("step")
        steps = self._classify(asked.reading, body) if named is None else {named: 1.0}
        return Told(owner, body, asked, steps, self._predicted(asked.reading))

    def _begin(self, request: Request, operation: str, path: str, key: str, told: Told, began: float) -> RoutedRequest:
        owner, body, asked = told.owner, told.body, told.asked
        held = self.store.holder(owner, call_ids(operation, body))
        features = asked.features(told.steps, told.quality, held)
        tokens = expected_tokens(features, self.config)
        state = self.upstreams.state(features, tokens, owner)
        decision = choose(features, state, self.config)
        name = self.keys.name(owner)
        line = {"id": key, "request": request.state.request_id, "time": time.time(), "path": path}
        line |= decision_line(features, state, decision) | ({"owner": name} if name else {})
        line["decided_ms"] = round(1000 * (time.perf_counter() - began), 3)
        if asked.ignored:
            line["ignored"] = list(asked.ignored)
        if self.config.server.log_text:
            line["body"] = body
        return RoutedRequest(
            id=key,
            owner=owner,
            operation=operation,
            path=path,
            body=body,
            headers=request.headers,
            asked=asked,
            features=features,
            decision=decision,
            tokens=tokens,
            ended=self._ended,
            line=line,
        )

    def _none_can(self, decision: RoutingDecision, owner: str) -> ApiError:
        """The error where no backend can serve a request of an owner, now or ever."""
        for_now = ("its circuit is open", "has as many requests as it takes")
        waiting = [each for each in decision.candidates if each.excluded in for_now]
        if not waiting:
            return ApiError(decision.reason, 400, code="no_backend")
        out, now = ApiError(decision.reason, 503, code="no_backend_now"), time.monotonic()
        waits = [self.upstreams[each.name].circuit.wait(now, owner) for each in waiting]
        out.retry_after = max(1, math.ceil(min(waits)))
        return out

    def _repeated(self, routed: RoutedRequest, hit: Hit) -> Response:
        """An answer that was kept."""
        routed.line |= {"backend": hit.answer.backend, "cost": 0.0}
        routed.reservation = self._limits.admit(routed.owner, 0.0, 0, time.time())
        routed.end(200)
        return Response(hit.answer.body, 200, routed.reply_headers(hit.answer.backend) | hit_headers(hit))

    def _predicted(self, reading: ParsedRequest) -> dict[str, float]:
        """How likely each backend's answer is right, of those that a model was fitted for."""
        if self._quality is None:
            return {}
        known = {each.name for each in self.config.backends}
        return {name: round(value, 6) for name, value in self._quality.predict(reading).items() if name in known}

    async def _passing(self, routed: RoutedRequest, opened: Opened, key: CacheKey | None) -> AsyncIterator[bytes]:
        """The chunks as they come. Where they break off, an error event is the last."""
        size, ended, kept = 0, GONE, [opened.first]
        most = max(
            MOST_KEPT if self._shadows.wants(routed) else 0,
            self.config.cache.most_bytes if key is not None else 0,
            MOST_CHECKED if has_checks(routed.body) else 0,
        )
        assert opened.chunks is not None
        try:
            try:
                async with opened.stack:
                    yield opened.first
                    size = len(opened.first)
                    async for chunk in opened.chunks:
                        yield chunk
                        size += len(chunk)
                        if size <= most:
                            kept.append(chunk)
                    if not opened.check.whole:
                        raise BackendError("broken", f"{opened.backend} ended the stream before its end")
                ended = opened.status
            except BackendError as error:
                opened.attempt |= {"error": error.kind, "message": str(error)}
                ended = 502
                yield b"data: " + orjson.dumps(error_body(str(error), 502, None, "backend_failed")) + b"\n\n"
        finally:
            took, answer = routed.passed(), b"".join(kept) if size <= most else None
            if ended == opened.status:
                self._answered(routed, opened, size, took, answer)
            else:
                self._billed(routed, opened, size)
            routed.end(ended, took)
            if ended == opened.status and answer is not None:
                self._after(routed, opened, key, answer)

    def _whole(self, routed: RoutedRequest, opened: Opened, key: CacheKey | None, took: float) -> None:
        """Note an answer that is not streamed and was there after so many milliseconds."""
        self._answered(routed, opened, len(opened.first), took, opened.first)
        routed.end(opened.status, took)
        self._after(routed, opened, key, opened.first)

    def _after(self, routed: RoutedRequest, opened: Opened, key: CacheKey | None, answer: bytes) -> None:
        """What follows an answer that the client has."""
        if opened.status >= 400:
            return
        if key is not None:
            self._kept.keep(routed, key, opened, answer)
        self._shadows.begin(routed, opened.backend, answer, opened.chunks is not None)

    def _billed(self, routed: RoutedRequest, opened: Opened, size: int) -> None:
        """Note what so many bytes of an answer cost."""
        backend = self.upstreams[opened.backend].backend
        counts = counts_of(opened.check.usage, routed.features.input_tokens, size, backend.context)
        cost = cost_of(counts, backend.price) + routed.small_cost
        opened.attempt["bytes"] = size
        if routed.small is not None and not routed.small.given:
            routed.line["cascade"] |= of_draft(opened.check.usage)
        routed.line |= {"tokens": counts, "cost": cost}

    def _answered(self, routed: RoutedRequest, opened: Opened, size: int, ended: float, answer: bytes | None) -> None:
        """Note what a whole answer of so many bytes, which ended after so many milliseconds, says of its backend.
        answer: its bytes; None: they were not kept.
        """
        name, attempt, check = opened.backend, opened.attempt, opened.check
        attempt |= {"status": opened.status, "bytes": size, "ms": round(ended, 3)}
        if opened.status >= 400:
            return
        self._billed(routed, opened, size)
        routed.line |= {"finish": check.finish} if check.finish else {}
        begun = float(attempt["begun_ms"])
        first = None if opened.chunks is None or "first_ms" not in attempt else float(attempt["first_ms"]) - begun
        if not attempt.get("draft"):  # whose time is known already
            self.upstreams.latencies.add(name, routed.size, first, ended - begun, time.monotonic())
        self.store.hold(routed.owner, check.tool_calls, name)
        if answer is not None and (made := checks_of(routed.body, routed.operation, answer, opened.chunks is not None)):
            routed.line["checks"] = made


class WholeResponse(Response):
    """An answer that is not streamed. What has to be noted of it is noted when the client has it: before anybody else's
    turn, since what is written to a socket is there at once, and also where it cannot be written.
    """

    def __init__(self, opened: Opened, headers: Mapping[str, str], note: Callable[[float], None], took: float) -> None:
        super().__init__(opened.first, opened.status, headers)
        self._note, self._took = note, took

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._note(self._took)


async def _unless_gone(request: Request, answer: Awaitable[Opened]) -> Opened | None:
    """An answer; None where the client leaves before it begins, and then it is given up."""
    this, left = asyncio.current_task(), False
    assert this is not None

    async def leaves() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        this.cancel()

    gone = asyncio.ensure_future(leaves())
    try:
        return await answer
    except asyncio.CancelledError:
        if not left or this.uncancel():
            raise
        return None
    finally:
        gone.cancel()
