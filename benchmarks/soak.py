"""Thousands of requests to a server of the default model, some cancelled, malformed or too long, some read slowly.

    python benchmarks/soak.py --num 10000 --out benchmarks/results/serving-soak

Checked: every answer to the same request and seed is the same; for a sample it is the library's; no answer has a
status of 500 or more; what is wrong gets the status that it should; after a warm-up the server's memory stays within
5%; at the end nothing runs, and SIGTERM ends the process with status 0. Exits with status 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from servers import serving

import daguerre
from daguerre.evals.machine import machine_facts, memory
from daguerre.evals.results import publish
from daguerre.evals.tables import table

ROUTE = "/v1/completions"
PROMPTS = (
    "def fib(n):\n    if n",
    "import os\nimport sys\n\n\ndef main():\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "for i in range(10):\n    print(",
    "try:\n    value = int(text)\nexcept ValueError:\n",
)
SUFFIX = "\n\n    return result\n"
KINDS: dict[str, dict[str, Any]] = {
    "ar": {"daguerre": {"mode": "ar"}},
    "block": {"daguerre": {"mode": "block", "block_size": 8, "threshold": 0.8}},
    "speculative": {"daguerre": {"mode": "speculative"}},
    "constrained": {"daguerre": {"mode": "block", "block_size": 8, "regex": "[0-9]{3}-[a-z]{2,8}"}},
    "infill": {"suffix": SUFFIX},
}
"""What requests have beside prompt, seed, temperature and length."""
MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b'{"prompt": ', 400),
    (b"\xff\xfe\x00", 400),
    (b'{"prompt": "x", "temperature": 9}', 400),
    (b'{"prompt": "x", "max_tokens": "many"}', 400),
    (b'{"prompt": "x", "model": "nobody"}', 404),
    (b'{"prompt": "x", "daguerre": {"mode": "sideways"}}', 400),
    (b'{"prompt": "x", "daguerre": {"regex": "("}}', 400),
    (b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}", 400),
)
"""Bodies, and the status that they get."""
TOO_LONG = "x = 1\n" * 2000
SHARES = {"cancelled": 0.05, "malformed": 0.05, "too long": 0.05, "slow": 0.02}
SEEDS, AT_ONCE, POINTS, GROWTH = 8, 16, 40, 1.05
PAUSE = 0.05
"""Seconds that a slow reader takes for each piece of an answer."""
JSON = {"Content-Type": "application/json"}


@dataclass
class ServerSeen:
    """What was observed.

    statuses  how many answers had which status, by the kind of request
    answers   the texts that each request got, which should be one
    wrong     what should not have happened, in words
    memory    (requests done, bytes of the server)
    """

    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    answers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    done: int = 0


class Load:
    """The requests of a run: which they are follows from their numbers."""

    def __init__(self, client: httpx2.AsyncClient, process: int, num: int) -> None:
        self.client, self.num, self.seen = client, num, ServerSeen()
        self._process, self._every = process, max(1, num // POINTS)

    async def run(self) -> None:
        """Send all, AT_ONCE at a time."""
        numbers = iter(range(self.num))
        await asyncio.gather(*(self._work(numbers) for _ in range(AT_ONCE)))

    async def _work(self, numbers: Any) -> None:
        for number in numbers:
            kind = kind_of(number)
            try:
                await getattr(self, f"_{kind.replace(' ', '_')}")(number)
            except httpx2.HTTPError as error:
                self.seen.wrong.append(f"request {number} ({kind}): {type(error).__name__}: {error}")
            self.seen.done += 1
            if self.seen.done % self._every == 0:
                self.seen.memory.append((self.seen.done, memory(process=self._process)))

    async def _plain(self, number: int) -> None:
        body = body_of(number)
        answer = await self.client.post(ROUTE, json=body)
        if self._is_expected("plain", answer, 200):
            self.seen.answers[json.dumps(body, sort_keys=True)].add(answer.json()["choices"][0]["text"])

    async def _slow(self, number: int) -> None:
        body, text = body_of(number), ""
        async with self.client.stream("POST", ROUTE, json={**body, "stream": True}) as answer:
            self.seen.statuses["slow"][answer.status_code] += 1
            async for line in answer.aiter_lines():
                await asyncio.sleep(PAUSE)
                if line.startswith("data: {"):
                    text += "".join(one["text"] for one in json.loads(line[6:])["choices"])
        self.seen.answers[json.dumps(body, sort_keys=True)].add(text)

    async def _cancelled(self, number: int) -> None:
        body = {**body_of(number), "max_tokens": 256, "stream": True}
        async with self.client.stream("POST", ROUTE, json=body) as answer:
            self.seen.statuses["cancelled"][answer.status_code] += 1
            async for _ in answer.aiter_lines():
                break

    async def _malformed(self, number: int) -> None:
        body, status = MALFORMED[number % len(MALFORMED)]
        self._is_expected("malformed", await self.client.post(ROUTE, content=body, headers=JSON), status)

    async def _too_long(self, number: int) -> None:
        answer = await self.client.post(ROUTE, json={**body_of(number), "prompt": TOO_LONG})
        if self._is_expected("too long", answer, 400) and "context" not in answer.json()["error"]["code"]:
            self.seen.wrong.append(f"too long: {answer.text[:200]}")

    def _is_expected(self, kind: str, answer: httpx2.Response, status: int) -> bool:
        self.seen.statuses[kind][answer.status_code] += 1
        if answer.status_code != status:
            self.seen.wrong.append(f"{kind}: {answer.status_code} instead of {status}: {answer.text[:200]}")
        return answer.status_code == status


def kind_of(number: int) -> str:
    """What a request is."""
    drawn = random.Random(number).random()
    for kind, share in SHARES.items():
        if drawn < share:
            return kind
        drawn -= share
    return "plain"


def body_of(number: int) -> dict[str, Any]:
    """The body of a request: one of a few hundred."""
    draw = random.Random(f"body {number}")
    head = {"prompt": draw.choice(PROMPTS), "seed": draw.randrange(SEEDS), "temperature": 0.8}
    return {**head, "max_tokens": draw.choice((8, 24, 48)), **KINDS[draw.choice(list(KINDS))]}


def of_library(model: daguerre.Model, body: dict[str, Any]) -> str:
    """The library's answer to a body."""
    options = {"seed": body["seed"], "temperature": body["temperature"], **body.get("daguerre", {})}
    if "suffix" in body:
        return model.infill(body["prompt"], body["suffix"], body["max_tokens"], **options).text
    return model.generate(body["prompt"], body["max_tokens"], **options).text


