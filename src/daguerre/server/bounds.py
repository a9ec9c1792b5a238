"""The bounds that an operator sets (`Settings`), for all surfaces: `within_bounds` looks at bodies and names the field,
`BoundedEngine` at what they ask of the engine.
"""

from __future__ import annotations

import json
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from threading import BoundedSemaphore, Condition, Lock, Thread
from typing import Any

from fastapi import Request

from daguerre.decoding.plan import Plan
from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.engine.task import Task
from daguerre.errors import EngineError
from daguerre.model import Model
from daguerre.server.errors import TOO_LONG, ApiError
from daguerre.server.protocol.shaping import NAMES, REFUSED
from daguerre.server.settings import Settings

NEW_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
TEXTS = ("messages", "input", "prompt", "input_prefix", "text", "content")
"""Fields with the text that a request is about; the first that is there is named where it is too long."""
SCHEMAS = ("response_format", "tools", "functions", "text", "output_config", "output_format", "structured_outputs")
OWN_SCHEMAS = ("schema", "regex", "choices", "keywords", "forbidden", "ending", "tools", "steer", "forbid")
"""Fields that constraints are made of: OpenAI's and Anthropic's, and those of the object `daguerre`."""
CONSTRAINTS = {"schema", "regex", "choices", "tools", "keywords", "forbidden", "ending", "forbid_exactly"}
COMPILING = 2
"""Constraints that are compiled at once; more wait, so that hostile ones leave processors to the others."""


async def within_bounds(request: Request) -> None:
    """ApiError, with its field, for a body that asks for more than the operator allows."""
    if request.method != "POST":
        return
    raw = await request.body()
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return  # what is no JSON is refused elsewhere
    if not isinstance(body, dict):
        return
    settings: Settings = request.app.state.settings
    request.state.text_field = next((name for name in TEXTS if name in body), None)
    request.state.log = {name: body[name] for name in ("model", "stream") if isinstance(body.get(name), str | bool)}
    for name in NEW_TOKENS:
        _check_tokens(name, body.get(name), settings.max_tokens)
    if len(raw) > settings.max_schema:
        own = body.get("daguerre")
        parts = {name: body[name] for name in SCHEMAS if isinstance(body.get(name), dict | list)}
        parts |= {name: body[name] for name in (*NAMES, *REFUSED) if name in body}
        if isinstance(own, dict):
            parts |= {f"daguerre.{name}": own[name] for name in OWN_SCHEMAS if name in own}
        for name, part in parts.items():
            _check_schema(name, part, settings.max_schema)


def _check_tokens(name: str, value: object, most: int | None) -> None:
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
        self._compiling = BoundedSemaphore(COMPILING)

    def _plan(self, make_plan: Callable[..., Plan], values: tuple[Any, ...], **more: Any) -> Job:
        compiles = any(more.get(name) for name in CONSTRAINTS)
        with self._compiling if compiles else nullcontext():
            return super()._plan(make_plan, values, **more)

    def submit(self, plan: Plan, *, timeout: float | None = None, priority: int = 0, owner: str = "") -> Job:
        """Run a plan; see `Engine`. ApiError for one beyond the bounds."""
        bounds = self._bounds()
        _check_tokens("max_tokens", plan.max_tokens, bounds.max_tokens)
        if bounds.max_context is not None and len(plan.canvas) > bounds.max_context:
            message = f"the text and its new tokens are {len(plan.canvas)} tokens, of at most {bounds.max_context}"
            raise ApiError(f"{message} on this server: send less text", code=TOO_LONG)
        if bounds.timeout is not None and timeout is not None and timeout > bounds.timeout:
            message = f"timeout may be at most {bounds.timeout:g} seconds on this server, not {timeout:g}"
            raise ApiError(message, param="daguerre.timeout")
        self._counts.take(owner, plan.decode.n, bounds.running_per_key)
        try:
            job = super().submit(plan, timeout=timeout, priority=priority, owner=owner)
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
