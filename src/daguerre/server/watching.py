"""Requests that are watched by their ids: each is recorded as it runs, and read by any number of clients."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from daguerre.decoding.modes import MODES
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.sample import History
from daguerre.engine.job import Job
from daguerre.errors import CancelledError
from daguerre.http.errors import ApiError, described
from daguerre.server.drafts import Board, Drafts, change_of, result_json, spans_in_gaps, tokens_json
from daguerre.server.models import Served
from daguerre.server.streams import LOG, sse

KEPT_SECONDS = 900.0
"""How long a request that is done is kept."""
KEPT_REQUESTS = 256
KEPT_BYTES = 64 << 20
"""Of all requests that are done."""
STEP_BYTES, TOKEN_BYTES = 1_500, 200
"""About the memory of a step, and of a token that it changed."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """A text as a change of the one before: of that, `before` and `behind` characters stay at its ends."""

    before: int
    behind: int
    new: str

    @classmethod
    def between(cls, old: str, new: str) -> _Edit:
        before = _alike(old, new)
        behind = _alike(old[before:][::-1], new[before:][::-1])
        return cls(before, behind, new[before : len(new) - behind])

    def apply(self, old: str) -> str:
        """The text."""
        return old[: self.before] + self.new + old[len(old) - self.behind :]


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True)
class _Step:
    """What one step did: its event without what the events before have said."""

    number: int
    step: int
    seconds: float
    change: str | None
    spans: list[tuple[int, int] | None]
    text: _Edit
    committed: _Edit
    tokens: Board

    def head(self) -> dict[str, Any]:
        """The fields of its event beside texts and tokens."""
        forwards = self.step + (self.change is None)
        return {
            "number": self.number,
            "step": self.step,
            "forwards": forwards,
            "seconds": self.seconds,
            "change": self.change,
            "spans": self.spans,
        }


class _Shown:
    """What a client that reads a request from the start knows of it."""

    def __init__(self, first: list[list[dict[str, Any]]]) -> None:
        self._board = [{token["position"]: token for token in tokens} for tokens in first]
        self._text = self._committed = ""

    def after(self, step: _Step) -> dict[str, Any]:
        """The whole event of the next step."""
        self._text, self._committed = step.text.apply(self._text), step.committed.apply(self._committed)
        for tokens, news in zip(self._board, tokens_json(step.tokens), strict=True):
            tokens.update((token["position"], token) for token in news)
        gaps = [list(tokens.values()) for tokens in self._board]
        return {**step.head(), "text": self._text, "committed": self._committed, "gaps": gaps}


class Watched:
    """One request: its job while it runs, and what has happened, from the start."""

    def __init__(self, job: Job, served: Served, kind: str, changeable: bool) -> None:
        self.id, self.owner = f"dreq_{uuid.uuid4().hex}", job.owner
        self.job, self.served, self.plan = job, served, job.plan
        self.kind, self.changeable = kind, changeable
        self.history = History(job.plan.canvas)
        self.ended: float | None = None
        self.num_watching, self.num_bytes = 0, 0
        self._drafts, self._text, self._committed = Drafts(job.plan), "", ""
        self._first = tokens_json(self._drafts.board)
        self._steps, self._last = list[_Step](), None  # type: list[_Step], tuple[str, bytes] | None
        self._news = asyncio.Event()
        self.recording = asyncio.create_task(self._record())

    def head(self) -> dict[str, Any]:
        """What is known before the first step."""
        plan, decode = self.plan, self.plan.decode
        return {
            "id": self.id,
            "object": "daguerre.request",
            "model": self.served.name,
            "kind": self.kind,
            "mode": plan.mode.name,
            "policy": decode.policy_name if "policy" in MODES[plan.mode.name].options else None,
            "changeable": self.changeable,
            "around": plan.around,
            "max_tokens": [gap.max_tokens for gap in plan.gaps],
            "prompt_tokens": plan.num_prompt,
            "gaps": self._first,
        }

    def summary(self) -> bytes:
        """JSON of a request that is done, with its result."""
        assert self._last is not None
        name, body = self._last
        head = {key: value for key, value in self.head().items() if key != "gaps"}
        key = "result" if name == "end" else "error"
        return orjson.dumps({**head, "status": self.status, key: orjson.Fragment(body)})

    async def _record(self) -> None:
        """Note every step of the job, and its end."""
        try:
            async for event in self.job.stream():
                if event.result is None:
                    self._note(event)
                    self._tell()
                else:
                    self._last = "end", await asyncio.to_thread(self._ending, event.result)
        except Exception as error:
            status, body = described(error)
            if status >= 500 and not isinstance(error, CancelledError):
                LOG.error("a request failed", exc_info=error)
            self._last = "error", orjson.dumps(body)
        finally:
            self._last = self._last or ("error", orjson.dumps(described(CancelledError("the server stopped"))[1]))
            self.num_bytes += len(self._last[1])
            self.ended = time.monotonic()
            del self.job  # and with it the cache
            self._tell()

    @property
    def _seconds(self) -> float:
        return round(time.perf_counter() - self.job.submitted, 6)

    def _note(self, event: StreamEvent) -> None:
        """Keep what a step has changed."""
        assert event.step is not None
        changes = self._drafts.after(event.step, event.committed)
        shown, committed = self.plan.plain(event.text), self.plan.plain(event.committed)
        text, firm = _Edit.between(self._text, shown), _Edit.between(self._committed, committed)
        self._text, self._committed = shown, committed
        spans, number = spans_in_gaps(event.step.canvas), len(self._steps)
        about = self._seconds, change_of(event.step), spans
        self.history.add(event.step)
        self._steps.append(_Step(number, event.step.step, *about, text, firm, changes))
        self.num_bytes += STEP_BYTES + len(text.new) + TOKEN_BYTES * sum(map(len, changes))

    def _ending(self, result: Result) -> bytes:
        """JSON of the last event. Not for the event loop."""
        starts = [start for start, _ in self.history.last.gaps]
        trace = orjson.Fragment(result.trace.to_json())
        return orjson.dumps(
            {"seconds": self._seconds, **result_json(self.plan, result), "starts": starts, "trace": trace}
        )

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def watch(self, whole: bool) -> AsyncIterator[bytes]:
        """All events from the start. whole: each step has all tokens; else those that changed."""
        self.num_watching += 1
        try:
            yield sse(self.head(), "begin")
            shown, seen = _Shown(self._first), 0
            while True:
                news = self._news
                for step in islice(self._steps, seen, len(self._steps)):
                    body = shown.after(step) if whole else {**step.head(), "gaps": tokens_json(step.tokens)}
                    yield sse(body, "step")
                    await asyncio.sleep(0)  # others have a turn between two events, however many wait
                    seen += 1
                if self.ended is not None and seen == len(self._steps):
                    assert self._last is not None
                    yield sse(orjson.Fragment(self._last[1]), self._last[0])
                    return
                await news.wait()
        finally:
            self.num_watching -= 1

    @property
    def status(self) -> str:
        """running, done, or failed (which a cancelled one is, too)."""
        if self.ended is None:
            return "running"
        return "done" if self._last is not None and self._last[0] == "end" else "failed"

    def cancel(self) -> None:
        """End it, unless it is done."""
        if self.ended is None and not self.job.done:
            with suppress(Exception):  # the engine has stopped, and the job with it
                self.job.cancel()


class Registry:
    """The requests of a server. Those that are done are kept for a while."""

    def __init__(self) -> None:
        self._all: dict[str, Watched] = {}

    def add(self, one: Watched) -> Watched:
        """Keep a request."""
        self._all[one.id] = one
        self._clear()
        return one

    def get(self, key: str, owner: str) -> Watched:
        """A request of an owner. ApiError, 404, for any other, and one that is no longer kept."""
        self._clear()
        one = self._all.get(key)
        if one is None or one.owner != owner:
            message = f"there is no request {key!r:.60}: it may be too old, or another key's"
            raise ApiError(message, 404, "id", "request_not_found")
        return one

    def forget(self, one: Watched) -> None:
        """Drop a request."""
        self._all.pop(one.id, None)

    def _clear(self) -> None:
        now, done = time.monotonic(), [one for one in self._all.values() if one.ended is not None]
        size, num = sum(one.num_bytes for one in done), len(done)
        for one in done:  # the oldest first
            assert one.ended is not None
            if now - one.ended > KEPT_SECONDS or num > KEPT_REQUESTS or (size > KEPT_BYTES and num > 1):
                size, num = size - one.num_bytes, num - 1
                self.forget(one)
