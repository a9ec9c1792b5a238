"""Read a package's files and keep the good ones."""

from __future__ import annotations

import hashlib
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from daguerre.train.corpus import filters, languages
from daguerre.train.corpus.dedup import signature
from daguerre.train.corpus.document import CorpusDocument, Harvest
from daguerre.train.corpus.sources import Package

VERSION = 2  # of rules and format; raise it when filters or signatures change, so that cached results are not used
UNREADABLE, UNDECODABLE = "unreadable", "does not decode"
NO_TIME = "left out for lack of time"
CORRUPT = (UNREADABLE, UNDECODABLE, filters.UNPARSABLE)


def always() -> bool:
    """There is always time."""
    return True


def harvest(
    package: Package,
    *,
    signatures: bool = True,
    any_language: bool = False,
    has_time: Callable[[], bool] = always,
) -> Harvest:
    """The kept files of a package, of Python or of any language. What cannot be read or decoded is listed and skipped,
    never fatal.

    has_time: asked before each file once one is kept; where it says no, the rest is left out.
    """
    documents: list[CorpusDocument] = []
    dropped, bad_files, seen_bytes = Counter[str](), dict[str, str](), 0
    for number, file in enumerate(package.files):
        if documents and not has_time():
            dropped[NO_TIME] = len(package.files) - number
            break
        content, reason = _read(package.root / file, PurePosixPath(file))
        seen_bytes += len(content)
        text, reason = _text(content, PurePosixPath(file), any_language) if reason is None else ("", reason)
        if reason is not None:
            dropped[reason] += 1
            if reason in CORRUPT:
                bad_files[_printable(file)] = reason
            continue
        encoded = text.encode("utf-8")
        digest = hashlib.sha256(encoded).hexdigest()
        documents.append(
            CorpusDocument(package.name, package.version, package.license, file, digest, len(encoded), text)
        )
    made = [signature(document.text) for document in documents] if signatures else []
    return Harvest(documents, made, dict(dropped), bad_files, seen_bytes)


def harvest_to(cache: Path, package: Package) -> None:
    """`harvest`, kept in the folder `cache`."""
    harvest(package).save(harvest_path(package, cache))


def harvest_path(package: Package, cache: Path) -> Path:
    """The file of a package's harvest; its name changes with the package's files, their sizes or times, or VERSION."""
    return cache / f"{package.name}-{_fingerprint(package)}.npz"


def _read(path: Path, relative: PurePosixPath) -> tuple[bytes, str | None]:
    if reason := filters.refuse_path(relative):
        return b"", reason
    try:
        str(relative).encode("utf-8")  # a name that is not Unicode could not be written to the manifest
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return b"", UNREADABLE
        return (path.read_bytes(), None) if status.st_size <= filters.MAX_BYTES else (b"", "too large")
    except (OSError, UnicodeError):
        return b"", UNREADABLE


def _text(content: bytes, file: PurePosixPath, any_language: bool) -> tuple[str, str | None]:
    try:
        text = filters.decode(content)
    except (SyntaxError, UnicodeError, LookupError, ValueError):
        return "", UNDECODABLE
    return text, languages.refuse(file, text) if any_language else filters.refuse_text(text)


def _printable(file: str) -> str:
    """The name of a file; bytes in it that are not Unicode are spelled out."""
    return file.encode("utf-8", "backslashreplace").decode()


def _fingerprint(package: Package) -> str:
    digest = hashlib.sha256(f"{VERSION} {package.version} {package.license}".encode())
    for file in package.files:
        try:
            status = (package.root / file).stat()
            digest.update(f"\n{file} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape"))
        except OSError:
            digest.update(f"\n{file} unreadable".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:20]
