"""`daguerre bench`: the parts that are measured, and the report they make together.

A report has what every part found under its name, with the machine it ran on. Written to a file it is added to: parts
measured again take the place of what was there, the others stay, so a measurement that was cut goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from daguerre.errors import InputError, unknown
from daguerre.evals.bench.context import CONTEXTS, KV_HEADS
from daguerre.evals.bench.endpoint import Target, measure_endpoint
from daguerre.evals.bench.job import YARDSTICK, Job, Shape
from daguerre.evals.bench.rounds import run_rounds
from daguerre.evals.bench.sides import BLOCKS, FOR_A_MODEL, SIDES
from daguerre.evals.bench.worker import Tell, in_worker
from daguerre.evals.machine import machine_facts
from daguerre.evals.report import write_json
from daguerre.models.threads import num_cpus

LEAST_ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is measured.

    rounds             of every side, each number a median of them
    threads            numbers of CPU threads, one after the other; 1 and 2 by default, where there are two
    model              for the parts that need trained weights
    shape              for those with random weights
    lines, grid_lines  of part "modes": see `tasks.Limits`
    contexts, kv_heads of part "context"
    """

    rounds: int = LEAST_ROUNDS
    threads: tuple[int, ...] = field(default_factory=lambda: (1, 2)[: num_cpus()])
    model: str = "default"
    shape: Shape = YARDSTICK
    lines: int = 100
    grid_lines: int = 30
    contexts: tuple[int, ...] = CONTEXTS
    kv_heads: tuple[int, ...] = KV_HEADS

    def __post_init__(self) -> None:
        available = num_cpus()
        if self.rounds < 1:
            raise InputError(f"rounds must be 1 or more, not {self.rounds}")
        for threads in self.threads:
            if not 1 <= threads <= available:
                raise InputError(f"threads must be from 1 to the {available} CPUs of this process, not {threads}")


Part = Callable[[Options, int, Tell], Any]


def _peers(options: Options, threads: int, tell: Tell) -> Any:
    """All sides at one shape, random weights."""
    new = options.shape.new_tokens
    odd = {f"block {size}{kind}" for size in BLOCKS if new % size for kind in ("", " int8", " lean", " compiled")}
    job = Job(side="ar", threads=threads, shape=options.shape)
    return run_rounds(job, [name for name in SIDES if name not in odd], options.rounds, tell)


def _modes(options: Options, threads: int, tell: Tell) -> Any:
    """Our modes and llama.cpp on a trained model's own weights: speed, and accuracy beside it."""
    job = Job(side="ar", threads=threads, shape=options.shape, model=options.model)
    speed = run_rounds(job, FOR_A_MODEL, options.rounds, tell)
    asked = {"model": options.model, "lines": options.lines, "grid_lines": options.grid_lines}
    return {**speed, "completion": in_worker({"task": "modes", "options": asked}, threads, tell)}


def _in_worker(name: str, *fields: str) -> Part:
    def part(options: Options, threads: int, tell: Tell) -> Any:
        values = asdict(options)
        return in_worker({"task": name, "options": {field: values[field] for field in fields}}, threads, tell)

    return part


PARTS: dict[str, Part] = {
    "rows": _in_worker("rows", "shape", "rounds"),
    "infill": _in_worker("infill", "shape", "model", "rounds"),
    "context": _in_worker("context", "shape", "rounds", "contexts", "kv_heads"),
    "peers": _peers,
    "modes": _modes,
}


def bench(
    what: Sequence[str] | None = None,
    options: Options = Options(),
    *,
    out: Path | None = None,
    progress: Tell | None = None,
) -> dict[str, Any]:
    """Measure the parts named, all by default. `out` is read first, and written after every part.

    InputError for a name that is no part, before anything is measured.
    """
    names = list(PARTS) if what is None else list(what)
    for name in names:
        if name not in PARTS:
            raise unknown("part", name, [*PARTS, "endpoint"])
    tell = progress or (lambda what, done, total: None)
    report = read(out)
    for name in names:
        report[name] = measured(name, options, tell)
        save(report, out)
    return report


def measured(name: str, options: Options, tell: Tell) -> dict[str, Any]:
    """One part, with what it was measured on and how busy that was before it began."""
    busy, started = busy_share(), time.perf_counter()
    found = {
        str(threads): PARTS[name](options, threads, lambda what, done, total: tell(f"{name}: {what}", done, total))
        for threads in options.threads
    }
    facts = {"machine": _machine(), "busy": busy, "settings": asdict(options)}
    return {**facts, "seconds": round(time.perf_counter() - started, 1), "threads": found}


def endpoint(
    target: Target,
    levels: Sequence[int],
    requests: int,
    *,
    out: Path | None = None,
    progress: Tell | None = None,
) -> dict[str, Any]:
    """The report with the part "endpoint": a server measured from this machine."""
    report = read(out)
    busy, started = busy_share(), time.perf_counter()
    found = measure_endpoint(target, levels, requests, progress)
    settings = {"levels": list(levels), "requests": requests}
    seconds = round(time.perf_counter() - started, 1)
    report["endpoint"] = {"machine": _machine(), "busy": busy, "settings": settings, "seconds": seconds, **found}
    save(report, out)
    return report


def busy_share(seconds: float = 0.5) -> float | None:
    """Share of all CPUs' time that is used while this process waits; None where the system does not tell."""
    before = _cpu_times()
    time.sleep(seconds)
    after = _cpu_times()
    if before is None or after is None or after[0] == before[0]:
        return None
    return 1 - (after[1] - before[1]) / (after[0] - before[0])


def _cpu_times() -> tuple[int, int] | None:
    """Ticks of all CPUs so far, and those of them that were idle, waiting for a disk included."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").split("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(ticks), ticks[3] + ticks[4]


def _machine() -> dict[str, Any]:
    """The facts, but for the threads of this process, which computes nothing."""
    facts = machine_facts()
    facts.pop("threads")
    return facts


def read(out: Path | None) -> dict[str, Any]:
    """The report at `out` so far; InputError for a file that is none."""
    if out is None or not out.exists():
        return {}
    try:
        report = json.loads(out.read_text(encoding="utf-8"))
    except ValueError:
        report = None
    if not isinstance(report, dict) or report.keys() - {*PARTS, "endpoint"}:
        raise InputError(f"{out} is not a report of `daguerre bench`: give another name")
    return report


def save(report: dict[str, Any], out: Path | None) -> None:
    """Write the report, whole."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(report, out)
