"""An engine within an operator's bounds: what of one request counts, and what of others does not."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from daguerre.cancellation import NEVER_CANCELLED, Cancellation, use_cancellation
from daguerre.http.settings import Keys, Settings, hash_of
from daguerre.model import Model
from daguerre.sampling.constraints.budget import Budget
from daguerre.server.app import make_app
from daguerre.server.batch import answer_file
from daguerre.server.bounds import BESIDE, COMPILING, BoundedEngine
from daguerre.server.models import ModelPool
from server.conftest import running
from server.processes import wait_until

MANY = 40
"""Of each kind, and so more in all than threads that plan, and fewer than a client has connections."""


def spend() -> None:
    """Some of this thread's processor time."""
    began = time.thread_time()
    while time.thread_time() == began:
        pass


def test_a_budget_counts_from_its_own_request_in_its_own_thread(tiny: Model) -> None:
    before, begins = vars(NEVER_CANCELLED).copy(), list[float]()

    def later() -> None:
        for _ in range(2):
            begins.append(Budget().began)
            spend()

    def ask(engine: BoundedEngine, cancellation: Cancellation) -> None:
        if cancellation is not NEVER_CANCELLED:
            use_cancellation(cancellation)
        engine.generate("x", 4, regex="[0-9]+").result(60)
        thread = threading.Thread(target=contextvars.copy_context().run, args=(later,))
        thread.start()
        thread.join(60)

    with BoundedEngine(tiny, Settings) as engine:
        for cancellation in (NEVER_CANCELLED, Cancellation()):
            begins.clear()
            contextvars.copy_context().run(ask, engine, cancellation)
            assert begins[0] < begins[1]
    assert vars(NEVER_CANCELLED) == before


def test_what_was_compiled_needs_no_place(tiny: Model) -> None:
    with BoundedEngine(tiny, Settings) as engine, ExitStack() as held:
        shaped = {"regex": "needs no place: [0-9]+", "owner": "ana"}
        engine.generate("x", 16, **shaped).result(60)
        for _ in range(COMPILING):
            held.enter_context(engine._slots.taken(""))

        def ask() -> None:
            use_cancellation(Cancellation(until=time.monotonic() + 10))  # who waited would not wait for ever
            engine.generate("x", 16, **shaped).result(60)

        contextvars.copy_context().run(ask)


def shaped(number: object) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": "x", "max_tokens": 24, "daguerre": {"regex": f"of a burst {number}"}}


def embedded(number: object) -> tuple[str, dict[str, Any]]:
    return "/v1/embeddings", {"input": f"x = {number}"}


@contextmanager
def taken(engine: BoundedEngine) -> Iterator[tuple[BoundedEngine, ExitStack]]:
    """All places of an engine are, until the stack is closed."""
    with ExitStack() as held:
        for slots, num in ((engine._slots, COMPILING), (engine.beside, BESIDE)):
            for _ in range(num):
                held.enter_context(slots.taken(""))
        yield engine, held


def all_wait(engine: BoundedEngine, owner: str = "") -> bool:
    return engine._slots.num_waiting(owner) == engine.beside.num_waiting(owner) == MANY


@pytest.mark.parametrize("keys", [(), ("one",)], ids=["without keys", "of one key"])
def test_a_burst_waits_and_holds_up_nobody(tiny: Model, keys: tuple[str, ...]) -> None:
    """While all places are taken: then each of it is answered."""
    pool = ModelPool({"tiny": lambda: tiny})
    owners, headers = {hash_of(key): key for key in keys}, {"authorization": "Bearer one"}
    owner = next(iter(owners), "")
    app = make_app(pool, Settings(keys=Keys(names=owners)))
    with (
        running(app) as url,
        httpx2.Client(base_url=url, timeout=120, headers=headers) as client,
        ThreadPoolExecutor(2 * MANY) as threads,
        taken(pool.get().engine) as (engine, held),
    ):
        asked = [make(f"{number} {owner[:1]}") for number in range(MANY) for make in (shaped, embedded)]
        answers = [threads.submit(client.post, path, json=body) for path, body in asked]
        wait_until(lambda: any(one.done() for one in answers) or all_wait(engine, owner))
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
        held.close()
        assert [one.result().status_code for one in answers] == [200] * 2 * MANY


def test_a_batch_may_ask_for_many_at_once(tiny: Model, tmp_path: Path) -> None:
    rows = [make(number) for number in range(MANY) for make in (shaped, embedded)]
    lines = [{"custom_id": str(number), "url": url, "body": body} for number, (url, body) in enumerate(rows)]
    (tmp_path / "in").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    with (
        closing(ModelPool({"tiny": lambda: tiny}, max_waiting=1 << 30)) as pool,
        ThreadPoolExecutor(1) as threads,
        taken(pool.get().engine) as (engine, held),
    ):
        done = threads.submit(answer_file, pool, tmp_path / "in", tmp_path / "out", 2 * MANY, lambda *_: None)
        wait_until(lambda: done.done() or all_wait(engine))
        held.close()
        assert done.result() == (2 * MANY, 0)
