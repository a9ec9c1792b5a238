"""The index of a corpus on disk, and the passages of a text that it knows.

    INDEX/meta.json          {"format", "stride", "corpus": {...}, "segments": [{"documents", "bytes"}, ...],
                              "packages": [names], "files": {name: {"bytes", "sha256"}}}
    INDEX/text-N.bin         uint8: the documents of segment N, each followed by 0xFF, then 8 zero bytes
    INDEX/order-N.bin        uint32: its suffixes at every third byte, in order
    INDEX/tops-N.bin         uint64: the first eight bytes of every 64th of these
    INDEX/starts-N.bin       int64 [documents + 1]: the byte at which each document begins
    INDEX/documents.jsonl    a line for each document: package, version, license, file; null where not known
    INDEX/lines.bin          int64 [documents + 1]: the byte at which each of these lines begins
    INDEX/packages.bin       uint32 [documents]: the number of each document's package in "packages"

Numbers are little-endian. All is mapped into memory, so opening takes milliseconds and processes share what they read.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import DataError, InputError
from daguerre.overlap import LEVELS, MIN_LENGTH, NUM_SOURCES
from daguerre.overlap.segment import Segment
from daguerre.overlap.suffixes import STRIDE

FORMAT = 1
SHORTEST = STRIDE
NUMBERS = {"text": "u1", "order": "<u4", "tops": "<u8", "starts": "<i8"}


@dataclass(frozen=True)
class MatchSource:
    """One place that a match stands at: the document's number in its corpus, what is known of it, and the line (from
    1) on which the match begins there.
    """

    document: int
    package: str | None
    version: str | None
    license: str | None
    file: str | None
    line: int


@dataclass(frozen=True)
class Match:
    """text[start:end], in characters, stands in the corpus, and does so neither with the character before it nor with
    the one behind it. `occurrences`, `documents` and `packages` count all places; `sources` are the first few.
    """

    start: int
    end: int
    occurrences: int
    documents: int
    packages: int
    sources: tuple[MatchSource, ...]

    @property
    def length(self) -> int:
        return self.end - self.start


class Overlap:
    """An opened index. Safe to share between threads; nothing is written."""

    def __init__(self, folder: Path, meta: Mapping[str, Any]) -> None:
        self.folder = folder
        self.meta = meta
        self._segments = [self._segment(number) for number in range(len(meta["segments"]))]
        self._first = np.cumsum([0, *(segment["documents"] for segment in meta["segments"])])
        self._lines = self._map("lines.bin", "<i8")
        self._packages = self._map("packages.bin", "<u4")
        self._documents = self._map("documents.jsonl", "u1")

    @classmethod
    def open(cls, folder: str | os.PathLike[str], corpus_sha256: str | None = None) -> Overlap:
        """Map an index. DataError if it is missing, truncated, of another format, or not of the corpus asked for."""
        folder = Path(folder)
        meta = _read_meta(folder)
        if corpus_sha256 not in (None, meta["corpus"]["sha256"]):
            raise DataError(
                f"{folder} is the index of another corpus: make one with `daguerre data index --data CORPUS --out NEW`"
            )
        for name, file in meta["files"].items():
            try:
                size = (folder / name).stat().st_size
            except OSError as error:
                raise _damaged(folder / name, str(error)) from error
            if size != file["bytes"]:
                raise _damaged(folder / name, f"{size} bytes where {file['bytes']} are expected")
        return cls(folder, meta)

    def verify(self) -> None:
        """Read every file and compare it with its hash. DataError if one has changed."""
        for name, file in self.meta["files"].items():
            with (self.folder / name).open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != file["sha256"]:
                    raise _damaged(self.folder / name, "its content is not what was written")

    @cached_property
    def sha256(self) -> str:
        """The identity of the index: the hash of its meta.json, which holds the hashes of the other files."""
        return hashlib.sha256((self.folder / "meta.json").read_bytes()).hexdigest()

    def longest_matches(
        self, text: str, *, min_length: int = MIN_LENGTH, num_sources: int = NUM_SOURCES
    ) -> list[Match]:
        """All maximal matches of `min_length` characters or more, by their beginnings.

        Maximal: no longer match contains it. They may overlap. Every passage of the text of that length which stands
        within a document of the corpus lies in one of them, and each of them stands there, character by character.
        InputError for a lone surrogate, or lengths out of range.
        """
        if min_length < SHORTEST:
            raise InputError(f"the shortest match is {SHORTEST} characters or more, not {min_length}")
        if num_sources < 0:
            raise InputError(f"the number of sources is 0 or more, not {num_sources}")
        query = _utf8(text)
        try:
            found = [span for segment in self._segments for span in segment.maximal(query, min_length)]
            return [self._match(query, *span, num_sources) for span in _spans(query, found, min_length)]
        except IndexError as error:  # the order points out of the text
            raise _damaged(self.folder, str(error)) from error

    def summary(
        self,
        text: str,
        *,
        min_length: int = MIN_LENGTH,
        num_sources: int = NUM_SOURCES,
        levels: Sequence[int] = LEVELS,
    ) -> dict[str, Any]:
        """What a record of a generation holds; JSON values alone, and no part of the text.

        "covered": {length: share of the characters that lie in a match of that length or more}, of those `levels` that
        are `min_length` or more. "longest": the longest match, the first of equals; None without one. "matches": all.
        """
        matches = self.longest_matches(text, min_length=min_length, num_sources=num_sources)
        return {
            "index_sha256": self.sha256,
            "corpus_sha256": self.meta["corpus"]["sha256"],
            "characters": len(text),
            "min_length": min_length,
            "covered": {
                str(level): covered(matches, level, len(text))
                for level in sorted({min_length, *levels})
                if level >= min_length
            },
            "longest": _record(max(matches, key=lambda match: match.length)) if matches else None,
            "matches": [_record(match) for match in matches],
        }

    def _match(self, query: bytes, start: int, end: int, begin: int, until: int, num_sources: int) -> Match:
        occurrences, documents = 0, []
        sources: list[MatchSource] = []
        for number, segment in enumerate(self._segments):
            places = segment.occurrences(query[begin:until])
            holders, first = np.unique(np.searchsorted(segment.starts, places, "right") - 1, return_index=True)
            occurrences += len(places)
            for holder, place in zip(holders[: num_sources - len(sources)], places[first], strict=False):
                sources.append(self._source(number, int(holder), int(place)))
            documents.append(holders + self._first[number])
        found = np.concatenate(documents)
        packages = len(np.unique(self._packages[found]))
        return Match(start, end, occurrences, len(found), packages, tuple(sources))

    def _source(self, number: int, holder: int, place: int) -> MatchSource:
        segment = self._segments[number]
        document = int(self._first[number]) + holder
        known = json.loads(self._documents[self._lines[document] : self._lines[document + 1]].tobytes())
        line = 1 + int((segment.text[int(segment.starts[holder]) : place] == ord("\n")).sum())
        return MatchSource(document, known["package"], known["version"], known["license"], known["file"], line)

    def _segment(self, number: int) -> Segment:
        arrays = {name: self._map(f"{name}-{number}.bin", kind) for name, kind in NUMBERS.items()}
        return Segment(**arrays)

    def _map(self, name: str, kind: str) -> Any:
        path = self.folder / name
        if not path.stat().st_size:
            return np.empty(0, kind)  # an empty file cannot be mapped
        return np.asarray(np.memmap(path, kind, mode="r"))


def covered(matches: Sequence[Match], length: int, characters: int) -> float:
    """The share of a text's characters that lie in a match of `length` characters or more."""
    inside, until = 0, 0
    for match in matches:
        if match.length >= length:
            inside += max(0, match.end - max(match.start, until))
            until = max(until, match.end)
    return inside / characters if characters else 0.0


