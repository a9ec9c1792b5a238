"""Getting an answer to begin: backends are asked in a decision's order, one after the other, until one answers.

A backend that fails is followed by the next. A backend that is later than was predicted is joined by one more where
hedging allows it (Dean and Barroso, The Tail at Scale, CACM 2013), as late as the SLO and the price of a second answer
allow: the first of the two that answers wins, and the request to the other is ended.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

from daguerre.http.errors import ApiError
from daguerre.router.choose import Candidate, slo_of
from daguerre.router.config import Config
from daguerre.router.replies import BackendError, EventCheck, num_choices, passed_back, whole_body
from daguerre.router.routed_request import RoutedRequest
from daguerre.router.upstream import Reply, Upstreams, merged

HEDGE_COST = 0.05
"""Of the cost of what is asked once: what second requests may cost beside it."""
MOST_CREDIT = 10.0
"""Hedged requests that may be saved up."""


@dataclass
class Opened:
    """An answer that has begun, whose connection `stack` closes.

    first   all of an answer that is not streamed; else its first events, one with data among them
    chunks  whole events that follow; None: the answer is not streamed
    check   has seen `first`, and sees the others as they come
    """

    attempt: dict[str, Any]
    status: int
    headers: dict[str, str]
    first: bytes
    stack: AsyncExitStack
    chunks: AsyncIterator[bytes] | None
    check: EventCheck

    @property
    def backend(self) -> str:
        """Whose answer it is."""
        return str(self.attempt["backend"])


class Attempts:
    """Asks backends."""

    def __init__(self, config: Config, upstreams: Upstreams) -> None:
        self._config, self._upstreams, self._credit = config, upstreams, 1.0

    async def answer(self, routed: RoutedRequest) -> Opened:
        """The first answer of the backends in their order. ApiError where none has one."""
        errors, self._credit = list[BackendError](), min(self._credit + self._config.hedge.share, MOST_CREDIT)
        order = _order(routed, self._config.retry.attempts)
        for name in order:
            if not self._upstreams[name].circuit.allows(time.monotonic(), routed.owner):
                continue
            before = sum(each["backend"] == name for each in routed.attempts)
            if before:
                await asyncio.sleep(self._config.retry.backoff * 2 ** (before - 1))
            try:
                hedge = None if routed.attempts else self._hedge(routed)
                return await (self.open(routed, name) if hedge is None else self._either(routed, name, *hedge))
            except BackendError as error:
                errors.append(error)
        now = time.monotonic()
        waits = [self._upstreams[name].circuit.wait(now, routed.owner) for name in order]
        raise _all_failed(errors, min(waits))

    async def open(self, routed: RoutedRequest, name: str, body: dict[str, Any] | None = None, **more: Any) -> Opened:
        """The answer of one backend, once it has begun. BackendError where there is none. body: in place of the
        request's; more: what is noted of the attempt.
        """
        attempt = routed.try_at(name, **more)
        body = routed.body_for(self._upstreams[name].backend) if body is None else body
        try:
            async with AsyncExitStack() as stack:
                asked = self._upstreams.ask(name, routed.path, body, routed.headers, routed.size, routed.owner)
                reply = await stack.enter_async_context(asked)
                sent = merged(body, self._upstreams[name].backend.body)
                check = EventCheck(name, partial(_text_came, routed, attempt, reply), num_choices(sent))
                first, chunks = await _begun(name, reply, check)
                if chunks is None:
                    _text_came(routed, attempt, reply)
                headers = passed_back(reply.headers, reply.streamed)
                return Opened(attempt, reply.status, headers, first, stack.pop_all(), chunks, check)
        except BackendError as error:
            attempt |= {"error": error.kind, "message": str(error), "status": error.status}
            raise

    def _hedge(self, routed: RoutedRequest) -> tuple[str, float] | None:
        """Which backend joins the first if that is late, and after how many seconds; None: none does."""
        hedge, decision, features = self._config.hedge, routed.decision, routed.features
        kept = routed.operation == "responses" and routed.body.get("store") is not False
        bound = features.conversation is not None or kept
        if not hedge.share or bound or features.step not in hedge.steps:
            return None
        by_name = {each.name: each for each in decision.candidates}
        floor = self._config.rule(features.step).quality
        others = [by_name[name] for name in decision.fallbacks if by_name[name].quality >= floor]
        if decision.backend is None or not others:
            return None

        first, slo = by_name[decision.backend], slo_of(features, self._config)
        second = min(others, key=lambda one: one.p95)
        if slo is not None:
            timely = [one for one in others if first.p95 + one.p95 <= slo]
            second = min(timely, key=lambda one: one.cost, default=second)
        wait = patience(first, second)
        if slo is not None:
            wait = max(wait, slo - second.p95)
        return second.name, wait * (first.first_p95 / first.p95 if features.stream else 1.0) / 1000

    async def _either(self, routed: RoutedRequest, name: str, second: str, wait: float) -> Opened:
        """The answer of a backend or, if it is late, of whichever of two is first."""
        asked = {asyncio.ensure_future(self.open(routed, name))}
        began, opened = time.monotonic(), None
        try:
            done, left = await asyncio.wait(asked, timeout=wait)
            if (
                not done
                and self._credit >= 1
                and self._upstreams[second].circuit.allows(time.monotonic(), routed.owner)
            ):
                self._credit -= 1
                asked.add(asyncio.ensure_future(self.open(routed, second, hedge=True)))
                left = set(asked)
            error: BaseException | None = None
            while True:
                for task in done:
                    error = task.exception() or error
                    if task.exception() is None:
                        opened = task.result()
                        return opened
                if not left:
                    assert error is not None
                    raise error
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if opened is not None and opened.backend == second:
                late = 1000 * (time.monotonic() - began)
                self._upstreams.latencies.add(name, routed.size, late if routed.asked.stream else None, late, began)
            await _give_up([task for task in asked if opened is None or not _is(task, opened)])


def patience(first: Candidate, second: Candidate) -> float:
    """Milliseconds after which a second request is so rare that it costs HEDGE_COST of the first ones at most, and is
    asked in 5% of cases at most; beside a first one that is free, only the latter. Latencies are taken for lognormal.
    """
    if first.p95 <= first.p50 or not first.p50:
        return first.p95
    share = HEDGE_COST * min(1.0, first.cost / second.cost if first.cost and second.cost else 1.0)
    return first.p50 * (first.p95 / first.p50) ** (NormalDist().inv_cdf(1 - max(share, 1e-4)) / 1.645)


def _text_came(routed: RoutedRequest, attempt: dict[str, Any], reply: Reply) -> None:
    """Note that the first text of an attempt's answer is there."""
    attempt["first_ms"] = round(routed.passed(), 3)
    reply.text_came()


