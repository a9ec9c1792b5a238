"""Answers as they are written: events of jobs, and server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Send

from daguerre.decoding.result import Result, StreamEvent
from daguerre.engine.job import Job
from daguerre.http.errors import described
from daguerre.server.protocol.common import StreamOptions

LOG = logging.getLogger("daguerre.server")
T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
SILENCE, COMMENT = 15.0, b": still here\n\n"
"""Seconds without an event after which a stream sends a comment, which clients ignore (HTML Living Standard, 9.2.7), so
that none of them, and no proxy, takes it for dead: of a text that may be a call, nothing is sent until it is whole.
"""
WAITING = 16
"""News that wait for a client to read; the texts of more are not made before it does."""


@dataclass(frozen=True)
class Delta:
    """News of one choice of an answer.

    index   of the choice
    text    what follows the text so far; text that was sent never changes
    event   the event of the step; None in the last delta
    result  in the last delta of a choice
    number  of the job among those that are followed
    """

    index: int
    text: str
    event: StreamEvent | None = None
    result: Result | None = None
    number: int = 0


async def deltas(jobs: Sequence[Job], every: bool) -> AsyncIterator[Delta]:
    """The news of all choices of jobs, as they come. The jobs are cancelled if nobody reads on.

    every   one for each step, also for a step that committed nothing final; False: news that wait to be read are joined
    """
    queue = asyncio.Queue[Delta | BaseException](WAITING)

    async def follow(number: int, index: int) -> None:
        shown = ""
        try:
            async for event in jobs[number].stream(index, every):
                new = event.committed[len(shown) :]
                shown = event.committed
                await queue.put(Delta(index, new, None if event.result else event, event.result, number))
        except Exception as error:
            await queue.put(error)

    places = [(number, index) for number, job in enumerate(jobs) for index in range(len(job.samples))]
    followers = [asyncio.create_task(follow(*place)) for place in places]
    try:
        left = len(followers)
        while left:
            delta = await queue.get()
            if isinstance(delta, BaseException):
                raise delta
            left -= delta.result is not None
            yield delta
            await asyncio.sleep(0)
    finally:
        for follower in followers:
            follower.cancel()
        for job in jobs:
            if not job.done:
                job.cancel()


async def result_of(request: Request, job: Job, reading: Coroutine[Any, Any, None] | None = None) -> Result:
    """The result of a job, which is cancelled if the client goes away. reading: what follows it until it is done."""
    waiting = asyncio.create_task(_after(reading, job))
    try:
        await asyncio.wait((waiting, request.state.leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            job.cancel()
        return await waiting
    finally:
        waiting.cancel()


async def _after(reading: Coroutine[Any, Any, None] | None, job: Job) -> Result:
    if reading is not None:
        await reading
    return await job.wait()


class ClosedStream(StreamingResponse):
    """A stream whose items are told when nobody reads on, so that the request behind them ends at once."""

    async def stream_response(self, send: Send) -> None:
        """Send the items."""
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().stream_response(send)


def json_answer(body: Any) -> Response:
    """A response of JSON. It may have a number for each concept of each token, over which FastAPI takes its time."""
    return Response(orjson.dumps(body), media_type="application/json")


def event_stream(items: AsyncIterator[bytes], headers: dict[str, str] | None = None) -> StreamingResponse:
    """A response of server-sent events, none of which a proxy holds back."""
    extra = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})}
    return ClosedStream(kept_alive(items), media_type="text/event-stream", headers=extra)


async def kept_alive(items: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream with a comment wherever nothing came for SILENCE seconds."""
    queue = asyncio.Queue[bytes | BaseException](1)

    async def read() -> None:
        try:
            async with aclosing(items) as source:  # type: ignore[type-var]
                async for item in source:
                    await queue.put(item)
            await queue.put(StopAsyncIteration())
        except Exception as error:
            await queue.put(error)

    reading = asyncio.create_task(read())
    try:
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    item = await queue.get()
            except TimeoutError:
                item = COMMENT
            if isinstance(item, StopAsyncIteration):
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        reading.cancel()
        await asyncio.wait((reading,))


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event, of JSON."""
    named = b"" if event is None else b"event: " + event.encode() + b"\n"
    return named + b"data: " + orjson.dumps(data) + b"\n\n"


class Chunks:
    """Writes the chunks of OpenAI's streams. head: the fields that each begins with.

    with_usage  the last chunk has the usage
    continuous  so has each
    """

    def __init__(self, head: dict[str, Any], options: StreamOptions | None) -> None:
        self._head = head
        self.with_usage = options is not None and options.include_usage
        self.continuous = options is not None and options.continuous_usage_stats

    def chunk(self, *choices: dict[str, Any], usage: dict[str, Any] | None = None, **more: Any) -> bytes:
        """A chunk of some choices; usage: so far."""
        named = {"usage": usage} if self.continuous or self.with_usage else {}
        return sse({**self._head, "choices": choices, **named, **more})

    def end(self, usage: Callable[[], dict[str, Any]]) -> bytes:
        """What ends a stream."""
        return (sse({**self._head, "choices": [], "usage": usage()}) if self.with_usage else b"") + DONE


def error_event(error: dict[str, Any]) -> list[bytes]:
    """The last events of a stream that fails."""
    return [sse(error)]


async def guarded(
    items: AsyncIterator[bytes], ending: Callable[[dict[str, Any]], Sequence[bytes]] = error_event
) -> AsyncIterator[bytes]:
    """A stream whose errors are its last events: `ending` makes them of the error's body."""
    async with aclosing(items) as source:  # type: ignore[type-var]
        try:
            async for item in source:
                yield item
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            status, body = described(error)
            if status >= 500:
                LOG.error("a stream failed", exc_info=error)
            for item in ending(body):
                yield item