def _spans(query: bytes, matches: Sequence[tuple[int, int]], least: int) -> list[tuple[int, int, int, int]]:
    """(start, end, begin, until) of the maximal matches of `least` characters or more, start and end in characters, the
    others in bytes; of matches in bytes, whose ends may cut a character.
    """
    heads = [place for place, byte in enumerate(query) if byte & 0xC0 != 0x80] + [len(query)]
    whole = [(bisect_left(heads, begin), bisect_right(heads, until) - 1) for begin, until in matches]
    found, furthest = [], 0
    for start, end in sorted(whole, key=lambda span: (span[0], -span[1])):
        if end - start >= least and end > furthest:
            found.append((start, end, heads[start], heads[end]))
            furthest = end
    return found


def _record(match: Match) -> dict[str, Any]:
    return vars(match) | {"length": match.length, "sources": [vars(source) for source in match.sources]}


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"character {error.start} is a lone surrogate, which no text has: remove it") from error


def is_index(folder: Path) -> bool:
    """Whether a folder holds a whole index of this format."""
    try:
        return bool(_read_meta(folder))
    except DataError:
        return False


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{folder} is no index: make one with `daguerre data index --data CORPUS --out {folder}`"
        ) from error
    except ValueError as error:
        raise _damaged(folder / "meta.json", "not JSON") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or meta.get("stride") != STRIDE:
        raise DataError(f"{folder} has another format than {FORMAT}: make it again with `daguerre data index`")
    return meta


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path} is damaged ({why}): delete the folder and make it again with `daguerre data index`")
