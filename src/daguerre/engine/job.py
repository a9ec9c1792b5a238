"""A request in the engine, as its caller holds it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from threading import Condition, Lock
from typing import Any, Protocol

from daguerre.canvas import Decision
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.sample import Follower, Sample
from daguerre.errors import CancelledError, UnsupportedError
from daguerre.trace import Event

LOG = logging.getLogger("daguerre")
PAUSE = 0.02
"""Seconds between two looks of an event loop at a request's events."""


class Control(Protocol):
    """What a job needs of its engine."""

    def call(self, what: Callable[[], Any]) -> Future[Any]:
        """Run a function between two steps."""

    def end(self, job: Job, error: BaseException) -> None:
        """End a job; between two steps."""

    def change(self, job: Job, sample: Sample, decision: Callable[[Sample], Decision]) -> Event:
        """Change the canvas of a sample; between two steps."""

    def finished(self, job: Job) -> None:
        """Note that a job is done."""


class Job:
    """One request: read its `events` as they come, or wait for its `result`; `cancel` it, or `change` its canvas.

    number        its place in the order of arrival
    owner         who asked; owners have equal shares, or shares by their weights
    priority      lower goes first among the owner's requests
    cached_tokens of the prompt: taken from earlier requests instead of computed
    submitted, started, first, finished   seconds on the clock `time.perf_counter`: when it arrived, joined a step,
                  committed its first tokens, and was done; None: not yet

    Safe to use from any thread. What it returns is made in the thread of its reader.
    """

    def __init__(self, engine: Control, plan: Plan, samples: Sequence[Sample], priority: int, owner: str) -> None:
        self.plan, self.samples = plan, tuple(samples)
        self.priority, self.owner, self.number = priority, owner, -1
        self.cached_tokens = self._num_done = self._num_news = 0
        self.submitted = time.perf_counter()
        self.started: float | None = None
        self.first: float | None = None
        self.finished: float | None = None
        self._engine = engine
        self._changed = Condition()
        self._listeners: list[Callable[[], None]] = []
        self._error: BaseException | None = None
        self._reading, self._results = Lock(), dict[int, Result]()

    @property
    def done(self) -> bool:
        """Whether it is finished, cancelled or failed."""
        return self.finished is not None

    @property
    def error(self) -> BaseException | None:
        """What ended it early."""
        return self._error

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result: the first sample, with the others in `choices`.

        Raises what ended the request early; CancelledError after `cancel`; TimeoutError after `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"the request was not done after {timeout} seconds")
        return self._result()

    def _result(self) -> Result:
        first, *others = [self.result_of(index) for index in range(len(self.samples))]
        return replace(first, others=tuple(others)) if others else first

    def result_of(self, sample: int) -> Result:
        """The result of one sample of a request that is done. Raises what ended it early."""
        if self._error is not None:
            raise self._error
        with self._reading:
            if sample not in self._results:
                self._results[sample] = self.samples[sample].result()
            return self._results[sample]

    def events(self, sample: int = 0) -> Iterator[StreamEvent]:
        """The events of a sample as they come, as those of `Model.stream`; the last one has the sample's result.

        Raises what ended the request early.
        """
        following = Follower(self.plan, self.samples[sample].events)
        while True:
            with self._changed:
                while not (self.done or following.num_new):
                    self._changed.wait()
            done = self.done  # before the last events are read
            yield from following.new()
            if done:
                yield self._last_event(sample)
                return

    async def stream(self, sample: int = 0, every: bool = True) -> AsyncIterator[StreamEvent]:
        """The events of a sample, for callers on an event loop. every: False leaves out what was
        followed by another event before it was read.
        """
        following = Follower(self.plan, self.samples[sample].events)
        async for done in self._news():
            for event in following.new(every or done):
                yield event
                if following.num_new:  # others have a turn between two events, however many wait
                    await asyncio.sleep(0)
        yield await asyncio.to_thread(self._last_event, sample)

    async def wait(self) -> Result:
        """`result` on an event loop. The request is cancelled if the caller is."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def listen() -> None:
            if self.done:
                loop.call_soon_threadsafe(done.set)

        self._listeners.append(listen)
        try:
            if not self.done:
                await done.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self._listeners.remove(listen)
        return await asyncio.to_thread(self._result)

    async def _news(self) -> AsyncIterator[bool]:
        """An item each time that there may be new events, at most one in PAUSE seconds; whether the request is done,
        and then no other. Between two items the engine wakes the event loop once, which takes processor time from it.
        """
        loop, news, done = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        waiting = False

        def listen() -> None:
            nonlocal waiting
            if self.done:
                loop.call_soon_threadsafe(done.set)
            if waiting:
                waiting = False
                loop.call_soon_threadsafe(news.set)

        self._listeners.append(listen)
        try:
            while not self.done:
                seen = self._num_news
                yield False
                if seen:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(done.wait(), PAUSE)
                news.clear()
                waiting = True
                if self._num_news == seen:
                    await news.wait()
                waiting = False
            yield True
        finally:
            self._listeners.remove(listen)

    def _last_event(self, sample: int) -> StreamEvent:
        result = self.result_of(sample)
        return StreamEvent(result.text, result.text, None, result)

    def cancel(self) -> None:
        """End the request; its place is free in the engine's next step."""
        self._engine.call(lambda: self._engine.end(self, CancelledError("the request was cancelled")))

    def stop(self, sample: int) -> None:
        """End a sample with the text that it has, before its next step, as a deadline does."""
        self._engine.call(self.samples[sample].deadline.end)

    def change(self, decision: Callable[[Sample], Decision], sample: int = 0) -> Future[Event]:
        """Change the canvas of a sample between two steps: `decision` is made from the sample as it is then
        (`decoding.running`: `pinned`, `unpinned`, `reopened`). The future has the event, or the error. UnsupportedError
        for a request that was not begun as one that changes.
        """
        if not self.plan.mode.changeable or self.plan.decode.stop:
            raise UnsupportedError("this request cannot be changed while it runs: begin it with `Engine.start_request`")
        return self._engine.call(lambda: self._engine.change(self, self.samples[sample], decision))

    def news(self) -> None:
        """Tell everybody who waits that there are new events; for the engine."""
        self._num_news += 1
        if self.first is None and any(len(sample.events) for sample in self.samples):
            self.first = time.perf_counter()
        with self._changed:
            self._changed.notify_all()
        for listener in tuple(self._listeners):
            try:
                listener()
            except Exception:
                LOG.exception("a listener of a request failed")

    def enter(self, cached_tokens: int) -> None:
        """Note that a sample runs, and what it took from earlier requests; for the engine."""
        self.started = self.started or time.perf_counter()
        self.cached_tokens = max(self.cached_tokens, cached_tokens)

    def left(self) -> bool:
        """Note that a sample is done; returns whether all are. For the engine."""
        self._num_done += 1
        return self._num_done == len(self.samples)

    def finish(self, error: BaseException | None = None) -> None:
        """Mark as done; for the engine."""
        self._error, self.finished = error, time.perf_counter()
        self.news()
        self._engine.finished(self)