async def soak(url: str, process: int, num: int) -> tuple[ServerSeen, float]:
    """Run the load, and wait until the server rests."""
    async with httpx2.AsyncClient(base_url=url, timeout=300) as client:
        load, begun = Load(client, process, num), time.perf_counter()
        await load.run()
        seconds = time.perf_counter() - begun
    if left := await rests(url):
        load.seen.wrong.append(f"{left:g} requests are still in the engine after all clients left")
    return load.seen, seconds


async def rests(url: str, headers: dict[str, str] | None = None) -> float:
    """Wait until nothing runs or waits in a server's engine; how many do if that takes too long."""
    left = 0.0
    async with httpx2.AsyncClient(base_url=url, timeout=300, headers=headers) as client:
        for _ in range(300):
            metrics = (await client.get("/metrics")).text
            left = sum(float(value) for value in re.findall(r"^vllm:num_requests_\w+{.*} (\S+)$", metrics, re.M))
            if not left:
                break
            await asyncio.sleep(0.1)
    return left


def compare(seen: ServerSeen, sample: int) -> int:
    """Compare answers with each other, and a sample with the library's. How many were compared with the library."""
    model = daguerre.load()
    chosen = random.Random(0).sample(sorted(seen.answers), min(sample, len(seen.answers)))
    for body, texts in seen.answers.items():
        if len(texts) > 1:
            seen.wrong.append(f"{len(texts)} answers to one request: {body}")
    for body in chosen:
        expected = of_library(model, json.loads(body))
        if seen.answers[body] != {expected}:
            seen.wrong.append(f"{body}: the library says {expected!r}, the server {sorted(seen.answers[body])}")
    return len(chosen)


