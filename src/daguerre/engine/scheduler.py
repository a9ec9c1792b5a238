"""Continuous batching: many requests share the forwards of one backend.

A step takes the next forwards of all running tasks, computes them in one batch, and lets each task go on. A task that
is done leaves at once, and one that waits joins at the next step. A step takes a quarter of a second at most, so that
nobody waits for somebody else's prompt: texts that are being written go first, and prompts are computed in parts.
Nothing that a task computes depends on its neighbors (contract 3), so its tokens are those that it has alone.

Owners have equal shares of places, rows and memory, or shares by their weights (`shares`); a task's priority ranks it
among those of its owner alone. Where an owner has less than its share, the last task of the one that has most waits
instead: its rows are computed again later.

Memory is counted in pages of clean rows. Where it runs out, stored prefixes go first, and then a task waits likewise.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Any, TypeVar

from daguerre.canvas import Decision
from daguerre.decoding.sample import Sample
from daguerre.engine.job import Job
from daguerre.engine.pace import TIMED, Pace
from daguerre.engine.prefixes import PAGE, Prefixes
from daguerre.engine.shares import OwnerShares, Weight, alike
from daguerre.engine.steps import PieceRows, choose
from daguerre.engine.task import SampleWork, Task, Work, num_pages
from daguerre.errors import EngineError, InputError
from daguerre.models.forward import Answer, Backend
from daguerre.trace import Event

T = TypeVar("T")


@dataclass(frozen=True)
class EngineLimits:
    """How much an engine takes on.

    max_running   how many samples share a step; more wait
    max_waiting   how many more may wait; a request beyond is refused
    max_rows      rows of a step, at which prompts are divided
    step_seconds  seconds of a step, at which they are divided, too, as far as rows were timed; None: at no time
    cache_rows    clean rows that are kept in memory, of running requests and stored prefixes
    store_prefixes  whether later requests may begin with what earlier ones have computed
    share_prefixes  whether they may be those of other owners, who then learn what was asked before
    """

    max_running: int = 64
    max_waiting: int = 256
    max_rows: int = 2048
    step_seconds: float | None = 0.25
    cache_rows: int = 1 << 17
    store_prefixes: bool = True
    share_prefixes: bool = False

    def __post_init__(self) -> None:
        for name, least in (("max_running", 1), ("max_waiting", 0), ("max_rows", PAGE), ("cache_rows", PAGE)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number from {least} up, not {value!r}")
        if self.step_seconds is not None and not 0 < self.step_seconds < inf:
            raise InputError(f"step_seconds must be a positive number or None, not {self.step_seconds!r}")


@dataclass
class Stats:
    """What the engine has done.

    steps         batches that were computed
    rows          rows in them
    preemptions   how often a task gave up its memory
    running, waiting   tasks
    pages, pages_used, pages_stored   of memory: all, those of tasks, and those of stored prefixes
    prefix_asked, prefix_found   rows of prompts that were looked for among stored prefixes, and found
    """

    steps: int = 0
    rows: int = 0
    preemptions: int = 0
    running: int = 0
    waiting: int = 0
    pages: int = 0
    pages_used: int = 0
    pages_stored: int = 0
    prefix_asked: int = 0
    prefix_found: int = 0


class Scheduler:
    """Runs tasks on one backend, step by step. Everything but `add` and `call` is for one thread. `left` is called for
    each task that leaves. weight: of an owner.
    """

    def __init__(
        self,
        backend: Backend,
        limits: EngineLimits,
        left: Callable[[Task], None] = lambda task: None,
        weight: Weight = alike,
    ) -> None:
        self.backend, self.limits, self._left = backend, limits, left
        self._shares, self._pace = OwnerShares(weight), Pace(backend.config, limits.step_seconds)
        self._pages, self._prefixes = num_pages(limits.cache_rows), Prefixes() if limits.store_prefixes else None
        self._running, self._waiting = list[Task](), list[Task]()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._steps = self._rows = self._preemptions = self._pages_used = 0
        self._lock = Lock()

    def call(self, what: Callable[[], T]) -> Future[T]:
        """Run a function between two steps; the future has what it returns or raises. From any thread."""
        future = Future[T]()
        with self._lock:
            self._calls.append((what, future))
        return future

    def add(self, tasks: Sequence[Task]) -> None:
        """Add tasks, which take part from the next step on. From any thread."""
        self.call(lambda: self._waiting.extend(tasks))

    def stop(self, error: EngineError) -> None:
        """End everything that runs, waits or was added."""
        self._run_calls()
        for task in [*self._running, *self._waiting]:
            self._end(task, error)

    def step(self) -> bool:
        """Compute one batch, of the next forwards of all that run; returns whether there was anything to do."""
        begun = time.perf_counter()
        called = self._run_calls()
        self._admit()
        self._free_memory()
        started = time.perf_counter()
        chosen = choose(self._shares, self._pace, self.limits.max_rows, self._running, self._waiting)
        parts = chosen.parts
        for part in parts:
            part.task.turn = self._steps
        asked_at = time.perf_counter()
        done = self._compute(parts)
        forward = time.perf_counter() - asked_at
        for part, answer in done:
            part.piece.computed(part.asked, answer)
        if parts:
            self._steps += 1
            seconds = time.perf_counter() - started
            self._rows += chosen.num_rows
            self._go_on({part.task for part in parts}, seconds)
            self._pace.took(chosen.num_rows, chosen.num_work, len(parts), forward, time.perf_counter() - begun)
        self._pages_used = self._used
        return bool(parts) or called

    def _run_calls(self) -> bool:
        with self._lock:
            calls, self._calls = self._calls, deque()
        for what, future in calls:
            if not future.set_running_or_notify_cancel():  # its caller does not wait any more
                continue
            try:
                future.set_result(what())
            except Exception as error:
                future.set_exception(error)
        return bool(calls)

    def _admit(self) -> None:
        """Let tasks in, as their owners' shares say. A page is left free, so that those that run can go on for a
        while.
        """
        while self._waiting:
            task = self._shares.next_of(self._waiting, self._running)
            if not task.pieces:
                task.work.beside(self._crowd(task.owner, self._tasks))
                if not self._advance(task, None):
                    continue
            if not self._has_room(task):
                return
            self._waiting.remove(task)
            self._running.append(task)
            found = 0 if self._prefixes is None else task.reuse(self._prefixes)
            if task.job is not None:
                task.job.enter(found)

    @property
    def _tasks(self) -> Counter[str]:
        """How many tasks of each owner share steps, now or soon. One that is read counts as many as it has rows in a
        short step.
        """
        tasks = Counter[str]()
        for task in (*self._running, *self._waiting):
            tasks[task.owner] += 1 if task.stored else min(TIMED, max(1, task.num_next))
        return tasks

    def _crowd(self, owner: str, tasks: Counter[str]) -> int:
        """How many of these tasks share steps with one of an owner: as if the others had as many for their weights,
        since they have no more of a step.
        """
        return min(self.limits.max_running, tasks.total(), self._shares.crowd(owner, tasks))

    def _has_room(self, task: Task) -> bool:
        """Whether there is a place and memory for a task, after others have given way to it."""
        while len(self._running) >= self.limits.max_running:
            if not self._gives_way(lambda one: 1, task):
                return False
        while self._running and self._used + task.pages + 1 > self._pages:
            if not self._gives_way(lambda one: one.pages, task):
                return False
        return True

    def _gives_way(self, measure: Callable[[Task], int], task: Task | None = None) -> bool:
        """Let the task wait that has to (`OwnerShares.over`); returns whether there is one."""
        last = self._shares.over(self._running, measure, task)
        if last is None:
            return False
        last.give_up()
        self._release(last)
        self._running.remove(last)
        self._waiting.append(last)
        self._preemptions += 1
        return True

    @property
    def _used(self) -> int:
        """The pages that running tasks hold and need next, stored ones that they read included."""
        read = 0 if self._prefixes is None else self._prefixes.num_read
        return read + sum(task.pages for task in self._running)

    def _free_memory(self) -> None:
        """Where memory has run out, drop stored prefixes, and then let tasks wait, as many as it takes."""
        while (spare := self._pages - self._used) < 0:
            if len(self._running) == 1 or not self._gives_way(lambda one: one.pages):
                break
        if self._prefixes is not None:
            self._prefixes.drop(len(self._prefixes) - self._prefixes.num_read - max(0, spare))

    def _release(self, task: Task) -> None:
        if self._prefixes is not None:
            task.release(self._prefixes)

    def _compute(self, parts: Sequence[PieceRows]) -> list[tuple[PieceRows, Answer]]:
        """Parts and their answers. Where a batch fails, tasks are computed one by one: an error ends its own task."""
        if not parts:
            return []
        try:
            return list(zip(parts, self.backend.forward([part.asked for part in parts]), strict=True))
        except Exception as error:
            tasks = list(dict.fromkeys(part.task for part in parts))
            if len(tasks) == 1:
                self._end(tasks[0], error)
                return []
        return [done for task in tasks for done in self._compute([part for part in parts if part.task is task])]

    def _go_on(self, tasks: set[Task], seconds: float) -> None:
        """Let tasks whose forwards are all computed go on."""
        jobs, all_ = dict[Job, None](), self._tasks
        crowds = {owner: self._crowd(owner, all_) for owner in {task.owner for task in tasks}}
        for task in [task for task in self._running if task in tasks]:
            task.work.spent(seconds)
            task.work.beside(crowds[task.owner])
            answers = [piece.answer for piece in task.pieces if piece.answer is not None]
            if len(answers) < len(task.pieces):
                continue
            if not task.stored:  # its prompt, for those that come soon
                self._store(task)
            self._advance(task, answers)
            if task.job is not None and not task.job.done:
                jobs[task.job] = None
        for job in jobs:
            job.news()

    def _advance(self, task: Task, answers: list[Answer] | None) -> bool:
        """Let a task go on to its next forwards; returns whether it has any. One that is done leaves."""
        try:
            if task.advance(answers):
                return True
        except Exception as error:
            self._end(task, error)
            return False
        self._store(task)
        self._remove(task)
        if task.job is not None and task.job.left():
            task.job.finish()
        return False

    def _store(self, task: Task) -> None:
        if self._prefixes is not None:
            task.keep(self._prefixes, self._pages - self._used)
            self._free_memory()
        task.stored = True

    def _remove(self, task: Task) -> None:
        (self._running if task in self._running else self._waiting).remove(task)
        self._release(task)
        self._left(task)

    def _end(self, task: Task, error: BaseException) -> None:
        """End a task, and with it all samples of its request."""
        if task.job is None:
            self._remove(task)
            task.work.fail(error)
        else:
            self._leave(task.job, error)

    def drop(self, work: Work) -> None:
        """End work that is no request's; between two steps. Nothing happens to what is done."""
        for task in [task for task in (*self._running, *self._waiting) if task.work is work]:
            self._remove(task)

    # What a job asks for between steps

    def end(self, job: Job, error: BaseException) -> None:
        """End a request; nothing happens to one that is done. What it has computed is stored: who ends a request often
        asks for the same a moment later, as an editor does with each key.
        """
        for task in [task for task in self._running if task.job is job]:
            if task in self._running:  # the last one may have taken its memory
                self._store(task)
        self._leave(job, error)

    def _leave(self, job: Job, error: BaseException) -> None:
        """End a request without storing anything, since a forward has failed."""
        if not job.done:
            for task in [task for task in (*self._running, *self._waiting) if task.job is job]:
                self._remove(task)
            job.finish(error)

    def change(self, job: Job, sample: Sample, decision: Callable[[Sample], Decision]) -> Event:
        """Change the canvas of a sample; its next forwards are made anew. InputError for one that is done."""
        for task in (*self._running, *self._waiting):
            if isinstance(task.work, SampleWork) and task.work.sample is sample:
                event = sample.change(decision(sample))
                self._advance(task, None)
                job.news()
                return event
        raise InputError("this request is done: start another one")

    def stats(self) -> Stats:
        """What the engine has done, and how full it is. From any thread."""
        return Stats(
            steps=self._steps,
            rows=self._rows,
            preemptions=self._preemptions,
            running=len(self._running),
            waiting=len(self._waiting) + len(self._calls),
            pages=self._pages,
            pages_used=self._pages_used,
            pages_stored=0 if self._prefixes is None else len(self._prefixes),
            prefix_asked=0 if self._prefixes is None else self._prefixes.asked,
            prefix_found=0 if self._prefixes is None else self._prefixes.found,
        )
