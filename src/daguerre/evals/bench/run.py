"""`daguerre bench`: the parts that are measured, and the report they make together.

A report has what every part found under its name, with the machine it ran on. A report in a file is added to: a part
that is measured again replaces what was there and the others stay, so an interrupted measurement can be completed.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from daguerre.errors import InputError, unknown
from daguerre.evals.bench import real
from daguerre.evals.bench.context import CONTEXTS, KV_HEADS
from daguerre.evals.bench.endpoint import Target, measure_endpoint
from daguerre.evals.bench.families import DEFAULT_WEIGHTS
from daguerre.evals.bench.family_files import PUBLISHED, SHAPES, WEIGHTS, Room
from daguerre.evals.bench.job import YARDSTICK, BenchJob, BenchShape
from daguerre.evals.bench.rounds import run_rounds
from daguerre.evals.bench.sides import sides_for
from daguerre.evals.bench.worker import in_worker
from daguerre.evals.machine import machine_facts
from daguerre.evals.report import write_json
from daguerre.evals.workers import Progress, no_progress
from daguerre.models import processor
from daguerre.models.backends.disk import gigabytes
from daguerre.models.threads import num_cpus

ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What is measured.

    rounds             of every side, each number a median of them
    threads            numbers of CPU threads, one after the other; 1 and 2 by default, where there are two
    model              for the parts that need trained weights; of part "real" a GGUF file
    shape              for those with random weights
    lines, grid_lines  of part "modes": see `tasks.Limits`
    contexts, kv_heads of part "context"
    shapes, weights    of part "families": names of `family_files.SHAPES` and `family_files.WEIGHTS`
    folder             where that part keeps its files; one in the folder of temporary files by default
    llama_cpp          of part "real": a folder in which npm has installed node-llama-cpp; by default what PATH has
    """

    rounds: int = ROUNDS
    threads: tuple[int, ...] = field(default_factory=lambda: (1, 2)[: num_cpus()])
    model: str = "default"
    shape: BenchShape = YARDSTICK
    lines: int = 100
    grid_lines: int = 30
    contexts: tuple[int, ...] = CONTEXTS
    kv_heads: tuple[int, ...] = KV_HEADS
    shapes: tuple[str, ...] = PUBLISHED
    weights: tuple[str, ...] = DEFAULT_WEIGHTS
    folder: str = field(default_factory=lambda: str(Path(tempfile.gettempdir()) / "daguerre-families"))
    llama_cpp: str | None = None

    def __post_init__(self) -> None:
        available = num_cpus()
        if self.rounds < 1:
            raise InputError(f"rounds must be 1 or more, not {self.rounds}")
        for what, names, known in (("shape", self.shapes, SHAPES), ("type of weights", self.weights, WEIGHTS)):
            for name in names:
                if name not in known:
                    raise unknown(what, name, known)
        for threads in self.threads:
            if not 1 <= threads <= available:
                raise InputError(f"threads must be from 1 to the {available} CPUs of this process, not {threads}")


Part = Callable[[BenchOptions, int, Progress], Any]


def _peers(options: BenchOptions, threads: int, progress: Progress) -> Any:
    """All sides at one shape, random weights."""
    job = BenchJob(side="ar", threads=threads, shape=options.shape)
    return run_rounds(job, sides_for(job), options.rounds, progress)


def _modes(options: BenchOptions, threads: int, progress: Progress) -> Any:
    """Daguerre's modes and llama.cpp on a trained model's weights: speed, and accuracy beside it."""
    job = BenchJob(side="ar", threads=threads, shape=options.shape, model=options.model)
    speed = run_rounds(job, sides_for(job), options.rounds, progress)
    return {**speed, "completion": _completion(options, threads, progress)}


def _real(options: BenchOptions, threads: int, progress: Progress) -> Any:
    """A GGUF file beside llama.cpp: bits per byte once, all else with every number of threads."""
    quality = threads == options.threads[0]
    return real.measure(options.model, options.llama_cpp, options.rounds, threads, quality, progress)


