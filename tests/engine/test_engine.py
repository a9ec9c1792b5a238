"""The engine: requests share steps, wait, end early and change, and each is as it is alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from daguerre.decoding.result import Result
from daguerre.decoding.running import pinned, reopened
from daguerre.engine import job as job_module
from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.engine.prefixes import PAGE, PART
from daguerre.errors import CancelledError, DaguerreError, EngineError, InputError, QueueFullError, UnsupportedError
from daguerre.model import Model
from daguerre.models.forward import Answer, DraftStep, Forward
from daguerre.scoring.decisions import Choice
from driving import Recording

PROMPT, SUFFIX = "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n"
MIXED: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("generate", (PROMPT, 40), {"mode": "ar"}),
    ("generate", (PROMPT, 24), {"mode": "speculative", "temperature": 1.0, "seed": 3}),
    ("generate", ("import os\n", 24), {"mode": "block", "block_size": 8, "policy": "confidence", "steps": 4}),
    ("generate", ("x = 1\n" * 20, 17), {"mode": "block", "policy": "entropy", "block_size": 5, "temperature": 0.7}),
    ("infill", (PROMPT, SUFFIX, 12), {"mode": "full"}),
    ("infill", (PROMPT, SUFFIX, 9), {"mode": "block", "guidance": 2.0}),
    ("fill", ("def <gap>(a, b):\n    return <gap>\n", [4, 8]), {"temperature": 1.0, "seed": 5}),
    ("edit", ("x = 1\ny = 2\n",), {"spans": [(4, 5)], "max_tokens": 4}),
    ("generate", ("a", 20), {"mode": "block", "regex": "[a-z ]+;"}),
    ("generate", ("", 8), {"mode": "ar", "n": 2, "temperature": 1.0}),
    ("generate", (PROMPT, 12), {"mode": "block", "stop": ["\n"]}),
    ("generate", (PROMPT, 16), {"mode": "ar", "cache": "none"}),
    ("generate", (PROMPT, 16), {"mode": "ar", "draft": "w * h\n"}),
    ("infill", (PROMPT, SUFFIX, 6), {"mode": "beam", "num_beams": 3}),
    ("generate", (PROMPT, 16), {"mode": "block", "cache": "approximate_int8", "revise": 1}),
]
"""16 samples."""


def ids(result: Result) -> list[list[int]]:
    return [[token.id for token in one.tokens] for one in result.choices]


def run(model: Model, number: int) -> Result:
    kind, values, options = MIXED[number]
    return getattr(model, kind)(*values, **options)  # type: ignore[no-any-return]


def submit(engine: Engine, number: int, **more: Any) -> Job:
    kind, values, options = MIXED[number]
    return getattr(engine, kind)(*values, **options, **more)  # type: ignore[no-any-return]


def run_out(engine: Engine) -> None:
    while engine.step():
        pass


def recorded(engine: Engine) -> Recording:
    """The engine's backend, which from now on keeps every batch."""
    backend = Recording(engine._scheduler.backend)
    engine._scheduler.backend = backend
    return backend


@pytest.fixture(scope="module")
def model(make_model: Callable[..., Model]) -> Model:
    return make_model(draft_head=24)


@pytest.mark.parametrize("backend", [None, "torch"])
def test_16_mixed_requests_take_no_more_forwards_than_the_longest_alone(model: Model, backend: Any) -> None:
    model = Model(model.backbone, model.tokenizer, backend)
    alone = [run(model, number) for number in range(len(MIXED))]
    engine = Engine(model)
    batches = recorded(engine).batches
    jobs = [submit(engine, number) for number in range(len(MIXED))]
    run_out(engine)
    num_steps = []
    for number in range(len(MIXED)):
        one = Engine(model)
        submit(one, number)
        run_out(one)
        num_steps.append(one.stats().steps)
    assert sum(len(result.choices) for result in alone) == 16
    assert len(batches) == engine.stats().steps == max(num_steps)
    equal = [ids(job.result()) == ids(result) for job, result in zip(jobs, alone, strict=True)]
    assert sum(equal) >= len(equal) - (backend is not None)  # PyTorch's products may differ in the last bits


