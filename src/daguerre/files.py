"""Files that are whole or absent (written under a temporary name, synced, renamed), and the folder of the cache."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import IO, Any

CACHE = "DAGUERRE_CACHE"
"""The environment variable that names the cache's folder; "off" or an empty value keeps nothing."""


def cache_folder() -> Path | None:
    """The folder of files that can be made again: CACHE, else `daguerre` in the user's cache; None keeps none."""
    named = os.environ.get(CACHE)
    if named is not None:
        return None if named in ("", "off") else Path(named)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "daguerre"
    home = os.path.expanduser("~")
    return Path(home, ".cache", "daguerre") if os.path.isabs(home) else None


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under its name only when whole."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    for left in path.parent.glob(f"{escape(path.name)}.*.tmp"):  # by a process that was killed while it wrote
        left.unlink(missing_ok=True)
    try:
        with synced_write(beside) as file:
            yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any, indent: int = 1) -> None:
    """Write a value as a file of JSON that appears under its name only when whole."""
    text = json.dumps(value, indent=indent, ensure_ascii=False) + "\n"
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # a lone surrogate, of a path, as JSON escapes it


@contextmanager
def synced_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file whose bytes are on the disk when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk: until then a rename may be undone by a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
