"""The bounds that an operator sets (`Settings`), for all surfaces: `within_bounds` looks at bodies and names the field,
`BoundedEngine` at what they ask of the engine.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Condition, Lock, Thread
from typing import Any

from fastapi import Request

from daguerre.cancellation import Cancellation, planning, use_cancellation
from daguerre.decoding.generate import Request as ModelRequest
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.decoding.text_spans import CharSpan
from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.engine.task import Task
from daguerre.errors import EngineError, InputError
from daguerre.http.errors import TOO_LONG, ApiError
from daguerre.http.settings import Settings
from daguerre.model import Model
from daguerre.sampling.constraints.matches import find_matches
from daguerre.server.protocol.shaping import MOST_STOPS, NAMES, REFUSED, check_stops
from daguerre.server.slots import Slots

NEW_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
TEXTS = ("messages", "input", "prompt", "input_prefix", "text", "content")
"""Fields with the text that a request is about; the first that is there is named where it is too long."""
SCHEMAS = (
    *("response_format", "tools", "functions", "text", "output_config", "output_format", "structured_outputs"),
    "format",
)
OWN_SCHEMAS = ("schema", "regex", "choices", "keywords", "forbidden", "ending", "tools", "steer", "forbid")
"""Fields that constraints are made of: OpenAI's and Anthropic's, and those of the object `daguerre`."""
CONSTRAINTS = {"schema", "regex", "choices", "tools", "keywords", "forbidden", "ending", "forbid_exactly"}
LOGGED = 128
"""Characters of a model's name that a log has."""
COMPILING = 2
"""Constraints that are compiled at once, and patterns that are looked for; more wait."""
COMPILING_BYTES = 64 << 20
"""Of memory, that each of them may take."""
BESIDE = 4
"""Requests that are computed beside those of the queue at once (embeddings, decisions, scores of prompts)."""
SHORT = 0.1
"""Seconds of processor time: what took no longer has taken little memory, and none is given back after it."""


async def within_bounds(request: Request) -> None:
    """ApiError, with its field, for a body that asks for more than the operator allows. What is computed for it from
    here on ends soon after its client has left.
    """
    if request.method != "POST":
        return
    seconds = request.app.state.settings.timeout
    until = None if seconds is None else time.monotonic() + seconds
    cancellation = Cancellation(COMPILING_BYTES, getattr(request.state, "owner", ""), until)
    use_cancellation(cancellation)
    request.state.leaving = asyncio.create_task(_leaving(request, cancellation))
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return  # what is no JSON is refused elsewhere
    if not isinstance(body, dict):
        return
    settings: Settings = request.app.state.settings
    request.state.text_field = next((name for name in TEXTS if name in body), None)
    named = {name: body[name] for name in ("model", "stream") if isinstance(body.get(name), str | bool)}
    request.state.log = {name: value[:LOGGED] if isinstance(value, str) else value for name, value in named.items()}
    for name in NEW_TOKENS:
        check_tokens(name, body.get(name), settings.max_tokens)
    if len(request.state.body) > settings.max_schema:
        own = body.get("daguerre")
        parts = {name: body[name] for name in SCHEMAS if isinstance(body.get(name), dict | list)}
        parts |= {name: body[name] for name in (*NAMES, *REFUSED) if name in body}
        if isinstance(own, dict):
            parts |= {f"daguerre.{name}": own[name] for name in OWN_SCHEMAS if name in own}
        for name, part in parts.items():
            _check_schema(name, part, settings.max_schema)


async def _leaving(request: Request, cancellation: Cancellation) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancellation.cancel()


def check_tokens(name: str, value: object, most: int | None) -> None:
    """ApiError, naming the field, for more new tokens than a request may have."""
    if most is not None and isinstance(value, int) and value > most:
        raise ApiError(f"{name} may be at most {most} on this server, not {value}", param=name)


def _check_schema(name: str, part: object, most: int) -> None:
    try:
        size = len(json.dumps(part, ensure_ascii=False).encode())
    except RecursionError:
        raise ApiError(f"{name} is nested too deep: flatten it", param=name) from None
    if size > most:
        raise ApiError(f"{name} has {size} bytes, of at most {most}: send less", 413, name, "schema_too_large")


