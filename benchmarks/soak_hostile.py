"""Attacks of every kind on a server of the default model for minutes, beside four honest clients with keys of their
own.

    python benchmarks/soak_hostile.py --minutes 10 --out benchmarks/results/hostile-soak

First each honest client has the server alone, then all four together, then beside the attacks, which two more keys and
clients without a key send from a process of their own. Checked: each honest client keeps KEPT of the tokens a second
that its share of the machine, one of six keys, gives it alone; its answers are right (`soak.compare`); nobody gets a
status of 500 or more but 503, which says to come again later, and an honest client not even that; `/health` and
`/v1/models` answer within PROBE and an honest client's first token comes within FIRST; once the attackers have left,
memory is within 5% of what a round of the same attacks had left before. Exits with status 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from servers import serving
from soak import JSON, ROUTE, ServerSeen, body_of, compare, counted, listed, rests

from daguerre.evals.machine import machine_facts, memory
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.http.settings import hash_of

HONEST, HOSTILE = ("ana", "ben", "cem", "dia"), ("eve", "mal")
KEPT, GROWTH, AT_ONCE = 0.6, 1.05, 24
PROBE, FIRST, EVERY = 0.1, 2.0, 0.25
"""Seconds within which 99 of 100 probes are answered and first tokens of honest clients come; and between probes."""
CACHE = 32_768
"""Rows of keys and values that are kept, 96 MiB of the default model's."""
LONG, FILLED = 600, 2
"""Rows of a long prompt, about; how often such prompts would fill what is kept."""
REQUESTS, CHAT = "/v1/daguerre/requests", "/v1/chat/completions"
FIGURES = ("alone", "together", "attacked", "of_its_share")
Headers = dict[str, str]
Statuses = dict[str, Counter[str]]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


