"""Packed weights that are kept in the cache's folder: what was packed once is mapped the next time, and processes share
it.

An entry belongs to the bytes of a model's files, its config, the type of its packed numbers, the instruction set, and
the sources that read and pack. The hash of a file is remembered under its device, inode, size and times, so that it is
read for that once. An entry appears when it is whole; what is damaged, or another user's, is made again. The entries
that were used last stay, as many as MOST bytes hold. DAGUERRE_CACHE=off keeps nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.files import atomic_write, cache_folder
from daguerre.models.backends.panels import Numbers, PackedMatrix, Packing
from daguerre.models.bits import LINE
from daguerre.models.model_weights import ModelWeights
from daguerre.models.processor import instruction_set

LOG = logging.getLogger("daguerre")
MAGIC, SIZES = b"daguerre packed\n", struct.Struct("<QQ")
"""What an entry begins with, and then the bytes of its index and of all of it."""
LEAST = 1 << 24
"""Bytes of packed weights that are made in less time than it takes to keep them."""
MOST, FREE = 32 << 30, 4 << 30
"""Bytes of all entries together, and bytes that they leave free on the disk."""
FOLDER, HASHES = "packed", "hashes"
SOURCES = Path(__file__).parents[1]
"""The package whose modules and native sources decide what is read of a model's files, and how it is packed."""


class KeptPacking(Packing):
    """A packing whose results are there already, in the order in which they are asked for."""

    def __init__(self, numbers: Numbers, made: Iterable[np.ndarray | PackedMatrix]) -> None:
        super().__init__(numbers)
        self._left = iter(made)

    def kept(self, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The next array."""
        self.made.append(one := next(self._left))
        assert isinstance(one, np.ndarray)
        return one

    def _matrix(self, make: Callable[[], PackedMatrix]) -> PackedMatrix:
        self.made.append(one := next(self._left))
        assert isinstance(one, PackedMatrix)
        return one


@dataclass(frozen=True)
class Entry:
    """A kept model: its file, its bytes, and when it was used last."""

    path: Path
    num_bytes: int
    used: float


def folder() -> Path | None:
    """Where entries are, a folder of this user alone; None where nothing is kept."""
    home = cache_folder()
    if home is None or not hasattr(os, "getuid"):
        return None
    made = home / FOLDER
    try:
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = made.stat()
        return made if about.st_uid == os.getuid() and not about.st_mode & 0o022 else None
    except OSError:
        return None


def entries() -> list[Entry]:
    """What is kept, the entry that was used last first."""
    found, place = list[Entry](), folder()
    for path in [] if place is None else place.glob("*.packed"):
        with suppress(OSError):
            about = path.stat()
            found.append(Entry(path, about.st_size, about.st_mtime))
    return sorted(found, key=lambda entry: -entry.used)


def clear() -> int:
    """Delete all entries; the bytes that they had."""
    kept, place = entries(), folder()
    for entry in kept:
        entry.path.unlink(missing_ok=True)
    if place is not None:
        shutil.rmtree(place / HASHES, ignore_errors=True)
    return sum(entry.num_bytes for entry in kept)


def kept_packing(weights: ModelWeights, numbers: Numbers) -> KeptPacking | None:
    """The packing of a model in a type of numbers that is kept; None where there is none."""
    path = _path(weights, numbers, hashed=False)
    if path is None:
        return None
    try:
        made = _opened(path)
        os.utime(path)
    except (OSError, ValueError, KeyError, TypeError, struct.error):  # missing, damaged, of a full disk
        return None
    return KeptPacking(numbers, made)


def keep(weights: ModelWeights, numbers: Numbers, packing: Packing) -> threading.Thread | None:
    """Keep what was packed of a model's files, beside other work; a process ends after that. None where it is not
    kept.
    """
    if not weights.paths or packing.experts is not None or folder() is None:
        return None
    if packing.num_bytes < LEAST:
        return None
    made = list(packing.made)
    thread = threading.Thread(target=_keep, args=(weights, numbers, made), name="keep packed weights")
    thread.start()
    return thread


def _keep(weights: ModelWeights, numbers: Numbers, made: Sequence[np.ndarray | PackedMatrix]) -> None:
    try:
        path = _path(weights, numbers, hashed=True)
        if path is None or path.exists():
            return
        index, size = _index(made)
        if not _make_room(path.parent, size):
            return
        LOG.info("keeping the packed weights for the next start: %s", path)
        with atomic_write(path) as file:
            head = json.dumps(index).encode()
            file.write(MAGIC + SIZES.pack(len(head), size) + head)
            for array in _arrays(made):
                file.write(bytes(-file.tell() % LINE))
                file.write(array.data.cast("B") if array.size else b"")
    except OSError as error:
        LOG.info("packed weights are not kept (%s)", error)


def _path(weights: ModelWeights, numbers: Numbers, *, hashed: bool) -> Path | None:
    """Where the entry of a model is; None where it is not kept. hashed: files whose hash is not known are read."""
    place = folder()
    if place is None or not weights.paths:
        return None
    hashes = [_hash(path, place / HASHES, hashed) for path in weights.paths]
    if None in hashes:
        return None
    types = [weights.numbers, numbers, weights.rounding]
    facts = [hashes, weights.config.to_dict(), *types, instruction_set(), _version()]
    return place / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()}.packed"


def _version() -> str:
    """A hash of the sources' names, sizes and times: reading them would take longer than anything else here."""
    paths = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".py", ".h", ".cpp"))
    facts = [(str(path), about.st_size, about.st_mtime_ns) for path in paths for about in [path.stat()]]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _hash(path: Path, known: Path, hashed: bool) -> str | None:
    """The hash of a file, as it is remembered, or else, if it may be, read."""
    try:
        about = path.stat()
        facts = about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
        note = known / hashlib.sha256(repr(facts).encode()).hexdigest()
        with suppress(OSError):
            return note.read_text(encoding="ascii")
        if not hashed:
            return None
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if path.stat().st_ctime_ns == about.st_ctime_ns:
            known.mkdir(mode=0o700, exist_ok=True)
            with atomic_write(note) as out:
                out.write(found.encode())
        return found
    except OSError:
        return None


