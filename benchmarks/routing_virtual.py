"""The simulated agent in virtual time: the router's own decisions, attempts and second requests, without HTTP.

    python benchmarks/routing_virtual.py --seeds 5 6

The world, the configuration and the scores are those of `routing_agent`. A loop whose clock jumps to the next timer
stands in for the machine, so a run takes seconds and has no noise but the world's: for looking at why requests are late
and what they cost. What the router does is its own code; backends are answers that begin and end when the world says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import selectors
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
from routing_agent import our_config, outcome, scores
from routing_backends import HttpAnswer
from routing_world import BACKENDS, COMPRESSED, RESTART, DrawnRequest, World

from daguerre.errors import DaguerreError
from daguerre.http.settings import Keys
from daguerre.router import attempts, proxy, routed_request, upstream, watching
from daguerre.router.config import read_config
from daguerre.router.proxy import Router
from daguerre.router.replies import BackendError
from daguerre.router.store import Store
from daguerre.router.upstream import Reply, Upstream, Upstreams


class Jumping(selectors.DefaultSelector):
    """A selector that waits for nothing: the loop's clock jumps."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Nothing is ready; `timeout` seconds have passed."""
        self.passed += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop with such a clock."""

    def __init__(self) -> None:
        self.jumps = Jumping()
        super().__init__(self.jumps)

    def time(self) -> float:
        """Seconds that have passed."""
        return 1000.0 + self.jumps.passed


class Clock:
    """What stands for the module `time` in the router."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.monotonic = self.perf_counter = self.time = loop.time


