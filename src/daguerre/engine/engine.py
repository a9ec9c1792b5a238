"""The engine: requests of one model, from any thread, in shared forwards (`scheduler`)."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from threading import Condition, Thread
from threading import Event as Flag
from typing import TYPE_CHECKING, Any, Self, TypeVar

from daguerre.cancellation import NEVER_CANCELLED, current_cancellation
from daguerre.canvas import Canvas, Decision
from daguerre.decoding.generate import OPERATIONS, Request, plan_of, scoring_of
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode, Text
from daguerre.decoding.sample import Sample
from daguerre.engine.job import Job
from daguerre.engine.pieces import asks_for_rows
from daguerre.engine.prefixes import PAGE
from daguerre.engine.scheduler import EngineLimits, Scheduler, Stats
from daguerre.engine.task import Asked, AskingWork, SampleWork, Task, Work, num_pages, one_batch
from daguerre.errors import EngineError, InputError, QueueFullError
from daguerre.model import CHAT_TOKENS, Model, Operations
from daguerre.models.denoiser import BackboneDenoiser, CacheMode
from daguerre.models.forward import Answer, Backend, Forward, KeyCache
from daguerre.models.heads import Heads
from daguerre.models.session import Asking, Session
from daguerre.models.threads import release_threads
from daguerre.trace import Event

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone

T = TypeVar("T")
LOG = logging.getLogger("daguerre")
LOOK = 0.1
"""Seconds between two looks at whether somebody who waits for forwards has left."""


class Engine(Operations[Job]):
    """Serves a model to many callers at once:

        with Engine(daguerre.load()) as engine:
            jobs = [engine.generate(prompt) for prompt in prompts]
            texts = [job.result().text for job in jobs]

    Requests have the arguments of `Model`'s. They are checked and planned in the caller's thread, and return a `Job`
    at once. Each also takes an `owner`, whose request it is, and a `priority`, lower first among those of its owner.
    Owners have equal shares (`shares`; a class of its own may give them weights). QueueFullError while too many wait:
    of all, and of the owner's, more than its share.

    `model` is the model, whose other calls (`decide`, `nll`) are computed beside the requests. The model's weights must
    not change. `on_done` is called with each job that is done, in the engine's thread. `limits` are those of
    `EngineLimits`. Without `with`, call `start` and `close`; or call `step` yourself.
    """

    def __init__(self, model: Model, on_done: Callable[[Job], None] | None = None, **limits: Any) -> None:
        self.limits, self.on_done = EngineLimits(**limits), on_done
        self._denoiser = model.denoiser.fixed()
        self.model = copy.copy(model)
        self.model.denoiser = SharedDenoiser(self, self._denoiser)  # type: ignore[assignment]
        drafting, backend = self._denoiser.drafting, self._denoiser.backend
        both = backend if drafting is None else drafting.beside(backend)
        self._scheduler = Scheduler(both, self.limits, self._left, self.weight)
        self._changed, self._wake = Condition(), Flag()
        self._arrived, self._open = 0, Counter[str]()
        self._thread: Thread | None = None
        self.error: EngineError | None = None
        self._draining = False

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int = CHAT_TOKENS,
        decode: Decode | None = None,
        *,
        template: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Job:
        """The answer to `messages`; see `Model.chat`."""
        tools = more.get("tools", None if decode is None else decode.tools)
        prompt = self.model.chat_prompt(messages, **{"tools": tools, **(template or {})})
        return self.generate(prompt, max_tokens, decode, **more)

    def start_request(
        self, prompt: Text, max_tokens: int | None = None, decode: Decode | None = None, **more: Any
    ) -> Job:
        """A request that is changed while it runs; see `Model.start`."""
        return self._ask("stream", prompt, max_tokens, decode, changeable=True, heal=False, **more)

    def _ask(self, operation: str, *values: Any, priority: int = 0, owner: str = "", **options: Any) -> Job:
        *_, decode = values
        request = Request.of(operation, *values, **self.model.with_defaults(decode, options))
        job = self.submit(request, priority=priority, owner=owner)
        assert isinstance(job, Job)
        return job

    def submit(self, request: Request, *, priority: int = 0, owner: str = "") -> Job | Future[list[Any]]:
        """Run a request, which is planned here: its `Job`, or the answers of a decision, which come. InputError for one
        that needs more memory than there is.
        """
        if not OPERATIONS[request.operation].writes:
            asking = scoring_of(self.model.config, self.model.tokenizer, request)
            return self._enter_asking(asking, priority, owner).result
        plan = plan_of(self.model.denoiser, self.model.tokenizer, request)
        return self._run(plan, request.arguments.get("timeout"), priority, owner)

    def _run(self, plan: Plan, timeout: float | None, priority: int, owner: str) -> Job:
        num_caches = 1 + (plan.unconditional is not None) + (self._denoiser.drafting is not None)
        rows = num_pages(len(plan.canvas)) * num_caches * PAGE
        if rows > self.limits.cache_rows:
            raise InputError(
                f"the request needs {rows} rows of cache and the engine has {self.limits.cache_rows}: ask for fewer "
                "tokens, or give the engine more cache_rows"
            )
        samples = [Sample(self._denoiser, plan, index, timeout) for index in range(plan.decode.n)]
        job = Job(self, plan, samples, priority, owner)
        self._enter([SampleWork(sample) for sample in samples], priority, owner, job)
        return job

    def compute(self, batch: Sequence[Asked], *, priority: int = 0, owner: str = "") -> list[Answer]:
        """The answers to forwards, computed beside the requests; waits for them, until `Cancellation.check` raises."""
        cancellation = current_cancellation()
        cancellation.check()
        work = self._enter_asking(one_batch(list(batch)), priority, owner or cancellation.owner)
        while True:
            try:
                answers: list[Answer] = work.result.result(None if cancellation is NEVER_CANCELLED else LOOK)
                return answers
            except FutureTimeout:
                try:
                    cancellation.check()
                except BaseException:
                    self.call(lambda: self._scheduler.drop(work))
                    raise

    def _enter_asking(self, asking: Asking[Any], priority: int, owner: str) -> AskingWork:
        work = AskingWork(asking, self._in_parts)
        self._enter([work], priority, owner, None)
        return work

    def _in_parts(self, asked: Asked) -> Asked:
        """The forward with a cache, where that lets it be computed a part at a time."""
        if not isinstance(asked, Forward) or asked.cache is not None or not asks_for_rows(asked):
            return asked
        num = len(asked.tokens)
        if not PAGE < num == asked.layout.num_clean or num > self.limits.cache_rows:
            return asked
        return replace(asked, cache=self._denoiser.backend.cache(num))

    def _enter(self, works: Sequence[Work], priority: int, owner: str, job: Job | None) -> None:
        with self._changed:
            self._check()
            self._check_share(owner, len(works))
            self._open[owner] += len(works)
            number, self._arrived = self._arrived, self._arrived + len(works)
            salt = "" if self.limits.share_prefixes else owner
            tasks = [Task(work, number + index, priority, owner, salt, job) for index, work in enumerate(works)]
            self._scheduler.add(tasks)
        self._wake.set()

    def _check_share(self, owner: str, num: int) -> None:
        """QueueFullError where there is no room for as many tasks, and the owner would have more than its share. Who
        has less is let in also where others have filled the queue.
        """
        most, all_ = self.limits.max_running + self.limits.max_waiting, self._open.total()
        weights = sum(map(self.weight, {owner, *self._open}))
        if all_ + num > most and self._open[owner] + num > most * self.weight(owner) / weights:
            raise QueueFullError(f"{all_} requests run or wait, of at most {most}: ask again later")

    def weight(self, owner: str) -> float:
        """The weight of an owner."""
        return 1.0

    def _left(self, task: Task) -> None:
        with self._changed:
            self._open[task.owner] -= 1
            if not self._open[task.owner]:
                del self._open[task.owner]
            self._changed.notify_all()

    def _check(self) -> None:
        if self.error is not None or self._draining:
            raise EngineError("the engine takes no more requests: start another one") from self.error

    # What a job asks for

    def call(self, what: Callable[[], T]) -> Future[T]:
        """Run a function between two steps. EngineError once the engine has stopped."""
        with self._changed:
            if self.error is not None:
                raise EngineError("the engine has stopped: start another one") from self.error
            future = self._scheduler.call(what)
        self._wake.set()
        return future

    def end(self, job: Job, error: BaseException) -> None:
        """End a request; between two steps."""
        self._scheduler.end(job, error)

    def change(self, job: Job, sample: Sample, decision: Callable[[Sample], Decision]) -> Event:
        """Change the canvas of a sample; between two steps."""
        return self._scheduler.change(job, sample, decision)

    def finished(self, job: Job) -> None:
        """Tell `on_done`, in the engine's thread."""
        if self.on_done is not None:
            try:
                self.on_done(job)
            except Exception:
                LOG.exception("on_done failed")

    # The engine's thread

    def start(self) -> Self:
        """Run steps in a thread of its own, until `close`."""
        release_threads()
        self._thread = Thread(target=self._serve, name="daguerre-engine", daemon=True)
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def step(self) -> bool:
        """Compute one batch; returns whether there was anything to do. Without `start`."""
        return self._scheduler.step()

    def stats(self) -> Stats:
        """What the engine has done, and how full it is."""
        return self._scheduler.stats()

    def close(self, drain: float = 0.0) -> None:
        """Stop, after at most `drain` seconds in which the requests that were accepted may end. The others end with an
        EngineError.
        """
        with self._changed:
            self._draining = True
            if self._thread is not None:
                self._changed.wait_for(lambda: not self._open, drain)
            self.error = self.error or EngineError("the engine was closed before the request was done")
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._scheduler.stop(self.error)

    def _serve(self) -> None:
        try:
            while self.error is None:
                self._wake.clear()
                if not self._scheduler.step():
                    self._wake.wait()
        except BaseException as error:
            LOG.exception("the engine has stopped")
            stopped = EngineError("the engine has stopped: start another one")
            stopped.__cause__ = error
            with self._changed:
                self.error = stopped
            self._scheduler.stop(stopped)


class SharedDenoiser:
    """A denoiser whose forwards an engine computes, beside those of its requests. It is also its own backend."""

    def __init__(self, engine: Engine, denoiser: BackboneDenoiser) -> None:
        self.config, self.quantize = denoiser.config, denoiser.quantize
        self._engine, self._denoiser = engine, denoiser

    @property
    def backbone(self) -> Backbone:
        """As in the denoiser itself."""
        return self._denoiser.backbone

    @property
    def heads(self) -> Heads:
        """As in the denoiser itself."""
        return self._denoiser.heads

    def with_weights(self) -> Backbone:
        """As in the denoiser itself."""
        return self._denoiser.with_weights()

    @property
    def backend(self) -> Backend:
        """Computes forwards beside those of the requests; waits for them."""
        return self

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> Session:
        """A fresh session; see `Denoiser`."""
        return self._denoiser.session(canvas, cache)

    def forward(self, batch: Sequence[Asked]) -> list[Answer]:
        """One answer for each; see `Backend`."""
        return self._engine.compute(batch)

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """An empty cache; see `Backend`."""
        return self._denoiser.backend.cache(capacity, int8=int8)
