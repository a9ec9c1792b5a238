"""Write an index: gather documents into segments, sort each, and let the folder appear under its name when whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import escape
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import DataError, InputError
from daguerre.files import sync_folder, synced_write
from daguerre.overlap.index import FORMAT, NUMBERS, is_index
from daguerre.overlap.segment import GAP
from daguerre.overlap.suffixes import STRIDE, WORD, num_suffixes, sort_suffixes, words_of

END = b"\xff"
"""Behind every document. No UTF-8 text holds it, so no match crosses the end of a document."""
SORT_BYTES = 9
"""Memory of a sort for each byte of text, measured on Python source."""
LEAST_MEMORY = 1 << 28
MEMORY = 4 << 30
KNOWN = ("package", "version", "license", "file")

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class IndexPlan:
    """What an index takes: segments, bytes of memory while it is built, bytes on disk."""

    segments: int
    memory: int
    disk: int


def plan(num_bytes: int, num_documents: int, memory: int = MEMORY) -> IndexPlan:
    """The plan for texts of `num_bytes` UTF-8 bytes with `memory` bytes for building. InputError for too little."""
    if memory < LEAST_MEMORY:
        raise InputError(f"building an index needs {LEAST_MEMORY >> 20} MiB of memory or more, not {memory >> 20}")
    text = num_bytes + num_documents
    segments = max(1, -(-text // (memory // SORT_BYTES)))
    disk = text + (4 + 8 // GAP) * num_suffixes(text) + 160 * num_documents
    return IndexPlan(segments, max(LEAST_MEMORY, min(memory, SORT_BYTES * text)), disk)


def write_index(
    out: str | os.PathLike[str],
    documents: Iterable[tuple[bytes, Mapping[str, Any]]],
    corpus: Mapping[str, Any],
    *,
    memory: int = MEMORY,
    progress: Progress = lambda phase, share: None,
) -> None:
    """Index (UTF-8 text, what is known of it: KNOWN keys, None or absent for unknown) pairs in the folder `out`.

    corpus: what meta.json says of the corpus: "sha256", and "bytes", its UTF-8 bytes in all, for `progress`.
    An older index at `out` is replaced when the new one is whole; interrupted, it stays as it was. DataError when `out`
    is something else, or cannot be written.
    """
    plan(0, 0, memory)
    try:
        with _staged(Path(out)) as stage:
            writer = _IndexWriter(stage, memory // SORT_BYTES, max(1, corpus.get("bytes", 0)), progress)
            for text, known in documents:
                writer.add(text, known)
            writer.finish(corpus)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error}; fix this and run again") from error


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place when the block ends without an error."""
    if out.exists() and not is_index(out) and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} exists and is no index: choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f"{escape(out.name)}.*.tmp"):  # by a process that was killed while it wrote
        shutil.rmtree(left, ignore_errors=True)
    stage, old = (out.with_name(f"{out.name}.{os.getpid()}{kind}.tmp") for kind in ("", ".old"))
    stage.mkdir()
    try:
        yield stage
        sync_folder(stage)
        if out.exists():
            out.rename(old)
        stage.rename(out)
        sync_folder(out.parent)
    finally:
        for left in (stage, old):
            shutil.rmtree(left, ignore_errors=True)


@dataclass
class _IndexWriter:
    """Documents on their way into the files of a folder. `room`: most bytes of a segment, unless a document is longer.
    `num_bytes`: about how many will come.
    """

    folder: Path
    room: int
    num_bytes: int
    progress: Progress
    segments: list[dict[str, int]] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    held: int = 0
    seen: int = 0
    lines: list[bytes] = field(default_factory=list)
    packages: dict[str | None, int] = field(default_factory=dict)
    of_document: list[int] = field(default_factory=list)

    def add(self, text: bytes, known: Mapping[str, Any]) -> None:
        if self.texts and self.held + len(text) + 1 > self.room:
            self.end_segment()
        self.texts.append(text + END)
        self.held += len(text) + 1
        self.seen += len(text)
        record = {key: known.get(key) for key in KNOWN}
        self.lines.append(json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n")
        self.of_document.append(self.packages.setdefault(record["package"], len(self.packages)))
        self.progress("read", min(1.0, self.seen / self.num_bytes))

    def end_segment(self) -> None:
        number = len(self.segments)
        self.segments.append({"documents": len(self.texts), "bytes": self.held})
        starts = [0, *accumulate(map(len, self.texts))]
        text = np.frombuffer(b"".join([*self.texts, bytes(WORD)]), np.uint8)
        self.texts, self.held = [], 0
        order = sort_suffixes(text, lambda share: self.progress(f"sort {number + 1}", share))
        tops = words_of(text)[order[::GAP].astype(np.int64) * STRIDE]
        for (name, kind), values in zip(NUMBERS.items(), (text, order, tops, starts), strict=True):
            self._save(f"{name}-{number}.bin", values, kind)

    def finish(self, corpus: Mapping[str, Any]) -> None:
        self.end_segment()
        self._save("documents.jsonl", np.frombuffer(b"".join(self.lines), np.uint8), "u1")
        self._save("lines.bin", [0, *accumulate(map(len, self.lines))], "<i8")
        self._save("packages.bin", self.of_document, "<u4")
        files = {path.name: _described(path) for path in sorted(self.folder.iterdir())}
        meta = {"format": FORMAT, "stride": STRIDE, "corpus": dict(corpus), "segments": self.segments}
        meta |= {"packages": list(self.packages), "files": files}
        with synced_write(self.folder / "meta.json") as file:
            file.write((json.dumps(meta, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))

    def _save(self, name: str, values: Any, kind: str) -> None:
        with synced_write(self.folder / name) as file:
            np.asarray(values, kind).tofile(file)


def _described(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
