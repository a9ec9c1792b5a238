"""Requests that are watched by their ids: each is recorded as it runs, and read by any number of clients."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import orjson
from fastapi import FastAPI

from daguerre.canvas import Canvas
from daguerre.decoding.modes import MODES
from daguerre.decoding.result import StreamEvent
from daguerre.engine.job import Job
from daguerre.errors import CancelledError
from daguerre.server.drafts import Board, Drafts, change_of, result_json, spans_in_gaps, tokens_json
from daguerre.server.errors import ApiError, described
from daguerre.server.models import Served
from daguerre.server.streams import LOG, sse

KEPT_SECONDS = 900.0
"""How long a request that is done is kept."""
KEPT_REQUESTS = 256
KEPT_POSITIONS = 4_000_000
"""Of all requests that are done: the positions of their canvases, each counted once a step."""

POSITION_BYTES = 16
"""About the memory of one position."""


class Watched:
    """One request: its job while it runs, and what has happened, from the start."""

    def __init__(self, job: Job, served: Served, kind: str, changeable: bool) -> None:
        self.id, self.owner = f"dreq_{uuid.uuid4().hex}", job.owner
        self.job, self.served, self.plan = job, served, job.plan
        self.kind, self.changeable = kind, changeable
        self.canvases: list[Canvas] = []
        self.ended: float | None = None
        self.num_watching, self._explained = 0, 0
        self._drafts = Drafts(job.plan)
        self._first = tokens_json(self._drafts.board)
        self._frames: list[tuple[str, dict[str, Any], Board]] = []
        self._news = asyncio.Event()
        self.recording = asyncio.create_task(self._record())

    @property
    def size(self) -> int:
        """The positions that it keeps; explanations of tokens count as the positions that take as much memory."""
        return (1 + len(self.canvases)) * len(self.plan.canvas) + self._explained // POSITION_BYTES

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
        head = {key: value for key, value in self.head().items() if key != "gaps"}
        name, body, _ = self._frames[-1]
        return orjson.dumps({**head, "status": self.status, "result" if name == "end" else "error": body})

    async def _record(self) -> None:
        """Note every step of the job, and its end."""
        try:
            async for event in self.job.stream():
                name, body, changes = self._noted(event)
                self._add(name, body, changes)
        except Exception as error:
            status, body = described(error)
            if status >= 500 and not isinstance(error, CancelledError):
                LOG.error("a request failed", exc_info=error)
            self._add("error", body, [])
        finally:
            self.ended = time.monotonic()
            del self.job  # and with it the cache
            self._tell()

    def _noted(self, event: StreamEvent) -> tuple[str, dict[str, Any], Board]:
        seconds = round(time.perf_counter() - self.job.submitted, 6)
        if event.result is not None:
            made, trace = result_json(event.result), orjson.Fragment(event.result.trace.to_json())
            if event.result.concepts is not None:
                concepts = orjson.dumps(made["concepts"])
                made["concepts"], self._explained = orjson.Fragment(concepts), len(concepts)
            starts = [start for start, _ in (self.canvases[-1] if self.canvases else self.plan.canvas).gaps]
            return "end", {"seconds": seconds, **made, "starts": starts, "trace": trace}, []
        assert event.step is not None
        canvas, changes = event.step.canvas, self._drafts.after(event.step, event.committed)
        self.canvases.append(canvas)
        change = change_of(event.step)
        body = {
            "number": len(self.canvases) - 1,
            "step": event.step.step,
            "forwards": event.step.step + (change is None),
            "seconds": seconds,
            "change": change,
            "spans": spans_in_gaps(canvas),
            "text": event.text,
            "committed": event.committed,
        }
        return "step", body, changes

    def _add(self, name: str, body: dict[str, Any], changes: Board) -> None:
        self._frames.append((name, body, changes))
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def watch(self, whole: bool) -> AsyncIterator[bytes]:
        """All events from the start. whole: each step has all tokens; else those that changed."""
        self.num_watching += 1
        try:
            yield sse(self.head(), "begin")
            board = [{token["position"]: token for token in tokens} for tokens in self._first]
            seen = 0
            while True:
                news = self._news
                while seen < len(self._frames):
                    yield self._event(seen, board if whole else None)
                    seen += 1
                if self.ended is not None:
                    return
                await news.wait()
        finally:
            self.num_watching -= 1

    def _event(self, number: int, board: list[dict[int, dict[str, Any]]] | None) -> bytes:
        """One event; with a `board` that has all tokens before it, and all tokens after it then."""
        name, body, changes = self._frames[number]
        if name != "step":
            return sse(body, name)
        changed = tokens_json(changes)
        if board is None:
            short = {key: value for key, value in body.items() if key not in ("text", "committed")}
            return sse({**short, "gaps": changed}, name)
        for tokens, news in zip(board, changed, strict=True):
            tokens.update((token["position"], token) for token in news)
        return sse({**body, "gaps": [list(tokens.values()) for tokens in board]}, name)

    @property
    def status(self) -> str:
        """running, done, or failed (which a cancelled one is, too)."""
        if self.ended is None:
            return "running"
        return "done" if self._frames[-1][0] == "end" else "failed"

    def cancel(self) -> None:
        """End it, unless it is done."""
        if self.ended is None and not self.job.done:
            with suppress(Exception):  # the engine has stopped, and the job with it
                self.job.cancel()


class Registry:
    """The requests of a server. Those that are done are kept for a while."""

    def __init__(self) -> None:
        self._all: dict[str, Watched] = {}

    @classmethod
    def of(cls, app: FastAPI) -> Registry:
        """The one of an application."""
        if not hasattr(app.state, "requests"):
            app.state.requests = cls()
        found: Registry = app.state.requests
        return found

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
        positions, num = sum(one.size for one in done), len(done)
        for one in done:  # the oldest first
            assert one.ended is not None
            if now - one.ended > KEPT_SECONDS or num > KEPT_REQUESTS or (positions > KEPT_POSITIONS and num > 1):
                positions, num = positions - one.size, num - 1
                self.forget(one)