def _arrays(made: Iterable[np.ndarray | PackedMatrix]) -> Iterator[np.ndarray]:
    every = chain.from_iterable([one] if isinstance(one, np.ndarray) else one.arrays for one in made)
    return (array for array in every if array is not None)


def _index(made: Sequence[np.ndarray | PackedMatrix]) -> tuple[list[Any], int]:
    """What an entry has, and its bytes: an array as its type and shape; of a matrix its words, panels and kind, and
    those of its parts.
    """
    index = [
        _about(one) if isinstance(one, np.ndarray) else [one.words, one.panels, one.kind, *map(_about, one.arrays)]
        for one in made
    ]
    size = len(MAGIC) + SIZES.size + len(json.dumps(index).encode())
    for array in _arrays(made):
        size += -size % LINE + array.nbytes
    return index, size


def _about(array: np.ndarray | None) -> dict[str, Any] | None:
    return None if array is None else {"type": array.dtype.str, "shape": list(array.shape)}


def _opened(path: Path) -> list[np.ndarray | PackedMatrix]:
    """What an entry has. ValueError for one that is damaged."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise ValueError("another user's")
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = len(MAGIC) + SIZES.size
    if held[: len(MAGIC)] != MAGIC:
        raise ValueError("no entry")
    num, size = SIZES.unpack(held[len(MAGIC) : start])
    if size != len(held):
        raise ValueError("not whole")
    index, at = json.loads(held[start : start + num]), start + num

    def array(about: dict[str, Any] | None) -> np.ndarray | None:
        nonlocal at
        if about is None:
            return None
        at += -at % LINE
        found = np.ndarray(about["shape"], about["type"], held, at)
        at += found.nbytes
        return found

    made = list[np.ndarray | PackedMatrix]()
    for one in index:
        if isinstance(one, list):
            weight, *more = map(array, one[3:])
            made.append(PackedMatrix(weight, *more, *one[:3]))  # type: ignore[arg-type]
        else:
            made.append(array(one))  # type: ignore[arg-type]
    return made


def _make_room(place: Path, size: int) -> bool:
    """Delete the entries that were used the longest ago until one of `size` bytes fits; whether it does."""
    kept = entries()
    free = shutil.disk_usage(place).free - FREE
    while kept and (size + sum(entry.num_bytes for entry in kept) > MOST or size > free):
        last = kept.pop()
        last.path.unlink(missing_ok=True)
        free += last.num_bytes
    return size <= min(MOST, free)
