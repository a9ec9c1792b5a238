"""Packed experts in a file: a mixture that is larger than memory computes, since a token needs few of its experts.

The system holds in memory what it can of the file, and reads the rest again where it is needed. The bits are those of
experts in memory.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from daguerre.errors import InputError
from daguerre.files import cache_folder
from daguerre.models.core.config import ModelConfig

LOG = logging.getLogger("daguerre")
Place = Literal["memory", "disk"]
PLACES: tuple[Place, ...] = get_args(Place)
"""Where packed experts are."""
BITS = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4.5}
"""Bits of a packed weight, scales of 4-bit groups included (`panels.Numbers`)."""
FREE = 0.9
"""The share of free memory that a packed model may take before its experts go to the disk."""
CHUNK, SAMPLE = 1 << 28, 1 << 26
"""Bytes that are mapped at once, and that are read to learn how fast the disk is."""
ROOT = Path("/")
V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
V2 = "memory.max", "memory.current", "inactive_file"
"""The limit and the use of memory in control groups of both versions, and what of the use is given back first."""


class ExpertsFile:
    """A file without a name, in the cache's folder, that matrices are packed into. It is gone when nothing uses it.

    InputError where the folder's disk has no room for `size` bytes, or cannot be written.
    """

    def __init__(self, size: int) -> None:
        self.folder, self.num_bytes = cache_folder() or Path(tempfile.gettempdir()), 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free
            if free < size:
                raise InputError(
                    f"experts of {gigabytes(size)} do not fit on the disk of {self.folder}, which has "
                    f"{gigabytes(free)} free: name another folder in DAGUERRE_CACHE, or quantize them"
                )
            with tempfile.TemporaryFile(dir=self.folder) as file:
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from None
        weakref.finalize(self, os.close, self._file)
        self._chunk: mmap.mmap | None = None
        self._used = self._end = 0

    def take(self, num: int) -> np.ndarray:
        """Memory of the file for `num` words of 32 bits, from the beginning of a page."""
        size = -(-4 * num // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._chunk is None or self._used + size > len(self._chunk):
            self.settle()
            length = -(-max(size, CHUNK) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self._reserve(length)
            self._chunk, self._used = mmap.mmap(self._file, length, offset=self._end), 0
            self._end += length
        made = np.frombuffer(self._chunk, np.int32, num, self._used)
        self._used += size
        self.num_bytes += size
        return made

    def _reserve(self, length: int) -> None:
        """Make the file longer. Its room on the disk is taken now where the system can: a page that has none when it is
        written ends the process.
        """
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, self._end, length)
            else:
                os.ftruncate(self._file, self._end + length)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"experts cannot be written to {self.folder} ({error.strerror}): name another in DAGUERRE_CACHE"
        )

    def settle(self) -> None:
        """Write out what was packed last, and give its memory back."""
        if self._chunk is not None:
            self._chunk.flush()
            if hasattr(mmap, "MADV_DONTNEED"):
                self._chunk.madvise(mmap.MADV_DONTNEED)
            self._forget()

    def speed(self) -> float:
        """Bytes a second that are read from the disk, which no cache of the system holds."""
        self._forget()
        start, num = time.perf_counter(), 0
        while num < min(SAMPLE, self.num_bytes):
            num += len(os.pread(self._file, 1 << 20, num))
        return num / (time.perf_counter() - start)

    def _forget(self) -> None:
        """Leave the file's pages out of the system's cache, where it can be asked to."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)


def experts_file(config: ModelConfig, num_weights: int, bits: float, place: Place | None) -> ExpertsFile | None:
    """The file for a model's experts, of so many bits a weight when they are packed; None where they are in memory.
    `place` None: on the disk where all its weights, packed, take more than FREE of the memory that is free.
    """
    mixtures = [one for one in map(config.experts_of, range(config.num_layers)) if one is not None]
    if place == "memory" or not mixtures:
        return None
    free, bytes_each = free_memory(), bits / 8
    if place is None and (free is None or bytes_each * num_weights <= FREE * free):
        return None
    return ExpertsFile(int(bytes_each * sum(3 * one.num * one.width * config.width for one in mixtures)))


def say_where(file: ExpertsFile) -> None:
    """Where the experts are, and how fast they are read: one line."""
    LOG.warning(
        "%s of experts are on the disk of %s, and in memory as far as it is free; the others are read at %s a second. "
        'experts="memory" holds all there',
        *(gigabytes(file.num_bytes), file.folder, gigabytes(file.speed())),
    )


def free_memory(root: Path = ROOT) -> int | None:
    """Bytes that this process may still take, as Linux and its control groups say; None where nothing says it."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        groups = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError, StopIteration):
        return None
    for line in groups:
        _, kinds, path = line.split(":", 2)
        if not kinds or "memory" in kinds.split(","):
            top = root / ("sys/fs/cgroup/memory" if kinds else "sys/fs/cgroup")
            names = (Path(path) / "_").parents  # a group, and those that it is in
            free = min([free, *(_left(top / str(name).lstrip("/"), V1 if kinds else V2) for name in names)])
    return free


def _left(group: Path, names: tuple[str, str, str]) -> int:
    """Bytes that are left in a control group; pages of files that nothing used of late are given back."""
    try:
        most, used = (int((group / name).read_text(encoding="ascii")) for name in names[:2])
        facts = dict(one.split() for one in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(0, most - used + int(facts[names[2]]))
    except (OSError, ValueError, KeyError):  # no such group here, or no limit, which is "max"
        return sys.maxsize


def gigabytes(num: float) -> str:
    """Bytes to read."""
    return f"{num / 1e9:.1f} GB"
