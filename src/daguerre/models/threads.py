"""How many threads PyTorch and the native backend use on the CPU: a setting of the whole process, changed only on
request; and giving them back.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daguerre.errors import InputError
from daguerre.kinds import Kind, Whole
from daguerre.models.contention import num_cpus as num_cpus
from daguerre.models.contention import set_num_threads
from daguerre.models.forward import Backend, Forward, Hidden, Layout

TRIAL_ROWS = 8
TRIALS = 5
GAIN = 0.95
"""More threads are used only if they need less than this share of the time of fewer."""


MOST_THREADS = 1024
"""More than any CPU that this was made for has; a number far beyond it is one that no system starts."""


@dataclass(frozen=True, kw_only=True)
class Threads(Kind):
    """A number of threads, or "auto"."""

    words: ClassVar[str] = f'a number from 1 to {MOST_THREADS:,}, or "auto",'

    def read(self, name: str, value: Any) -> Any:
        return (
            value if isinstance(value, str) and value == "auto" else Whole(low=1, high=MOST_THREADS).read(name, value)
        )


def check_threads(threads: int | str | None, device: str) -> None:
    """InputError for a number of threads where the device is not a CPU."""
    if threads is not None and device.partition(":")[0] != "cpu":
        raise InputError(f"threads are those of the CPU and the device is {device!r}: leave out threads")


def use_threads(threads: int | str, backend: Backend) -> int:
    """Set PyTorch's number of threads, and return it. "auto" times forwards of a few rows with 1, 2, 4, ... of them."""
    if isinstance(threads, int):
        set_num_threads(threads)
        return threads
    best = fastest(candidates(num_cpus()), lambda num: _seconds(num, backend))
    set_num_threads(best)
    return best


def release_threads() -> None:
    """End the workers that OpenMP keeps for the calling thread; its next parallel loop starts new ones.

    Each thread that computes has workers of its own. They wait for the next loop by spinning as long as the process has
    no more of them than CPUs; beyond, they go to sleep between any two products, and a forward of a few rows takes
    twice as long. So a thread that has loaded a model, and leaves it to another one, gives its workers back.
    """
    soft = 1
    with suppress(OSError, TypeError, AttributeError):  # another system, or an OpenMP older than 5.0
        ctypes.CDLL(None).omp_pause_resource_all(soft)


def candidates(num_cpus: int) -> list[int]:
    """Powers of two up to the number of CPUs, and that number."""
    powers = [2**i for i in range(num_cpus.bit_length()) if 2**i < num_cpus]
    return [*powers, num_cpus]


def fastest(nums: list[int], seconds: Callable[[int], float]) -> int:
    """The first of ascending numbers whose successor is not faster by GAIN; `seconds(num)` measures a number."""
    best, least = nums[0], seconds(nums[0])
    for num in nums[1:]:
        took = seconds(num)
        if took > GAIN * least:
            break
        best, least = num, took
    return best


def _seconds(num_threads: int, backend: Backend) -> float:
    """The minimum time of a few forwards of TRIAL_ROWS rows, in seconds."""
    set_num_threads(num_threads)
    rows = np.arange(TRIAL_ROWS)
    layout = Layout(rows, np.full(TRIAL_ROWS, TRIAL_ROWS, dtype=np.int32), 0)
    level = 0.0 if backend.config.time_input else None
    forward = Forward(np.zeros_like(rows), layout, None, rows.astype(np.int32), Hidden(), level)
    took = []
    for _ in range(TRIALS + 1):  # the first one warms up
        start = time.perf_counter()
        backend.forward([forward])
        took.append(time.perf_counter() - start)
    return min(took[1:])
