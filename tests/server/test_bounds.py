"""An engine within an operator's bounds: what of one request counts, and what of others does not."""

from __future__ import annotations

import contextvars
import threading
import time

from daguerre.model import Model
from daguerre.sampling.constraints.budget import Budget
from daguerre.server.bounds import BoundedEngine
from daguerre.server.settings import Settings
from daguerre.wanted import NOBODY_LEFT, Asker, asked_by


def spend() -> None:
    """Some of this thread's processor time."""
    began = time.thread_time()
    while time.thread_time() == began:
        pass


def test_a_budget_counts_from_its_own_request_in_its_own_thread(tiny: Model) -> None:
    before, begins = vars(NOBODY_LEFT).copy(), list[float]()

    def later() -> None:
        for _ in range(2):
            begins.append(Budget().began)
            spend()

    def ask(engine: BoundedEngine, asking: Asker) -> None:
        if asking is not NOBODY_LEFT:
            asked_by(asking)
        engine.generate("x", 4, regex="[0-9]+").result(60)
        thread = threading.Thread(target=contextvars.copy_context().run, args=(later,))
        thread.start()
        thread.join(60)

    with BoundedEngine(tiny, Settings) as engine:
        for asking in (NOBODY_LEFT, Asker()):
            begins.clear()
            contextvars.copy_context().run(ask, engine, asking)
            assert begins[0] < begins[1]
    assert vars(NOBODY_LEFT) == before