def _in_worker(name: str, *fields: str) -> Part:
    def part(options: BenchOptions, threads: int, progress: Progress) -> Any:
        values = asdict(options)
        return in_worker({"task": name, "options": {field: values[field] for field in fields}}, threads, progress)

    return part


_completion = _in_worker("modes", "model", "lines", "grid_lines")

PARTS: dict[str, Part] = {
    "rows": _in_worker("rows", "shape", "model", "rounds"),
    "batch": _in_worker("batch", "shape", "model", "rounds"),
    "infill": _in_worker("infill", "shape", "model", "rounds"),
    "context": _in_worker("context", "shape", "rounds", "contexts", "kv_heads"),
    "peers": _peers,
    "modes": _modes,
    "families": _in_worker("families", "shapes", "weights", "folder", "rounds"),
    "real": _real,
}
BY_NAME = ("families", "real")
"""Parts that take gigabytes or a file, and are measured only where they are named."""


def needs(options: BenchOptions) -> str:
    """What part "families" takes, in a sentence. InputError where it does not fit."""
    folder = Path(options.folder)
    room = Room.of(options.shapes, options.weights, folder)
    room.check(folder)
    files = f"{gigabytes(room.disk)} of files are written to {folder} and kept there"
    files += f", and {gigabytes(room.spare)} for a while" if room.spare else ""
    return f"{files if room.disk else f'the files of {folder} are used'}; {gigabytes(room.memory)} of memory are needed"


def bench(
    what: Sequence[str] | None = None,
    options: BenchOptions = BenchOptions(),
    *,
    out: Path | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure the parts named, by default all but those of BY_NAME. `out` is read first, and written after every part.

    InputError for a name that is no part, before anything is measured.
    """
    names = [name for name in PARTS if name not in BY_NAME] if what is None else list(what)
    for name in names:
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    if "families" in names:
        needs(options)
    if "real" in names:
        real.gguf_file(options.model, options.llama_cpp)
    report = read(out)
    for name in names:
        report[name] = measured(name, options, progress)
        save(report, out)
    return report


def measured(name: str, options: BenchOptions, progress: Progress) -> dict[str, Any]:
    """One part, with the machine it was measured on, and how busy that was before."""
    busy, started = busy_share(), time.perf_counter()
    found = {
        str(threads): PARTS[name](options, threads, lambda what, done, total: progress(f"{name}: {what}", done, total))
        for threads in options.threads
    }
    settings = asdict(options)
    for place in ("folder", "llama_cpp"):  # of this machine
        settings.pop(place)
    settings["model"] = Path(options.model).name if Path(options.model).is_file() else options.model
    facts = {"machine": _machine(), "busy": busy, "settings": settings}
    return {**facts, "seconds": round(time.perf_counter() - started, 1), "threads": found}


def endpoint(
    target: Target,
    levels: Sequence[int],
    requests: int,
    *,
    out: Path | None = None,
    progress: Progress = no_progress,
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
    """Share of all CPUs' time that is used while this process waits; None where the system does not say."""
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
    """The facts, but for the threads of this process, which computes nothing.

    best_instruction_set   the processor's; another is in use where DAGUERRE_ISA names it
    dtype                  the type that the processor multiplies natively, with the instruction set in use
    """
    facts = machine_facts()
    facts.pop("threads")
    facts["best_instruction_set"] = next(reversed(processor.available()), facts["instruction_set"])
    return facts | {"dtype": str(processor.native_dtype()).removeprefix("torch.")}


def read(out: Path | None) -> dict[str, Any]:
    """The report at `out` so far. InputError for a file that is not one, or is of an earlier version."""
    if out is None or not out.exists():
        return {}
    try:
        report = json.loads(out.read_text(encoding="utf-8"))
    except ValueError:
        report = None
    if not isinstance(report, dict) or report.keys() - {*PARTS, "endpoint"}:
        raise InputError(f"{out} is not a report of `daguerre bench`: give another name")
    if any("instruction_set" not in part["machine"] for part in report.values()):
        raise InputError(
            f"{out} is a report of an earlier version of `daguerre bench`: delete it, or give another name"
        )
    return report


def save(report: dict[str, Any], out: Path | None) -> None:
    """Write the report, whole."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(report, out)