def test_events_are_those_of_a_stream(model: Model) -> None:
    engine = Engine(model)
    job = engine.generate(PROMPT, 20, mode="block", block_size=8)
    run_out(engine)
    want = list(model.stream(PROMPT, 20, mode="block", block_size=8))
    assert [(event.text, event.committed) for event in job.events()] == [(e.text, e.committed) for e in want]
    *_, last = job.events()
    assert last.result is not None and last.result.text == job.result().text


def test_a_thread_serves_many_callers(model: Model) -> None:
    alone = [run(model, number) for number in range(len(MIXED))]
    out: dict[int, Result] = {}
    with Engine(model, max_running=6, max_rows=64, cache_rows=1024) as engine:
        callers = [
            threading.Thread(target=lambda number=number: out.update({number: submit(engine, number).result(60)}))
            for number in range(len(MIXED))
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert engine.stats().running == engine.stats().waiting == 0
    assert {number: ids(result) for number, result in out.items()} == {n: ids(r) for n, r in enumerate(alone)}


def test_callers_on_an_event_loop(model: Model) -> None:
    want = [run(model, number) for number in (0, 2)]

    async def ask(engine: Engine) -> tuple[Result, list[str]]:
        job, other = submit(engine, 0), submit(engine, 2)
        result, texts = await asyncio.gather(job.wait(), _committed(other))
        return result, texts

    async def _committed(job: Job) -> list[str]:
        return [event.committed async for event in job.stream()]

    with Engine(model) as engine:
        result, texts = asyncio.run(ask(engine))
    assert ids(result) == ids(want[0])
    assert texts[-1] == want[1].text
    assert len(texts) > 2
    assert all(after.startswith(before) for before, after in zip(texts, texts[1:], strict=False))


class Held(Recording):
    """A backend that computes as many batches as it is let."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self._changed, self._left, self._held = threading.Condition(), 0, False

    def let(self, num: int) -> None:
        with self._changed:
            self._left, self._held = self._left + num, False
            self._changed.notify_all()

    def wait(self) -> None:
        """Until it has computed them, and is given another."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._held, 60)

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        with self._changed:
            self._held = not self._left
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._left > 0, 60)
            self._left -= 1
        return super().forward(batch)


def held(engine: Engine) -> Held:
    """The engine's backend, which from now on is let."""
    backend = Held(engine._scheduler.backend)
    engine._scheduler.backend = backend
    return backend