class Simulation(Upstreams):
    """Backends of the world. taken: the numbers of requests, and who took them."""

    def __init__(self, config: Any, world: World, loop: VirtualLoop) -> None:
        super().__init__(config)
        self._world, self._loop, self.start = world, loop, loop.time()
        self.taken = defaultdict[int, list[str]](list)

    @contextlib.asynccontextmanager
    async def _request(
        self, one: Upstream, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        name, drawn = one.backend.name, self._world.requests[int(body["seed"])]
        it, now = BACKENDS[name], self._loop.time() - self.start
        dies, lives = (share * self._world.seconds for share in it.dead)
        if dies <= now < lives + RESTART / 2000 / COMPRESSED:
            raise BackendError("connect", f"{name} cannot be reached")
        if self._world.within(drawn.at, it.refusing):
            raise BackendError("status", f"{name} answered with status 503", 503)
        self.taken[drawn.number].append(name)
        first, end = self._world.took(drawn, name)

        async def chunks() -> AsyncIterator[bytes]:
            for wait, piece in ((first, FIRST), (end - first, LAST)) if drawn.stream else ((end, WHOLE),):
                if now < dies <= self._loop.time() - self.start + wait:
                    await asyncio.sleep(dies - (self._loop.time() - self.start))
                    raise BackendError("broken", f"{name} broke off")
                await asyncio.sleep(wait)
                yield piece

        kind = "text/event-stream" if drawn.stream else "application/json"
        yield Reply(200, {"content-type": kind}, chunks())


FIRST = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = b"data: [DONE]\n\n"
WHOLE = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'


class Asking:
    """A request as the router sees one."""

    def __init__(self, one: DrawnRequest) -> None:
        self.state = SimpleNamespace(request_id="agent", owner="")
        self._body, self.headers = orjson.dumps(one.body), {"x-route-step": one.step}

    async def body(self) -> bytes:
        """Its body."""
        return self._body

    async def receive(self) -> dict[str, str]:
        """The client never leaves."""
        await asyncio.get_running_loop().create_future()
        return {}


def run(world: World, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What became of each request, as `routing_agent` says it, and the lines of the log."""
    path, lines, loop = folder / "route.toml", list[dict[str, Any]](), VirtualLoop()
    path.write_text(our_config(8800, dict.fromkeys(BACKENDS, Port()), folder / "log.jsonl"))  # type: ignore[arg-type]
    config, modules = read_config(path), (attempts, proxy, routed_request, upstream, watching)
    kept = [module.time for module in modules]  # type: ignore[attr-defined]
    for module in modules:
        module.time = Clock(loop)  # type: ignore[attr-defined]
    try:
        backends = Simulation(config, world, loop)
        router = Router(config, backends, Store(None), lambda reading, body: {}, lines.append, Keys())
        outcomes = loop.run_until_complete(_drive(world, router, backends, loop))
    finally:
        for module, one in zip(modules, kept, strict=True):
            module.time = one  # type: ignore[attr-defined]
        loop.close()
    return outcomes, lines


class Port:
    """Of a backend that nobody connects to."""

    port = 1


async def _drive(world: World, router: Router, backends: Simulation, loop: VirtualLoop) -> list[dict[str, Any]]:
    async def ask(one: DrawnRequest) -> HttpAnswer:
        try:
            asking = Asking(one)
            response = await router.serve(asking, "chat", "/chat/completions")  # type: ignore[arg-type]
            body = bytearray()

            async def send(message: Any) -> None:
                body.extend(message.get("body", b""))

            scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
            await response(scope, asking.receive, send)  # type: ignore[arg-type]
            status = response.status_code
            named = {name: value for name, value in response.headers.items() if name.startswith("x-route")}
        except DaguerreError as error:
            status, body, named = error.http_status, bytearray(), {}
        return HttpAnswer(status=status, headers=named, body=body, end=loop.time())

    tasks = list[asyncio.Task[HttpAnswer]]()
    for one in world.requests:
        await asyncio.sleep(max(0.0, backends.start + one.at - loop.time()))
        tasks.append(asyncio.create_task(ask(one)))
    answers = await asyncio.gather(*tasks)
    await router.close()
    return [
        outcome(world, one, backends.start + one.at, got, backends.taken[one.number])
        for one, got in zip(world.requests, answers, strict=True)
    ]


def why_late(world: World, outcomes: list[dict[str, Any]]) -> dict[str, int]:
    """Requests that missed what a backend could have kept, by what their backend went through and whether a second one
    was asked.
    """
    found = Counter[str]()
    for one, drawn in zip(outcomes, world.requests, strict=True):
        if not one["oracle"] or not one["late"]:
            continue
        first = one["first"]
        slow = first is not None and world.within(drawn.at, BACKENDS[first].slow)
        usual = first is not None and world.took(drawn, first)[1] <= drawn.slo
        kind = (
            "failed" if one["backend"] is None else "slow time" if slow else "in time alone" if usual else "slow draw"
        )
        found[f"{kind}, asked {one['taken']} times"] += 1
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1800)
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6])
    parser.add_argument("--keep", type=Path, help="a file for all outcomes")
    given = parser.parse_args()
    all_, sums = list[Any](), Counter[str]()
    for seed in given.seeds:
        world = World(given.requests, seed)
        with tempfile.TemporaryDirectory() as folder:
            outcomes, lines = run(world, Path(folder))
        could = [one for one in outcomes if one["oracle"]]
        sums += Counter(
            could=len(could),
            late=sum(one["late"] for one in could),
            cost=sum(one["cost"] for one in could),
            oracle=sum(one["oracle_cost"] for one in could),
        )
        all_.append({"seed": seed, "outcomes": outcomes, "lines": lines})
        has = scores(world, outcomes)
        said = " ".join(f"{name} {has[name]:.4f}" for name in ("met", "cost", "cost_of_choice", "failed", "repeated"))
        print(f"seed {seed}: {said} {why_late(world, outcomes)}", flush=True)
    share, cost = 1 - sums["late"] / sums["could"], sums["cost"] / sums["oracle"]
    print(f"all: in time {share:.4f} of {sums['could']:.0f}, cost {cost:.4f}")
    if given.keep:
        given.keep.write_text(json.dumps(all_))


if __name__ == "__main__":
    main()
