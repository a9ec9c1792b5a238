"""Bodies on their way: late ones end, and all of them share a limit by owner and address."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from daguerre.http import incoming
from daguerre.http.errors import ApiError
from daguerre.http.incoming import ClientLeft, Incoming

EVE, ANA = ("eve", "1.1.1.1"), ("ana", "2.2.2.2")


class Sender:
    """A client that sends parts of a body as a test says."""

    def __init__(self, all_: Incoming, who: tuple[str, str], most: int = 1 << 20) -> None:
        self.parts = asyncio.Queue[dict[str, Any]]()
        self.reading = asyncio.create_task(all_.read(self.parts.get, *who, most))
        self.reading.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def send(self, part: bytes, more: bool = True) -> None:
        self.parts.put_nowait({"type": "http.request", "body": part, "more_body": more})
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def status(self) -> int | None:
        """Of the error that ended it; None: it is on its way."""
        if not self.reading.done():
            return None
        error = self.reading.exception()
        return error.http_status if isinstance(error, ApiError) else 200


async def begun(all_: Incoming, *who: tuple[str, str], size: int = 1) -> list[Sender]:
    out = [Sender(all_, one) for one in who]
    for one in out:
        await one.send(b"x" * size)
    return out


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_a_whole_body_is_given_and_a_long_or_broken_one_is_not() -> None:
    async def test() -> None:
        all_ = Incoming(60)
        good, large, gone = (Sender(all_, ANA, most=4) for _ in range(3))
        await good.send(b"ab")
        await good.send(b"cd", more=False)
        await large.send(b"abcde")
        gone.parts.put_nowait({"type": "http.disconnect"})
        assert await good.reading == b"abcd" and large.status == 413
        with pytest.raises(ClientLeft):
            await gone.reading
        assert not all_._open

    run(test)


def test_a_late_body_and_a_slow_one_end(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    async def test() -> None:
        (one,) = await begun(Incoming(0.05), ANA)
        with pytest.raises(ApiError, match="in time"):
            await one.reading
        assert one.status == 408

    with subtests.test("the deadline"):
        run(test)
    monkeypatch.setattr(incoming, "FREE_SECONDS", 0.05)

    async def slow() -> None:
        (one,) = await begun(Incoming(600), ANA, size=10)
        with pytest.raises(ApiError, match="in time"):
            await one.reading

    with subtests.test("the rate"):
        run(slow)


def test_too_many_bodies_are_given_up_by_whoever_has_most() -> None:
    async def test() -> None:
        all_ = Incoming(60, most=8)
        eve = await begun(all_, *[EVE] * 8)
        (more,) = await begun(all_, EVE)
        assert more.status == 503 and [one.status for one in eve] == [None] * 8
        ana = await begun(all_, *[ANA] * 4)
        assert [one.status for one in eve] == [503] * 4 + [None] * 4, "those that began first"
        (fifth,) = await begun(all_, ANA)
        assert fifth.status == 503 and [one.status for one in ana] == [None] * 4
        await ana[0].send(b"y", more=False)
        assert await ana[0].reading == b"xy"

    run(test)


def test_without_keys_addresses_share() -> None:
    async def test() -> None:
        all_ = Incoming(60, most=8)
        senders = {address: await begun(all_, *[("", address)] * 8) for address in ("1.1.1.1", "2.2.2.2")}
        left = Counter(address for address, some in senders.items() for one in some if one.status is None)
        assert left == {"1.1.1.1": 4, "2.2.2.2": 4}
        (third,) = await begun(all_, ("", "3.3.3.3"))
        assert third.status is None

    run(test)


def test_bytes_are_shared_and_never_more_than_the_limit() -> None:
    async def test() -> None:
        all_ = Incoming(60, most_bytes=1000)
        eve = await begun(all_, *[EVE] * 4, size=240)
        (ana,) = await begun(all_, ANA, size=300)
        assert [one.status for one in eve] == [503, 503, None, None] and ana.status is None
        assert sum(one.size for one in all_._open) <= 1000
        await eve[2].send(b"x" * 600)
        assert eve[2].status == 503 and ana.status is None
        await ana.send(b"x" * 400, more=False)
        assert len(await ana.reading) == 700

    run(test)
