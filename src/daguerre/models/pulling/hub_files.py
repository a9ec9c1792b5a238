"""Files of a repository on a hub: listed with their hashes, downloaded on from where they stopped, and checked.

The hub's client gives the connection, its settings and the user's token. It begins a file anew after an interruption,
which for gigabytes is too much; the loop that reads on is therefore here.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from daguerre.errors import CheckpointError, InputError
from daguerre.models.hub import is_of_files, translated

TRIES, PAUSE = 5, 0.5
"""How often a connection may break off before it brings a byte more, and the seconds between, which become more."""
CHUNK = 1 << 20
Told = Callable[[int, int], object]
"""Called with the bytes that are here, and all of them."""


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file of a repository at a commit.

    sha256  of a large file; blob: git's SHA-1 of a small one
    """

    repository: str
    commit: str
    path: str
    size: int
    sha256: str | None = None
    blob: str | None = None

    @property
    def name(self) -> str:
        """Its name without folders."""
        return PurePosixPath(self.path).name


def listed(repository: str, revision: str | None = None) -> dict[str, RemoteFile]:
    """The files of a repository, by their paths in it. InputError for one that is not there, or not for this user;
    CheckpointError where the hub cannot be asked.
    """
    from huggingface_hub import HfApi

    try:
        about = HfApi().model_info(repository, revision=revision, files_metadata=True)
    except Exception as error:  # the library's errors, and its HTTP client's
        raise translated(error, repository, revision) from None
    found = dict[str, RemoteFile]()
    for each in about.siblings or ():
        large = None if each.lfs is None else each.lfs.sha256
        found[each.rfilename] = RemoteFile(
            repository=repository,
            commit=about.sha or revision or "main",
            path=each.rfilename,
            size=each.size or 0,
            sha256=large,
            blob=each.blob_id if large is None else None,
        )
    return found


def download(files: list[RemoteFile], place: Path, told: Told | None = None) -> list[str]:
    """Bring files into a folder; the SHA-256 of each. What is there of them is kept, if its hash is right in the end.

    CheckpointError for a file that is not the one which the hub says, for a disk without room, and where the connection
    breaks off: then the next try goes on from there.
    """
    total = sum(file.size for file in files)
    here = sum(min(file.size, _size(part_of(file, place))) for file in files)
    free = shutil.disk_usage(place).free
    if total - here > free:
        raise CheckpointError(
            f"{files[0].name} needs {(total - here) / 1e9:.2f} GB more, and {place} has {free / 1e9:.2f} GB free: make "
            "room, or set DAGUERRE_CACHE to a folder on another disk"
        )
    hashes, before = list[str](), 0
    for file in files:
        for done in _bring(file, part_of(file, place)):
            if told is not None:
                told(before + done, total)
        hashes.append(_checked(file, part_of(file, place)))
        before += file.size
    for file in files:
        part_of(file, place).replace(place / file.name)
    return hashes


def part_of(file: RemoteFile, place: Path) -> Path:
    """Where a file is while it is brought, under a name that has its hash."""
    return place / f"{file.name}.{(file.sha256 or file.blob or file.commit)[:16]}.part"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _bring(file: RemoteFile, to: Path) -> Iterator[int]:
    """Write all bytes of a file, on from those that are there; yields how many are there now. A connection that breaks
    off is made again.
    """
    tries = 0
    if _size(to) > file.size:
        to.unlink()
    to.touch(mode=0o600)
    while (here := _size(to)) < file.size:
        try:
            with to.open("ab") as out:
                for data in _bytes(file, here, out):
                    out.write(data)
                    yield out.tell()
        except Exception as error:  # the library's errors, its HTTP client's and those of the file system
            if is_of_files(error):
                raise
            if tries == TRIES or not _broke_off(error):
                raise translated(error, file.repository, None) from None
        if _size(to) >= file.size:
            break
        tries = 0 if _size(to) > here else tries + 1
        if tries > TRIES:
            raise CheckpointError(f"the hub ends {file.name} before its {file.size:,} bytes: try again later")
        time.sleep(PAUSE * tries)
    yield file.size


def _bytes(file: RemoteFile, here: int, out: Any) -> Iterator[bytes]:
    """What the hub sends of a file behind its first bytes; where it sends all, the file is emptied first."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if here:
        headers["Range"] = f"bytes={here}-"
    url = hf_hub_url(file.repository, file.path, revision=file.commit)
    with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=30) as answer:
        hf_raise_for_status(answer)
        if here and answer.status_code != 206:
            out.truncate(0)
        yield from answer.iter_bytes(CHUNK)


def _broke_off(error: Exception) -> bool:
    """Whether a connection broke off, by the classes of the client, of which the library has had two."""
    names = {each.__name__ for each in type(error).__mro__}
    return bool(names & {"TransportError", "ConnectionError", "TimeoutError"})


def _checked(file: RemoteFile, path: Path) -> str:
    """The SHA-256 of a file. CheckpointError where the hub says another hash: the file is then deleted."""
    with path.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if file.sha256 is None and file.blob is None:
        raise InputError(f"the hub says no hash of {file.name}: download it yourself, and give its path")
    right = found == file.sha256 if file.sha256 is not None else _blob(path) == file.blob
    if not right:
        path.unlink()
        raise CheckpointError(f"{file.name} has arrived with another hash than the hub says: pull it again")
    return found


def _blob(path: Path) -> str:
    """Git's hash of a file."""
    found = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while data := content.read(CHUNK):
            found.update(data)
    return found.hexdigest()
