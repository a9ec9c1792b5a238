"""Pulled files: a folder for each, in the cache's folder, of this user alone, which appears when it is whole.

A folder holds a GGUF file, or all its parts, and `about.json`, which says what they are. While it is brought it is in
IN_WORK under the same name, so that what was interrupted goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from daguerre.errors import CheckpointError, InputError
from daguerre.files import CACHE, cache_folder, sync_folder, write_json
from daguerre.models.json_files import read_json

FOLDER, IN_WORK, ABOUT = "models", ".in-work", "about.json"


@dataclass(frozen=True, kw_only=True)
class PulledModel:
    """Files that were pulled.

    names   by which they were asked for
    source  where they are from: hf:OWNER/REPO@COMMIT, or a package of the Python index
    files   their names, the parts of one in order; sha256: of each
    """

    folder: Path
    names: tuple[str, ...]
    source: str
    files: tuple[str, ...]
    sha256: tuple[str, ...]
    licence: str | None = None

    @property
    def path(self) -> Path:
        """The file, or the first part of it."""
        return self.folder / self.files[0]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum((self.folder / name).stat().st_size for name in self.files)


def folder() -> Path:
    """Where pulled files are, a folder of this user alone. InputError where there can be none."""
    home = cache_folder()
    if home is None:
        raise InputError(f"pulled models have no place: {CACHE} is off; unset it, or set it to a folder")
    made = home / FOLDER
    try:
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = made.stat()
    except OSError as error:
        raise InputError(f"{made} cannot be made ({error.strerror}): set {CACHE} to another folder") from None
    if hasattr(os, "getuid") and (about.st_uid != os.getuid() or about.st_mode & 0o022):
        raise InputError(f"{made} is not this user's alone: set {CACHE} to another folder, or `chmod 700` it")
    return made


def pulled() -> list[PulledModel]:
    """What is there, by name."""
    home = cache_folder()
    places = [] if home is None else (home / FOLDER).glob(f"*/{ABOUT}")
    found = [one for place in places if (one := _read(place.parent)) is not None]
    return sorted(found, key=lambda one: one.names)


def _read(place: Path) -> PulledModel | None:
    """The files of a folder; None where it is damaged."""
    with suppress(CheckpointError, TypeError, KeyError):
        about: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in _about(place).items()
        }
        one = PulledModel(folder=place, **about)
        if one.files and one.names and all((place / name).is_file() for name in one.files):
            return one
    return None


def _about(place: Path) -> dict[str, Any]:
    return read_json(place / ABOUT)


def find(name: str) -> PulledModel | None:
    """What was pulled by a name; None where nothing was."""
    return next((one for one in pulled() if name in one.names), None)


def key_of(*words: str) -> str:
    """The name of a folder, from words that may have any characters."""
    return re.sub(r"[^\w.@-]", "-", "--".join(words)).lstrip(".")


@contextmanager
def bringing(key: str) -> Iterator[Path]:
    """The folder in which files are brought; one process at a time has it. What is left of it stays if the block ends
    by an error.
    """
    place = folder() / IN_WORK / key
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with place.with_name(f"{key}.lock").open("w") as lock:
            with suppress(OSError):  # a file system that knows no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            place.mkdir(mode=0o700, exist_ok=True)  # another process may have finished it meanwhile
            yield place
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or place} cannot be written ({error.strerror}): make room, or set {CACHE} to a folder on "
            "another disk"
        ) from None


def finish(place: Path, about: PulledModel) -> PulledModel:
    """Have files that are whole appear under the name of their folder, in place of what was there."""
    for left in place.iterdir():
        if left.name not in about.files:
            left.unlink()
    write_json(place / ABOUT, {key: value for key, value in asdict(about).items() if key != "folder"})
    target = place.parent.parent / place.name
    old = place.with_name(f"{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    place.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    made = _read(target)
    assert made is not None
    return made


def add_names(one: PulledModel, names: Sequence[str]) -> None:
    """Have what is there be found by more names."""
    write_json(one.folder / ABOUT, _about(one.folder) | {"names": sorted({*one.names, *names})})


def remove(one: PulledModel) -> int:
    """Delete pulled files; the bytes that they had."""
    size = one.size
    (one.folder / ABOUT).unlink()  # what is left after an interruption is found by nobody
    shutil.rmtree(one.folder, ignore_errors=True)
    return size