class BoundedEngine(Engine):
    """An engine that refuses requests beyond the bounds, and ends those that take too long.

    bounds  called for the settings that hold, with each request
    counts  of all engines of a server
    """

    def __init__(
        self,
        model: Model,
        bounds: Callable[[], Settings],
        on_done: Callable[[Job], None] | None = None,
        counts: SampleCounts | None = None,
        **limits: Any,
    ) -> None:
        self._bounds, self._counts = bounds, counts or SampleCounts()
        super().__init__(model, on_done, **limits)
        self._watch = Watch(self)
        waiting = self.limits.max_waiting
        self._slots = Slots("constraints and patterns", COMPILING, 1, waiting, self.weight)
        self.beside = Slots("embeddings, decisions and scores", BESIDE, BESIDE // 2, waiting, self.weight)

    def edit(
        self,
        text: str,
        spans: Sequence[CharSpan] | None = None,
        max_tokens: int | Sequence[int] | None = None,
        decode: Decode | None = None,
        *,
        pattern: str | None = None,
        **more: Any,
    ) -> Job:
        """Rewrite parts of a text; see `Engine`. A stranger's pattern is not one of `re`, which may never end, but of
        the dialect of constraints. ApiError for what that does not have.
        """
        if pattern is not None:
            if spans is not None or more.get("lines") is not None:
                raise InputError("say what to edit in one way: give spans, lines or a pattern")
            spans = self._matches(pattern, text, more.get("owner", ""))
        return super().edit(text, spans, max_tokens, decode, **more)

    def submit(self, request: ModelRequest, *, priority: int = 0, owner: str = "") -> Job | Future[list[Any]]:
        """Plan a request and run it; see `Engine`. ApiError for one beyond the bounds."""
        check_stops(request.options.get("stop") or (), "stop", MOST_STOPS)
        if not any(request.options.get(name) for name in CONSTRAINTS):
            return super().submit(request, priority=priority, owner=owner)
        with self.planning(owner):
            return super().submit(request, priority=priority, owner=owner)

    @contextmanager
    def planning(self, owner: str) -> Iterator[None]:
        """Within it constraints of a request are compiled: all in the time of one, and few at once."""
        with planning(lambda: self._slots.taken(owner)) as began:
            try:
                yield
            finally:
                if time.thread_time() - began > SHORT:
                    give_back()

    def _matches(self, pattern: str, text: str, owner: str) -> list[CharSpan]:
        try:
            with self._slots.taken(owner):
                found = find_matches(pattern, text)
        except InputError as error:
            raise ApiError(str(error), param="pattern") from error
        if not found:
            raise ApiError("there is nothing to edit: the pattern matches nowhere", param="pattern")
        return found

    def _run(self, plan: Plan, timeout: float | None, priority: int, owner: str) -> Job:
        bounds = self._bounds()
        check_tokens("max_tokens", plan.max_tokens, bounds.max_tokens)
        if bounds.max_context is not None and len(plan.canvas) > bounds.max_context:
            message = f"the text and its new tokens are {len(plan.canvas)} tokens, of at most {bounds.max_context}"
            raise ApiError(f"{message} on this server: send less text", code=TOO_LONG)
        if bounds.timeout is not None and timeout is not None and timeout > bounds.timeout:
            message = f"timeout may be at most {bounds.timeout:g} seconds on this server, not {timeout:g}"
            raise ApiError(message, param="daguerre.timeout")
        self._counts.take(owner, plan.decode.n, bounds.running_per_key)
        try:
            job = super()._run(plan, timeout, priority, owner)
        except BaseException:
            self._counts.give_back(owner, plan.decode.n)
            raise
        if bounds.timeout is not None and timeout is None:
            self._watch.end_after(job, bounds.timeout)
        return job

    def weight(self, owner: str) -> float:
        """The weight of an owner; see `Engine`."""
        return self._bounds().keys.weight(owner)

    def _left(self, task: Task) -> None:
        if task.job is not None:
            self._counts.give_back(task.owner)
        super()._left(task)

    def close(self, drain: float = 0.0) -> None:
        """Stop; see `Engine`."""
        super().close(drain)
        self._watch.close()


class SampleCounts:
    """How many samples each owner has that run or wait, whether somebody waits for them or not. Safe to use from any
    thread.
    """

    def __init__(self) -> None:
        self._counts, self._lock = Counter[str](), Lock()

    def take(self, owner: str, num: int, most: int | None) -> None:
        """Count more samples. ApiError where that makes more than `most`."""
        with self._lock:
            if most is not None and num > most:
                raise ApiError(f"this key may have {most} samples at once, not {num}: ask for fewer", param="n")
            if most is not None and self._counts[owner] + num > most:
                message = f"this key may have {most} samples at once and has {self._counts[owner]}: wait for one"
                raise ApiError(message, 429, code="too_many_running")
            self._counts[owner] += num

    def give_back(self, owner: str, num: int = 1) -> None:
        """Samples have left."""
        with self._lock:
            self._counts[owner] -= num


class Watch:
    """Ends requests whose time is up, in a thread of its own, which the first one starts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._due = deque[tuple[float, float, weakref.ref[Job]]]()  # all have the same time, so the first is due first
        self._changed, self._closed = Condition(), False
        self._thread: Thread | None = None

    def end_after(self, job: Job, seconds: float) -> None:
        """End a request with status 408 unless it is done by then."""
        with self._changed:
            self._due.append((time.monotonic() + seconds, seconds, weakref.ref(job)))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="daguerre-watch", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """End nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while not self._closed:
            with self._changed:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                _, seconds, found = self._due.popleft()
            job = found()
            if job is not None and not job.done:
                self._end(job, seconds)

    def _end(self, job: Job, seconds: float) -> None:
        message = f"the request was not done after {seconds:g} seconds: ask for fewer tokens, or give it a deadline of "
        error = ApiError(f"{message}its own (daguerre.timeout), by which the text is finished", 408, code="timeout")
        with suppress(EngineError):
            self._engine.call(lambda: self._engine.end(job, error))


def give_back() -> None:
    """Give memory that was freed back to the system, where the C library can: each thread's is kept for that thread
    otherwise. Takes milliseconds.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
