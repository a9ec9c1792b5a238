"""The event loop answers: between two events of a request others have a turn, however many wait, and an event costs
what it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.model import Model
from server.processes import Serving

Ask = Callable[..., httpx2.Response]
NUM = 120


def finished(model: Model) -> Job:
    """A request whose events all wait to be read."""
    with Engine(model) as engine:
        job = engine.generate("import os\n", NUM, mode="ar", min_tokens=NUM, temperature=1.0)
        job.result(120)
    return job


async def turns(reading: Callable[[], Awaitable[Any]]) -> int:
    """How many turns others have on the event loop while something is read."""
    num, done = 0, asyncio.Event()

    async def others() -> None:
        nonlocal num
        while not done.is_set():
            num += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await reading()
    done.set()
    await other
    return num


async def drained(items: AsyncIterator[Any]) -> int:
    return len([item async for item in items])


def test_others_have_a_turn_between_two_events(make_model: Callable[..., Model]) -> None:
    from daguerre.server.models import Served
    from daguerre.server.streams import deltas
    from daguerre.server.watching import Watched

    model = make_model()
    job = finished(model)

    async def watched() -> tuple[int, int]:
        one = Watched(job, Served("tiny", model, None), "generate", changeable=False)  # type: ignore[arg-type]
        recorded = await turns(lambda: one.recording)
        return recorded, await turns(lambda: drained(one.watch(whole=True)))

    assert min(asyncio.run(watched())) >= NUM
    assert asyncio.run(turns(lambda: drained(deltas([job], every=True)))) >= NUM


def test_an_event_costs_what_it_changes(make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    from daguerre.decoding.result import _GapText
    from daguerre.decoding.sample import Follower
    from daguerre.server import drafts
    from daguerre.server.logprobs import TokenLog

    job = finished(make_model())
    read, decoded = list[int](), list[int]()
    before, taken = drafts._GapDraft._read, _GapText.take

    def counted(self: Any, canvas: Any, position: int, *more: Any) -> Any:
        read.append(position)
        return before(self, canvas, position, *more)

    def take(self: Any, plan: Any, start: int, drawn: Any) -> None:
        had = self.num
        taken(self, plan, start, drawn)
        decoded.append(self.num - had)

    monkeypatch.setattr(drafts._GapDraft, "_read", counted)
    monkeypatch.setattr(_GapText, "take", take)
    followed, board, log = Follower(job.plan, job.samples[0].events), drafts.Drafts(job.plan), TokenLog(job.plan)
    read.clear()
    for event in followed.new():
        assert event.step is not None
        board.after(event.step, event.committed)
        log.after(event.step, len(event.committed))
    assert len(read) <= 3 * NUM and sum(decoded) <= 4 * NUM


def test_health_and_an_honest_request_come_before_what_floods(attacked: Serving, ask: Ask) -> None:
    """The floods go on while the others are answered, one after the other."""
    flood = {"prompt": "import os\n", "max_tokens": 900, "stream": False, "options": {"mode": "ar", "min_tokens": 900}}
    logged = {"prompt": "x = ", "max_tokens": 900, "logprobs": 20, "daguerre": {"mode": "ar", "min_tokens": 900}}
    order = list[str]()

    def hostile(path: str, body: dict[str, Any]) -> None:
        assert ask(path, body, timeout=240).status_code == 200
        order.append("flood")

    with ThreadPoolExecutor(8) as threads:
        floods = [threads.submit(hostile, "/v1/daguerre/requests", flood) for _ in range(4)]
        floods += [threads.submit(hostile, "/v1/completions", logged) for _ in range(4)]
        for number in range(20):
            assert attacked.client.get("/health" if number % 2 else "/v1/models").status_code == 200
        assert ask("/v1/completions", {"prompt": "def f(", "max_tokens": 2}).status_code == 200
        order.append("honest")
        for one in floods:
            one.result()
    assert order[0] == "honest"