def _is(task: asyncio.Future[Opened], opened: Opened) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and task.result() is opened


async def _give_up(tasks: list[asyncio.Future[Opened]]) -> None:
    """End requests that nobody waits for, and close the answers of those that had begun."""
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Opened):
            await ended.stack.aclose()


def _order(routed: RoutedRequest, attempts: int) -> list[str]:
    """Which backends are tried, in order: the decision's, and again from its first where there are few; but none whose
    answer was rejected.
    """
    decision, rejected = routed.decision, None if routed.small is None else routed.small.name
    assert decision.backend is not None
    all_ = [name for name in (decision.backend, *decision.fallbacks) if name != rejected]
    return (all_ * attempts)[: min(attempts, max(2, len(all_)))]


async def _begun(name: str, reply: Reply, check: EventCheck) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """An answer that is not streamed, and None; or the first events of a stream, and what follows them. BackendError
    for what is no answer.
    """
    if not reply.streamed:
        body, value = await whole_body(name, reply.chunks)
        if reply.status < 400:
            check.answer(value)
        return body, None
    first, events = b"", check.passed(reply.chunks)
    async for some in events:
        first += some
        if check.events:
            return first, events
    raise BackendError("body", f"{name} sent no event")


def _all_failed(errors: list[BackendError], wait: float) -> ApiError:
    """The error where every backend that was tried failed. wait: seconds until one of them may be asked again."""
    if errors:
        last = errors[-1]
        status = 504 if last.kind == "timeout" else 429 if last.status == 429 else 502
        said = "; ".join(dict.fromkeys(map(str, errors)))
        out = ApiError(f"no backend answered: {said}", status, code="backend_failed")
    else:
        out = ApiError("no backend takes requests at the moment: try again", 503, code="no_backend_now")
    out.retry_after = max(1, math.ceil(wait))
    return out