def growth(memory: list[tuple[int, int]]) -> float:
    """The most memory after a warm-up of a fifth of the requests, as a multiple of that at its end."""
    after = [held for _, held in memory[len(memory) // 5 :]]
    return max(after) / after[0]


def main() -> None:
    """Start the server, run, check, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=100, help="requests that are compared with the library")
    parser.add_argument("--out", type=Path, help="where results go, without an ending")
    parser.add_argument("--note", default="", help="what else a reader of the results should know")
    given = parser.parse_args()
    with serving() as (url, process):
        seen, seconds = asyncio.run(soak(url, process.pid, given.num))
    if process.returncode != 0:
        seen.wrong.append(f"the server ended with status {process.returncode}")
    report = report_of(seen, seconds, compare(seen, given.sample), given.note)
    publish(given.out, report, markdown(report))
    sys.exit(bool(report["wrong"]))


def report_of(seen: ServerSeen, seconds: float, compared: int, note: str) -> dict[str, Any]:
    """All that a run showed."""
    statuses = {kind: dict(counts) for kind, counts in sorted(seen.statuses.items())}
    grown = growth(seen.memory)
    if grown > GROWTH:
        seen.wrong.append(f"memory grew {grown:.3f} times after the warm-up")
    failed = sum(num for counts in statuses.values() for status, num in counts.items() if status >= 500)
    return {
        "machine": machine_facts(),
        "note": note,
        "requests": seen.done,
        "at_once": AT_ONCE,
        "seconds": round(seconds, 1),
        "statuses": statuses,
        "server_errors": failed,
        "distinct_requests": len(seen.answers),
        "compared_with_library": compared,
        "memory_mib": [(done, round(held / 2**20, 1)) for done, held in seen.memory],
        "memory_growth": round(grown, 4),
        "wrong": seen.wrong[:50],
        "num_wrong": len(seen.wrong),
    }


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    first, last = report["memory_mib"][len(report["memory_mib"]) // 5], report["memory_mib"][-1]
    rows = [[kind, counted(counts)] for kind, counts in report["statuses"].items()]
    return (
        f"# A long run of the server\n\n`make soak`: {report['requests']:,} requests, {report['at_once']} at a time, "
        f"in {report['seconds']:,} s. {report['note']}\n\n{table(['requests', 'statuses'], rows, left=2)}\n\n"
        f"* Statuses of 500 or more: {report['server_errors']}.\n"
        f"* {report['distinct_requests']:,} distinct requests, the answers to each compared with each other, "
        f"and those to {report['compared_with_library']} with the library's.\n"
        f"* Memory: {first[1]} MiB after {first[0]:,} requests, {last[1]} MiB after {last[0]:,}; "
        f"the most in between is {report['memory_growth']:.3f} times that after the warm-up (at most {GROWTH}).\n"
        f"{listed('What went wrong', report['wrong'], report['num_wrong'])}\n"
    )


def counted(counts: Mapping[Any, int]) -> str:
    """Answers by their status."""
    return ", ".join(f"{status}: {num:,}" for status, num in sorted(counts.items()))


def listed(what: str, faults: Sequence[str], num: int | None = None) -> str:
    """A point of a page: how many faults there are, and below it what they are."""
    return f"* {what}: {len(faults) if num is None else num}." + "".join(f"\n  * {one}" for one in faults)


if __name__ == "__main__":
    main()