def test_a_reader_of_the_text_alone_may_skip_steps(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader looks at most once in PAUSE seconds; here five steps are done meanwhile. Between two looks the engine
    wakes the event loop once.
    """
    wakes = list[int]()

    async def read(engine: Engine, steps: Held | None = None) -> list[str]:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (wakes.append(1), wake(*args))[1])
        job = engine.generate(PROMPT, 40, mode="ar", min_tokens=40)

        async def pause(done: Any, seconds: float) -> None:
            assert steps is not None and seconds == job_module.PAUSE
            done.close()
            want = job._num_news + 5
            steps.let(5)
            while job._num_news < want and not job.done:
                await asyncio.sleep(0)

        with monkeypatch.context() as patch:
            if steps is not None:
                steps.let(1)
                patch.setattr(asyncio, "wait_for", pause)
            return [event.committed async for event in job.stream(every=steps is None)]

    with Engine(model) as engine:
        whole = asyncio.run(read(engine))
    engine = Engine(model)
    steps = held(engine)
    wakes.clear()
    with engine:
        some = asyncio.run(read(engine, steps))
    assert len(whole) == 41
    assert some == [*whole[:36:5], *whole[36:]]  # at the end the rest comes at once
    assert len(wakes) <= 10


def test_a_cancelled_request_leaves_in_the_next_step(model: Model) -> None:
    engine = Engine(model, max_running=1)
    first, second = engine.generate(PROMPT, 40, mode="ar"), engine.generate(PROMPT, 4, mode="ar")
    engine.step()
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (1, 1)
    first.cancel()
    engine.step()
    assert second.started is not None
    with pytest.raises(CancelledError):
        first.result()
    with pytest.raises(CancelledError):
        list(first.events())
    run_out(engine)
    assert len(second.result().tokens) == 4
    first.cancel()  # nothing is left to end
    run_out(engine)
    assert engine.stats().pages_used == 0


def test_what_a_cancelled_request_has_read_is_kept(model: Model) -> None:
    """Each of those that are cancelled while a long prompt is read begins where the last one was."""
    engine, prompt, found = Engine(model, max_rows=64), [n % 50 + 5 for n in range(240)], list[int]()
    for _ in range(3):
        job = engine.generate(prompt, 4, mode="ar", heal=False)
        engine.step()
        job.cancel()
        engine.step()
        found.append(job.cached_tokens)
    assert found == sorted(found) and found[0] == 0 and len(set(found)) == 3
    job = engine.generate(prompt, 4, mode="ar", heal=False)
    run_out(engine)
    assert job.cached_tokens > found[-1]
    want = model.generate(prompt, 4, mode="ar", heal=False)
    assert [token.id for token in job.result().tokens] == [token.id for token in want.tokens]
    assert engine.stats().pages_used == 0


def test_an_awaited_request_is_cancelled_with_its_caller(model: Model) -> None:
    async def leave(engine: Engine) -> Job:
        job = engine.generate(PROMPT, 200, mode="ar", min_tokens=200)
        caller = asyncio.create_task(job.wait())
        steps.let(3)
        await asyncio.to_thread(steps.wait)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        return job

    engine = Engine(model)
    steps = held(engine)
    with engine:
        job = asyncio.run(leave(engine))
        steps.let(1)
        with pytest.raises(CancelledError):
            job.result(60)
    assert len(steps.batches) == 4


def test_an_error_ends_its_own_request(model: Model) -> None:
    def broken(canvas: Any, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("a caller's mistake")

    engine = Engine(model)
    bad = engine.generate(PROMPT, 8, mode="block", scorer=broken)
    good = submit(engine, 0)
    run_out(engine)
    with pytest.raises(ZeroDivisionError):
        bad.result()
    assert ids(good.result()) == ids(run(model, 0))


class Poisoned(Recording):
    """A backend that fails for each batch with a forward that has this token."""

    def __init__(self, backend: Any, token: int, error: BaseException) -> None:
        super().__init__(backend)
        self._token, self._raised = token, error

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        if any(isinstance(one, Forward) and self._token in one.tokens for one in batch):
            raise self._raised
        return super().forward(batch)


def test_a_forward_that_fails_ends_its_own_request(model: Model) -> None:
    poison = model.tokenizer.encode("poison", begins=False)
    engine = Engine(model)
    engine._scheduler.backend = Poisoned(engine._scheduler.backend, poison[-1], MemoryError("too much"))
    bad, good = engine.generate([1, *poison, 5], 8, mode="ar"), submit(engine, 0)
    run_out(engine)
    with pytest.raises(MemoryError):
        bad.result()
    assert ids(good.result()) == ids(run(model, 0))


def test_an_engine_that_dies_tells_everybody(model: Model) -> None:
    engine = Engine(model)
    engine._scheduler.backend = Poisoned(engine._scheduler.backend, 5, SystemExit("out"))
    jobs = [engine.generate([1, 5, 9], 8, mode="ar"), submit(engine, 0)]
    with engine:
        for job in jobs:
            with pytest.raises(EngineError, match="has stopped"):
                job.result(60)
        with pytest.raises(EngineError):
            submit(engine, 1)


def test_a_call_whose_caller_has_left_is_not_run(model: Model) -> None:
    """An event loop cancels the future of a change when its client disconnects."""
    engine, ran = Engine(model), list[int]()
    engine.call(lambda: ran.append(1)).cancel()
    kept = engine.call(lambda: ran.append(2))
    run_out(engine)
    assert ran == [2] and kept.done()


def test_on_done_that_fails_is_logged(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    def broken(job: Job) -> None:
        raise ZeroDivisionError("a caller's mistake")

    with Engine(model, on_done=broken) as engine:
        for number in (0, 2):
            assert ids(submit(engine, number).result(60)) == ids(run(model, number))
    assert "a caller's mistake" in caplog.text


def test_stats_are_read_while_the_engine_runs(model: Model) -> None:
    engine = Engine(model)
    steps = held(engine)
    with engine:
        jobs = [submit(engine, number) for number in range(len(MIXED))]
        steps.let(2)
        steps.wait()
        assert engine.stats().pages_used > 0
        steps.let(1000)
        while not all(job.done for job in jobs):
            engine.stats()
        for number, job in enumerate(jobs):
            assert ids(job.result(60)) == ids(run(model, number))


def test_a_cache_cut_below_its_shared_pages_holds_none_of_its_own(model: Model) -> None:
    """A change may take back what a request has read from an earlier one."""
    engine = Engine(model)
    prompt = "import os\n" * 30
    engine.generate(prompt, 4, mode="ar", heal=False)
    run_out(engine)
    job = engine.generate(prompt, 40, mode="ar", heal=False, min_tokens=40)
    engine.step()
    task = engine._scheduler._running[0]
    (cache,) = task._caches.values()
    assert task._read
    task.pieces, task._pages = [], None
    cache.truncate(0)
    assert task.pages == 0
    job.cancel()
    run_out(engine)


def test_a_full_queue_refuses(model: Model) -> None:
    engine = Engine(model, max_running=1, max_waiting=1)
    jobs = [submit(engine, 2) for _ in range(2)]
    with pytest.raises(QueueFullError, match="of at most 2"):
        submit(engine, 2)
    run_out(engine)
    jobs.append(submit(engine, 2))
    run_out(engine)
    assert all(job.done for job in jobs)


def order_of(jobs: dict[str, Job]) -> list[str]:
    starts = {name: job.started for name, job in jobs.items()}
    return sorted(starts, key=lambda name: starts[name] or 0.0)


def test_lower_priority_numbers_go_first_and_owners_take_turns(model: Model) -> None:
    engine = Engine(model, max_running=2)
    running = [engine.generate(PROMPT, 30, mode="ar", owner="a"), engine.generate(PROMPT, 6, mode="ar", owner="b")]
    engine.step()
    jobs = {
        "a": engine.generate(PROMPT, 6, mode="ar", owner="a"),
        "b": engine.generate(PROMPT, 6, mode="ar", owner="b"),
        "late": engine.generate(PROMPT, 6, mode="ar", priority=9),
        "soon": engine.generate(PROMPT, 6, mode="ar", priority=-1, owner="a"),
    }
    run_out(engine)
    assert order_of(jobs) == ["late", "b", "soon", "a"]  # "a" still has one that runs, and nobody else is late's owner
    assert all(job.done for job in running)


def test_what_does_not_fit_is_refused_at_once(model: Model) -> None:
    engine = Engine(model, cache_rows=128)
    with pytest.raises(InputError, match="192 rows of cache and the engine has 128"):
        engine.generate("x", 150)
    with pytest.raises(InputError, match="256 rows"):
        engine.generate(PROMPT, 90, mode="ar", guidance=2.0)
    with pytest.raises(InputError, match="max_rows must be a whole number from 64"):
        Engine(model, max_rows=10)
    with pytest.raises(DaguerreError):
        engine.generate("x", 10, temprature=1.0)
    assert not engine.step()


def test_a_prompt_that_came_before_is_not_computed_again(model: Model) -> None:
    engine = Engine(model, cache_rows=1024)
    prompt = "import os\n" * 30
    batches = recorded(engine).batches
    jobs, rows = [], []
    for end in ("a", "b"):
        jobs.append(engine.generate(prompt + end, 6, mode="ar", heal=False))
        before = len(batches)
        engine.step()
        rows.append(sum(len(one.tokens) for one in batches[before] if isinstance(one, Forward)))
        run_out(engine)
    assert jobs[0].cached_tokens == 0
    assert jobs[1].cached_tokens == (rows[0] - 1) // PART * PART > 0
    assert rows[1] == rows[0] - jobs[1].cached_tokens
    for end, job in zip("ab", jobs, strict=True):
        assert ids(job.result()) == ids(model.generate(prompt + end, 6, mode="ar", heal=False))
    stats = engine.stats()
    assert stats.pages_stored and stats.prefix_found == jobs[1].cached_tokens


@pytest.mark.parametrize("backend", [None, "torch"])
def test_requests_that_begin_alike_share_memory_and_write_none_of_it(model: Model, backend: Any) -> None:
    """On the native backend; PyTorch's caches are copies."""
    model = Model(model.backbone, model.tokenizer, backend)
    prompt = model.tokenizer.encode("import os\n" * 30)
    engine = Engine(model)
    first = engine.generate([*prompt, 5], 4, mode="ar", heal=False)
    run_out(engine)
    num_stored, whole = engine.stats().pages_stored, len(prompt) // PAGE
    assert num_stored == whole + 1
    jobs = [engine.generate([*prompt, token], 30, mode="ar", heal=False, min_tokens=30) for token in range(20, 28)]
    engine.step()
    engine.step()
    used = engine.stats().pages_used
    own = 8 * ((len(prompt) + 32) // 64 + 1)
    assert used == (own - 7 * whole if model.denoiser.backend.cache(9).shares else own + whole)
    run_out(engine)
    assert first.result()
    for token, job in zip(range(20, 28), jobs, strict=True):
        alone = model.generate([*prompt, token], 30, mode="ar", heal=False, min_tokens=30)
        assert ids(job.result()) == ids(alone)
    assert engine.stats().pages_used == 0


@pytest.mark.parametrize("backend", [None, "torch"])
def test_short_prompts_that_begin_alike_are_read_once(model: Model, backend: Any) -> None:
    """Fewer rows than a page has, and the first rows of a page that goes on otherwise."""
    model = Model(model.backbone, model.tokenizer, backend)
    engine = Engine(model)
    shared = model.tokenizer.encode("import os\n" * 60)
    found = {}
    for number, (begin, rest) in enumerate(((20, 9), (20, 9), (45, 1), (100, 30), (100, 5), (20, 60), (13, 1))):
        prompt = [*shared[:begin], *range(20 + number, 20 + number + rest)]
        job = engine.generate(prompt, 70, mode="ar", heal=False, min_tokens=70)
        run_out(engine)
        assert ids(job.result()) == ids(model.generate(prompt, 70, mode="ar", heal=False, min_tokens=70))
        found[number] = job.cached_tokens
        kept_pages = engine._scheduler._prefixes
        assert kept_pages is not None
        tails = {key for key, page in kept_pages._pages.items() if key in page.parts}
        assert all(kept_pages._parts[key] == key for key in tails), "a page that nobody can find"
    first = model.generate(shared[:20], 1, mode="ar", heal=False).usage.prompt_tokens - 20
    kept = [(first + rows) // PART * PART for rows in (0, 20, 20, 45, 100, 20, 13)]
    assert list(found.values()) == [0, *kept[1:]]
    prefixes = engine._scheduler._prefixes
    assert prefixes is not None
    prefixes.drop(len(prefixes))
    assert not prefixes._parts and not len(prefixes)


def test_an_answer_is_the_prefix_of_the_next_turn(model: Model) -> None:
    engine = Engine(model)
    first = engine.generate(PROMPT, 120, mode="ar", min_tokens=120, heal=False)
    run_out(engine)
    tokens = model.tokenizer.encode(PROMPT) + [token.id for token in first.result().tokens]
    second = engine.generate([*tokens, 7], 4, mode="ar", heal=False)
    run_out(engine)
    assert second.cached_tokens == (len(tokens) - 1) // PART * PART > PAGE


def test_prefixes_go_when_memory_is_needed_those_used_last_stay(model: Model) -> None:
    engine = Engine(model, cache_rows=640)
    for first in range(8):
        engine.generate([first + 5] * 130, 4, mode="ar", heal=False)
        run_out(engine)
        engine.generate([5] * 130, 4, mode="ar", heal=False)
        run_out(engine)
        assert engine.stats().pages_stored <= 10
    again = [engine.generate([first + 5] * 130, 4, mode="ar", heal=False) for first in (0, 7, 1)]
    for _ in range(2):
        engine.step()
    assert [job.cached_tokens > 0 for job in again] == [True, True, False]


def test_a_running_request_is_changed(model: Model) -> None:
    engine = Engine(model)
    job = engine.start_request(PROMPT, 24, mode="block", block_size=6, policy="confidence", steps=3)
    other = submit(engine, 0)
    engine.step()
    pin = job.change(lambda sample: pinned(sample, model.tokenizer, 20, "zz"))
    engine.step()
    assert pin.result(0).decision.pin.size
    wrong = job.change(lambda sample: pinned(sample, model.tokenizer, 400, "zz"))
    again = job.change(lambda sample: reopened(sample, 0, 24))
    engine.step()
    assert again.result(0).decision.reopen.size
    with pytest.raises(InputError):
        wrong.result(0)
    run_out(engine)
    result = job.result()
    assert "zz" in result.text
    *_, last = result.trace.replay()
    assert not last.open.any()
    assert ids(other.result()) == ids(run(model, 0))
    with pytest.raises(UnsupportedError):
        submit(engine, 13).change(lambda sample: reopened(sample, 0))


def test_a_request_that_changes_takes_no_draft(model: Model) -> None:
    with pytest.raises(UnsupportedError, match="takes no draft"):
        Engine(model).start_request(PROMPT, 24, mode="block", draft="w * h")


def test_a_change_while_a_prompt_is_computed_in_parts(model: Model) -> None:
    engine = Engine(model, max_rows=64)
    prompt = "x = 1\n" * 30
    job = engine.start_request(prompt, 12, mode="block", block_size=6)
    engine.step()
    pin = job.change(lambda sample: pinned(sample, model.tokenizer, 3, "zz"))
    run_out(engine)
    assert pin.result(0)
    running = model.start(prompt, 12, mode="block", block_size=6)
    running.pin(3, "zz")
    assert ids(job.result()) == ids(running.result())


def test_a_deadline_holds_in_a_queue(model: Model) -> None:
    """The time in the queue counts; what has settled is returned."""
    engine = Engine(model, max_running=1)
    ahead = engine.generate(PROMPT, 40, mode="ar")
    late = engine.generate(PROMPT, 40, mode="ar", timeout=1e-6)
    soon = engine.generate(PROMPT, 12, mode="block", block_size=12, policy="confidence", steps=12, timeout=1e-6)
    run_out(engine)
    assert late.result().finish_reason == "timeout"
    assert len(soon.result().tokens) == 12 or soon.result().finish_reason == "timeout"
    assert ahead.result().finish_reason != "timeout"


def test_other_calls_of_the_model_share_the_steps(model: Model) -> None:
    questions = [Choice(labels=("yes", "no"))]
    answers = model.decide(PROMPT, questions)
    want = model.nll(PROMPT * 3, kind="ar").value
    searched = model.infill(PROMPT, SUFFIX, 6, search_length=True)
    with Engine(model) as engine:
        job = engine.generate(PROMPT, 60, mode="ar", min_tokens=60)
        assert engine.model.decide(PROMPT, questions)[0].answer == answers[0].answer
        assert engine.submit(engine.model.decision(PROMPT, questions)).result(60) == answers
        assert engine.model.nll(PROMPT * 3, kind="ar").value == pytest.approx(want, abs=1e-4)
        assert ids(engine.infill(PROMPT, SUFFIX, 6, search_length=True).result(60)) == ids(searched)
        assert len(job.result(60).tokens) == 60


def test_closing_waits_for_what_was_accepted_or_ends_it(model: Model) -> None:
    engine = Engine(model).start()
    job = submit(engine, 0)
    engine.close(drain=60)
    assert ids(job.result()) == ids(run(model, 0))
    with pytest.raises(EngineError, match="no more requests"):
        submit(engine, 0)
    engine = Engine(model).start()
    job = engine.generate(PROMPT, 200, mode="ar", min_tokens=200)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        job.result(60)