LONG_AR = {"mode": "ar", "min_tokens": 400}
ATTACKS: dict[str, tuple[str, Any]] = {
    "backtracking pattern": (REQUESTS, {"kind": "edit", "text": "a" * 32 + "!", "pattern": "(a+)+$"}),
    "long enum": (ROUTE, {"prompt": "x", "daguerre": {"schema": {"enum": ["x" * 240_000]}}}),
    "counted pattern": (ROUTE, {"prompt": "x", "max_tokens": 4, "daguerre": {"regex": "(a?b?c?d?e?){40}" * 40}}),
    "playground": (REQUESTS, {"prompt": "import os\n", "max_tokens": 400, "stream": False, "options": LONG_AR}),
    "log-probabilities": (ROUTE, {"prompt": "x = ", "max_tokens": 400, "logprobs": 20, "daguerre": LONG_AR}),
    "stop strings": (REQUESTS, {"prompt": "x", "options": {"stop": [f"s{number}" for number in range(100_000)]}}),
    "megabytes": (ROUTE, {"prompt": "import os\n" * 350_000, "max_tokens": 4}),
    "messages": (CHAT, {"messages": [{}] * 1_000_000}),
    "deep": (ROUTE, f'{{"prompt": "x", "daguerre": {{"schema": {{"enum": {nested(20_000)}}}}}}}'.encode()),
    "half a pair": (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "user": "\\ud800"}'),
    "many samples": (ROUTE, {"prompt": "x", "n": 128, "max_tokens": 64, "temperature": 1.0}),
    "first of all": (ROUTE, {"prompt": "x", "max_tokens": 400, "daguerre": LONG_AR | {"priority": -(10**9)}}),
    "nobody waits": (REQUESTS, {"prompt": "x", "max_tokens": 200, "detach": True, "options": {"mode": "ar"}}),
    "embeddings": ("/v1/embeddings", {"input": ["import os\n" * 50] * 64}),
    "echo": (ROUTE, {"prompt": "import os\n" * 200, "echo": True, "logprobs": 5, "max_tokens": 0}),
    "tools": (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": 5}),
}
"""Bodies of requests that are read to their end, by what they try."""


@dataclass
class HonestClient:
    """What an honest client got: tokens, seconds to the first of each answer, and what `soak.compare` checks."""

    headers: Headers
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    number: int = 0
    seen: ServerSeen = field(default_factory=ServerSeen)

    async def ask(self, url: str, until: float) -> None:
        """One request after the other until a time."""
        async with httpx2.AsyncClient(base_url=url, timeout=300, headers=self.headers) as client:
            while time.perf_counter() < until:
                body = body_of(self.number)
                self.number += 1
                asked = time.perf_counter()
                stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
                async with client.stream("POST", ROUTE, json=stream) as answer:
                    self.seen.statuses["honest"][answer.status_code] += 1
                    if answer.status_code != 200:
                        text = (await answer.aread()).decode()
                        self.seen.wrong.append(f"an honest client got {answer.status_code}: {text[:200]}")
                        continue
                    text = ""
                    async for event in events(answer):
                        if not text and event["choices"]:
                            self.first.append(time.perf_counter() - asked)
                        text += "".join(choice["text"] for choice in event["choices"])
                        if usage := event.get("usage"):
                            self.tokens += usage["completion_tokens"]
                self.seen.answers[json.dumps(body, sort_keys=True)].add(text)


async def events(answer: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream but its end."""
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


async def look(url: str, until: float, took: list[float]) -> None:
    """Ask now and then what an operator's probes ask; seconds of each answer."""
    async with httpx2.AsyncClient(base_url=url, timeout=300, headers=_headers(HONEST[0])) as client:
        while time.perf_counter() < until:
            for path in ("/health", "/v1/models"):
                asked = time.perf_counter()
                (await client.get(path)).raise_for_status()
                took.append(time.perf_counter() - asked)
            await asyncio.sleep(EVERY)


def watch(url: str, seconds: float, queue: Any) -> None:
    """Look, in a process of its own, so that nothing else delays the clock; what it took goes to the queue."""
    took = list[float]()
    asyncio.run(look(url, time.perf_counter() + seconds, took))
    queue.put(took)


async def rates(url: str, clients: list[HonestClient], seconds: float) -> list[float]:
    """Tokens a second of each of some clients that ask at once."""
    before, begun = [client.tokens for client in clients], time.perf_counter()
    await asyncio.gather(*(client.ask(url, begun + seconds) for client in clients))
    passed = time.perf_counter() - begun
    return [(client.tokens - tokens) / passed for client, tokens in zip(clients, before, strict=True)]


async def attack(url: str, until: float, seen: Statuses, at_once: int = AT_ONCE) -> None:
    """All kinds, by so many connections, in an order of each one's own, until a time."""
    kinds: dict[str, Callable[[httpx2.AsyncClient, random.Random], Awaitable[str]]] = {
        "stream that is left": _left,
        "body that never ends": _endless,
    }
    bodies = {
        name: (path, body if isinstance(body, bytes) else json.dumps(body).encode())
        for name, (path, body) in ATTACKS.items()
    }

    async def one(number: int) -> None:
        draw, key = random.Random(number), number % (len(HOSTILE) + 1)
        headers = _headers(HOSTILE[key]) if key < len(HOSTILE) else {}
        async with httpx2.AsyncClient(base_url=url, timeout=60, headers=headers | JSON) as client:
            while time.time() < until:
                name = draw.choice([*bodies, *kinds])
                try:
                    if name in kinds:
                        found = await kinds[name](client, draw)
                    else:
                        path, body = bodies[name]
                        found = str((await client.post(path, content=body)).status_code)
                except httpx2.HTTPError as error:
                    found = type(error).__name__
                seen[name][found] += 1

    await asyncio.gather(*(one(number) for number in range(at_once)))


async def _left(client: httpx2.AsyncClient, draw: random.Random) -> str:
    body = {"prompt": "import os\n", "max_tokens": 400, "stream": True, "daguerre": LONG_AR}
    async with client.stream("POST", ROUTE, json=body) as answer:
        async for _ in first_of(answer.aiter_lines(), draw.randrange(1, 5)):
            pass
        return str(answer.status_code)


async def first_of(items: Any, num: int) -> Any:
    """The first of some items."""
    async for item in items:
        yield item
        num -= 1
        if not num:
            return


async def _endless(client: httpx2.AsyncClient, draw: random.Random) -> str:
    async def pieces() -> Any:
        yield b'{"prompt": "'
        for _ in range(draw.randrange(1, 60)):
            await asyncio.sleep(0.5)
            yield b"x"

    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(draw.randrange(1, 20)):
            return str((await client.post(ROUTE, content=pieces())).status_code)
    return "left"


async def fill(url: str, headers: Headers) -> None:
    """Ask for so many unlike prompts that their prefixes fill what is kept: this grows to its limit and no further."""
    async with httpx2.AsyncClient(base_url=url, timeout=300, headers=headers) as client:
        for number in range(FILLED * CACHE // LONG):
            text = "".join(f"x{number}_{place} = {number * place}\n" for place in range(LONG // 10))
            (await client.post(ROUTE, json={"prompt": text, "max_tokens": 1})).raise_for_status()


def _headers(name: str) -> Headers:
    return {"Authorization": f"Bearer key-of-{name}"}


def attacker(url: str, seconds: float, queue: Any, at_once: int) -> None:
    """The attacks, in a process of their own; what they were answered goes to the queue."""
    seen: Statuses = defaultdict(Counter)
    asyncio.run(attack(url, time.time() + seconds, seen, at_once))
    queue.put(dict(seen))


def beside(
    url: str, clients: list[HonestClient], seconds: float, at_once: int = AT_ONCE
) -> tuple[list[float], Statuses, list[float]]:
    """The rates of clients while the attacks go on, what those were answered, and the seconds of probes."""
    context = multiprocessing.get_context("spawn")
    attacked, watched = context.Queue(), context.Queue()
    processes = [
        context.Process(target=attacker, args=(url, seconds + 2, attacked, at_once)),
        context.Process(target=watch, args=(url, seconds, watched)),
    ]
    for process in processes:
        process.start()
    found = asyncio.run(rates(url, clients, seconds)) if clients else []
    statuses: Statuses = attacked.get(timeout=seconds + 180)
    probes: list[float] = watched.get(timeout=seconds + 180)
    for process in processes:
        process.join()
    return found, statuses, probes


def run(minutes: float, at_once: int = AT_ONCE) -> dict[str, Any]:
    """All that a run shows."""
    clients = {name: HonestClient(_headers(name), number=10_000 * place) for place, name in enumerate(HONEST)}
    seconds = 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("".join(f"{hash_of(f'key-of-{name}')} {name}\n" for name in (*HONEST, *HOSTILE)))
        with serving("--keys", str(keys), "--cache-rows", str(CACHE)) as (url, process):
            beside(url, [], seconds / 5, at_once)
            asyncio.run(fill(url, _headers(HONEST[0])))
            asyncio.run(rests(url, _headers(HONEST[0])))
            before = memory(process=process.pid)
            alone = {name: asyncio.run(rates(url, [one], seconds / 40))[0] for name, one in clients.items()}
            together = asyncio.run(rates(url, list(clients.values()), seconds / 20))
            for client in clients.values():
                client.first.clear()
            found, statuses, probes = beside(url, list(clients.values()), seconds, at_once)
            left = asyncio.run(rests(url, _headers(HONEST[0])))
            after = memory(process=process.pid)
    share = 1 / (len(HONEST) + len(HOSTILE))
    rows: list[dict[str, Any]] = [
        {
            "client": name,
            "alone": alone[name],
            "together": with_others,
            "attacked": rate,
            "of_its_share": rate / alone[name] / share,
        }
        for name, with_others, rate in zip(HONEST, together, found, strict=True)
    ]
    low = [row for row in rows if row["of_its_share"] < KEPT]
    missed = [f"{row['client']} keeps {row['of_its_share']:.2f} of its share" for row in low]
    wrong = [one for client in clients.values() for one in client.seen.wrong]
    wrong += [
        f"{name}: {num} answers of {status}"
        for name, counts in statuses.items()
        for status, num in counts.items()
        if status[0] == "5" and status != "503"
    ]
    wrong += [f"{left:g} requests are still in the engine"] if left else []
    missed += [f"memory is {after / before:.3f} times that before"] if after > GROWTH * before else []
    firsts = [first for client in clients.values() for first in client.first]
    waits: dict[str, tuple[list[float], float]] = {"probes": (probes, PROBE), "first tokens": (firsts, FIRST)}
    late = {name: percentiles(took) for name, (took, _) in waits.items()}
    missed += [f"{name} take {late[name][1]:.2f} s" for name, (_, bar) in waits.items() if late[name][1] > bar]
    all_seen = seen_by(clients.values())
    compared = compare(all_seen, 100)
    return {
        "machine": machine_facts(),
        "minutes": minutes,
        "connections": at_once,
        "clients": rows,
        "attacks": {name: dict(sorted(counts.items())) for name, counts in sorted(statuses.items())},
        "distinct_requests": len(all_seen.answers),
        "compared_with_library": compared,
        "seconds_p50_p99": late,
        "memory_mib": [round(one / 2**20, 1) for one in (before, after)],
        "missed": missed,
        "wrong": (wrong + all_seen.wrong)[:50],
    }


def seen_by(clients: Iterable[HonestClient]) -> ServerSeen:
    """The answers of all of them, to compare."""
    together = ServerSeen()
    for client in clients:
        for body, texts in client.seen.answers.items():
            together.answers[body] |= texts
    return together


def percentiles(took: list[float]) -> tuple[float, float]:
    """The median, and what 99 of 100 are within."""
    ordered = sorted(took)
    return ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))]


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    before, after = report["memory_mib"]
    header = ("honest client", "tokens a second alone", "four together", "beside the attacks")
    clients = [[row["client"], *(f"{row[name]:.3g}" for name in FIGURES)] for row in report["clients"]]
    attacks = [[name, counted(counts)] for name, counts in report["attacks"].items()]
    waited = "".join(
        f"* Seconds of {name}, median and 99th percentile: {median:.3f}, {late:.3f}.\n"
        for name, (median, late) in report["seconds_p50_p99"].items()
    )
    return (
        f"# Attacks on the server for minutes, beside honest clients\n\n`make soak`: {report['minutes']:g} minutes, "
        f"{report.get('connections', AT_ONCE)} hostile connections.\n\n"
        f"{table([*header, 'of a sixth of that alone'], clients)}\n\n"
        f"{table(['attack', 'answers'], attacks, left=2)}\n\n"
        f"* {report['distinct_requests']:,} distinct honest requests, whose answers are compared with each other, and "
        f"those to {report['compared_with_library']} with the library's.\n"
        f"{waited}* Memory at rest: {before} MiB after a first round of attacks, {after} MiB in the end.\n"
        f"{listed('Bars that are missed', report['missed'])}\n{listed('What went wrong', report['wrong'])}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--connections", type=int, default=AT_ONCE, help="hostile ones")
    parser.add_argument("--out", type=Path, help="where results go, without an ending")
    given = parser.parse_args()
    report = run(given.minutes, given.connections)
    publish(given.out, report, markdown(report))
    sys.exit(bool(report["wrong"] or report["missed"]))


if __name__ == "__main__":
    main()
