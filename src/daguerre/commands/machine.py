"""What this machine has, and how fast it reads memory and multiplies, measured in a fraction of a second: estimates of
what a model takes and how fast it writes, before it is downloaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daguerre.models.backends.disk import free_memory
from daguerre.models.contention import num_cpus
from daguerre.models.pulling.catalogue import CatalogueEntry

PART = 1 << 25
"""Bytes that a thread reads, more than it finds in its caches."""
MOST_THREADS = 16
SIDE = 768
"""Rows and columns of the matrices that are multiplied."""
TIMES = 3
"""How often each is measured; the best counts, since others may compute beside it."""


@dataclass(frozen=True)
class MachineSpeed:
    """Bytes of memory that are read, and operations on float32 that are computed, each second."""

    reading: float
    operations: float

    def forwards(self, entry: CatalogueEntry) -> float:
        """About how many forwards of a model there are a second: what is read, or what is computed, takes longest."""
        active = entry.active or entry.parameters
        return 1 / max(entry.read / self.reading, 2 * active * entry.rows / self.operations)


def measure_speed() -> MachineSpeed:
    """How fast this machine is, with as many threads as there are processors."""
    from concurrent.futures import ThreadPoolExecutor

    num = min(num_cpus(), MOST_THREADS)
    parts = [np.ones(PART // 4, np.float32) for _ in range(num)]
    with ThreadPoolExecutor(num) as threads:
        reading = num * PART / _least(lambda: list(threads.map(np.max, parts)))
    block = np.ones((SIDE, SIDE), np.float32)
    return MachineSpeed(reading, 2 * SIDE**3 / _least(lambda: block @ block))


def _least(work: Callable[[], object]) -> float:
    """The least seconds that work takes."""
    best = float("inf")
    for _ in range(TIMES):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


def all_memory() -> int | None:
    """Bytes of memory of the machine; None where Linux does not say it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemTotal:"))
    except (OSError, ValueError, StopIteration):
        return None


def processor_name() -> str | None:
    """The processor's name, as Linux has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    except (OSError, StopIteration):
        return None


def fits(entry: CatalogueEntry, free: int | None = None) -> bool | None:
    """Whether a model fits in the memory that is free; None where nobody says how much that is."""
    free = free_memory() if free is None else free
    return None if free is None else entry.memory <= free


def in_words(num: float) -> str:
    """A number of bytes in three digits: 98 MB."""
    for unit in ("B", "kB", "MB"):
        if num < 1000:
            return f"{num:.3g} {unit}"
        num /= 1000
    return f"{num:.3g} GB"
