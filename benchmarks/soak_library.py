"""Many small generations in one process, of every kind, and the memory that they leave behind.

    python benchmarks/soak_library.py --num 100000 --out benchmarks/results/library-soak

Modes, gaps, constraints, edits and scores of changing lengths and seeds; streams that are given up. Checked: a call to
which an earlier one is equal has the same answer; the memory that grows with every generation, by a line through what
was measured after a warm-up, is at most SLOPE bytes. Exits with status 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import daguerre
from daguerre.evals.machine import machine_facts, memory
from daguerre.evals.results import publish
from daguerre.evals.tables import table

PROMPTS = (
    "def fib(n):\n    if n",
    "import os\nimport sys\n\n\ndef main():\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "for i in range(10):\n    print(",
    "settings = ",
)
SUFFIX = "\n\n    return result\n"
TEXT = "width = 3\nheight = 4\n\ndef area(a, b):\n    return a * b\n"
REGEXES = ("[0-9]{3}-[a-z]{2,8}", "(yes|no|perhaps)", "[a-f0-9]{8}")
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    {"enum": ["red", "green", 7, None]},
)
SEEDS, LENGTHS, POINTS = 50, (4, 8, 16, 24), 200
WARM_UP = 5_000
"""The calls after which memory counts: by then what is kept up to a number, 1,024 rules and patterns, is full. Of a
shorter run the last quarter counts.
"""
SLOPE = 100.0
"""Bytes that memory may grow by with a call: 10 MB in 100,000. Whoever keeps anything of each keeps more."""
Call = Callable[[daguerre.Model, random.Random, dict[str, Any], int], str]


def plain(mode: str, **options: Any) -> Call:
    """A completion in a mode."""

    def call(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
        return model.generate(draw.choice(PROMPTS), num, mode=mode, **options, **drawn).text

    return call


def infill(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
    return model.infill(draw.choice(PROMPTS), SUFFIX, num, **drawn).text


def regex(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
    text = model.generate("x = ", 24, regex=(pattern := draw.choice(REGEXES)), **drawn).text
    assert re.fullmatch(pattern, text), (pattern, text)
    return text


def new_regex(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
    """A pattern that was hardly ever seen before: what keeps compiled ones must be bounded."""
    pattern = f"[a-z]{{1,6}}_{draw.randrange(10**9)}"
    text = model.generate("x = ", 32, regex=pattern, **drawn).text
    assert re.fullmatch(pattern, text), (pattern, text)
    return text


def schema(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
    text = model.generate("settings = ", schema=draw.choice(SCHEMAS), **drawn).text
    json.loads(text)
    return text


def edit(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
    return model.edit(TEXT, pattern=r"\d+", max_tokens=3, **drawn).text


def fill(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
    return model.fill("def {}(a, b):\n    return {}\n", max_tokens=[4, 8], mark="{}", **drawn).text


def cancelled(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
    """A stream that nobody reads to its end."""
    text = ""
    events = model.stream(draw.choice(PROMPTS), 48, mode=draw.choice(("ar", "block", "speculative")), **drawn)
    for _, event in zip(range(draw.randrange(1, 5)), events, strict=False):
        text = event.committed
    return text


def refused(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
    """What is an error keeps nothing either."""
    try:
        model.generate("x", num, regex="(", **drawn)
    except daguerre.DaguerreError as error:
        return str(error)
    raise AssertionError("a pattern that is none was accepted")


def score(model: daguerre.Model, draw: random.Random, drawn: dict[str, Any], num: int) -> str:
    return f"{model.nll(draw.choice(PROMPTS) + 'x' * num, kind='ar').value:.6f}"


KINDS: dict[str, Call] = {
    "ar": plain("ar"),
    "speculative": plain("speculative"),
    "block": plain("block", block_size=8, threshold=0.8),
    "infill": infill,
    "fill": fill,
    "edit": edit,
    "regex": regex,
    "new regex": new_regex,
    "schema": schema,
    "cancelled stream": cancelled,
    "refused": refused,
    "score": score,
}


@dataclass
class LibrarySeen:
    """What was observed.

    counts   calls by kind
    answers  a short hash of the answer to each of the calls that come again, by what they are
    memory   (calls done, bytes of the process)
    wrong    what should not have happened, in words
    """

    counts: Counter[str] = field(default_factory=Counter)
    answers: dict[tuple[str, int], str] = field(default_factory=dict)
    memory: list[tuple[int, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def run(model: daguerre.Model, num: int, seconds: float | None = None) -> tuple[LibrarySeen, float]:
    """So many calls, or as many as begin in that time; and the time that they took."""
    seen, begun, every = LibrarySeen(), time.monotonic(), max(1, num // POINTS)
    order = random.Random(0)
    for number in range(num):
        kind, seed = order.choice(list(KINDS)), order.randrange(SEEDS)
        call(model, kind, seed, seen)
        if (number + 1) % every == 0:
            gc.collect()
            seen.memory.append((number + 1, memory()))
        if seconds is not None and time.monotonic() - begun > seconds:
            break
    return seen, time.monotonic() - begun


def call(model: daguerre.Model, kind: str, seed: int, seen: LibrarySeen) -> None:
    """One call, which follows from its kind and seed, and a comparison with the same call before."""
    draw = random.Random(f"{kind} {seed}" if kind != "new regex" else f"{kind} {seen.counts[kind]}")
    drawn = {} if kind == "score" else {"seed": seed, "temperature": draw.choice((0.0, 0.8, 1.0))}
    seen.counts[kind] += 1
    try:
        text = KINDS[kind](model, draw, drawn, draw.choice(LENGTHS))
    except Exception as error:
        seen.wrong.append(f"{kind}, seed {seed}: {type(error).__name__}: {error}")
        return
    if kind == "new regex":
        return
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    if seen.answers.setdefault((kind, seed), digest) != digest:
        seen.wrong.append(f"{kind}, seed {seed}: another answer than before")


def warmed(memory: list[Any]) -> int:
    """The first measurement that counts."""
    limit = min(WARM_UP, 0.75 * memory[-1][0])
    return next(index for index, (done, _) in enumerate(memory) if done >= limit)


def slope(memory: list[tuple[int, int]]) -> float:
    """Bytes by which memory grows with a call after the warm-up: that of a line through all points (Theil and Sen: the
    median of all pairs, which a single jump hardly moves).
    """
    after = np.array(memory[warmed(memory) :], dtype=np.float64)
    first, second = np.triu_indices(len(after), 1)
    return float(np.median((after[second, 1] - after[first, 1]) / (after[second, 0] - after[first, 0])))


def report_of(seen: LibrarySeen, seconds: float, note: str) -> dict[str, Any]:
    """All that a run showed."""
    grown = slope(seen.memory)
    if grown > SLOPE:
        seen.wrong.append(f"memory grows by {grown:.0f} bytes with every call")
    return {
        "machine": machine_facts(),
        "note": note,
        "calls": sum(seen.counts.values()),
        "kinds": dict(sorted(seen.counts.items())),
        "distinct": len(seen.answers),
        "seconds": round(seconds, 1),
        "memory_mib": [(done, round(held / 2**20, 2)) for done, held in seen.memory],
        "bytes_a_call": round(grown, 1),
        "wrong": seen.wrong[:50],
        "num_wrong": len(seen.wrong),
    }


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    measured = report["memory_mib"]
    warm, last = measured[warmed(measured)], measured[-1]
    rows = [[kind, f"{num:,}"] for kind, num in report["kinds"].items()]
    return (
        f"# A long run of the library\n\n`python benchmarks/soak_library.py`: {report['calls']:,} calls in "
        f"{report['seconds']:,} s. {report['note']}\n\n{table(['kind', 'calls'], rows)}\n\n"
        f"* Memory: {warm[1]} MiB after {warm[0]:,} calls, {last[1]} MiB after {last[0]:,}: "
        f"{report['bytes_a_call']:.0f} bytes a call after the warm-up (at most {SLOPE:.0f}).\n"
        f"* {report['distinct']:,} distinct calls came again and again, with the same answer each time.\n"
        f"* What went wrong: {report['num_wrong']}." + "".join(f"\n  * {one}" for one in report["wrong"]) + "\n"
    )


def main() -> None:
    """Run, check, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, help="end after that time")
    parser.add_argument("--out", type=Path, help="where results go, without an ending")
    parser.add_argument("--note", default="", help="what else a reader of the results should know")
    given = parser.parse_args()
    seen, seconds = run(daguerre.load(), given.num, None if given.minutes is None else 60 * given.minutes)
    report = report_of(seen, seconds, given.note)
    publish(given.out, report, markdown(report))
    sys.exit(bool(report["wrong"]))


if __name__ == "__main__":
    main()
