"""The ledger: a file of records, one a line, each signed and each naming the hash of the one before it.

Beside the file `L` lie `L.head`, the signed number and hash of its last record, without which nobody could tell that
the last records are missing; and `L.keys`, which opens the texts (`audit.keys.RecordKeys`).

A line is canonical JSON with three fields: the `record`, in the clear; `sealed`, its encrypted part, of which the
record has the hash; and the `signature` of the record. A record's hash is that of its canonical JSON, so the chain
holds whether the sealed part can still be read or not.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

from daguerre.audit.canonical import canonical, digest
from daguerre.audit.keys import RecordKeys, SigningKey, from_text, is_signed, seal, to_text, unseal
from daguerre.errors import DataError, InputError, unknown
from daguerre.files import atomic_write, sync_folder

VERSION = 1
FIRST = "0" * 64
"""What the first record names as the hash of the one before it."""
RECORD, HEAD = b"daguerre audit record\n", b"daguerre audit head\n"
"""Prefixes of what is signed, so that a signature of a head is never one of a record."""
EVENTS = ("anchor", "correction", "decision", "explanation", "incident", "notice", "review")
"""What may follow a record: the head was kept elsewhere; its output was corrected, or a decision rested on it; that was
explained; something went wrong; somebody was told; somebody looked at it.
"""
UNHASHED = ("name", "family", "training")
"""Facts of a model that no weights tell."""
MODEL = b'"model":{"'
"""What is in a line whose record is of a model; in a text the quotes would have backslashes."""
TAIL = 1 << 16
LOG = logging.getLogger("daguerre")


@dataclass(frozen=True, eq=False)
class LedgerEntry:
    """A line of a ledger. `sealed`: the encrypted part; None: the record has none."""

    record: dict[str, Any]
    sealed: bytes | None
    signature: bytes

    @classmethod
    def parse(cls, line: bytes) -> LedgerEntry:
        """Read a line, without its end. DataError for anything but canonical JSON of the three fields."""
        try:
            value = json.loads(line)
            if set(value) != {"record", "sealed", "signature"} or canonical(value) != line:
                raise ValueError("it is not canonical JSON of record, sealed and signature")
            sealed = None if value["sealed"] is None else from_text(value["sealed"])
            record, signature = value["record"], from_text(value["signature"])
            if not isinstance(record, dict):
                raise ValueError("its record is no object")
        except (ValueError, TypeError, AttributeError, RecursionError, DataError) as error:
            raise DataError(f"this is no line of a ledger: {error}") from None
        return cls(record, sealed, signature)

    @cached_property
    def content(self) -> bytes:
        """The canonical JSON of the record."""
        return canonical(self.record)

    @property
    def hash(self) -> str:
        """What the next record names."""
        return digest(self.content)

    @property
    def line(self) -> bytes:
        """The line, with its end."""
        sealed = None if self.sealed is None else to_text(self.sealed)
        return canonical({"record": self.record, "sealed": sealed, "signature": to_text(self.signature)}) + b"\n"

    def is_signed_by(self, public: bytes) -> bool:
        """Whether the owner of this public key signed the record."""
        return is_signed(public, self.signature, RECORD + self.content)

    def opened(self, key: bytes) -> dict[str, Any]:
        """The sealed part, opened with the record's key. DataError where that does not open it."""
        assert self.sealed is not None
        out: dict[str, Any] = json.loads(unseal(self.sealed, key, str(self.record["id"])))
        return out


@dataclass(frozen=True)
class LedgerHead:
    """How many records a ledger has, and the hash of the last."""

    records: int
    last: str
    signature: bytes = b""

    @classmethod
    def read(cls, path: Path) -> LedgerHead:
        """The head beside a ledger; one of no records where there is none. DataError for a damaged one."""
        try:
            content = path.read_bytes()
            value = json.loads(content)
            head = cls(int(value["records"]), str(value["last"]), from_text(value["signature"]))
            if head.line != content:
                raise ValueError
        except FileNotFoundError:
            return cls(0, FIRST)
        except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError):
            raise DataError(f"{path} is damaged: restore it from a copy") from None
        return head

    @property
    def message(self) -> bytes:
        """What its signature signs."""
        return HEAD + canonical({"records": self.records, "last": self.last})

    @property
    def line(self) -> bytes:
        """The content of its file."""
        return canonical({"records": self.records, "last": self.last, "signature": to_text(self.signature)}) + b"\n"


def head_path(path: Path) -> Path:
    """The file of a ledger's head."""
    return Path(f"{path}.head")


def record_keys(path: Path) -> RecordKeys:
    """The keys of a ledger's records."""
    return RecordKeys(Path(f"{path}.keys"))


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a ledger, each without its end; one that is torn has a last byte other than its end, and is not
    among them. InputError for a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1]
    except OSError as error:
        raise InputError(f"the ledger {path} cannot be read ({error.strerror}): check the path") from None


def last_of(path: Path) -> tuple[str, int]:
    """The head of a ledger as its lines give it: the hash of the last record, and how many there are. It checks none.
    InputError for a file that cannot be read; DataError for one whose last line is none.
    """
    last, num = b"", 0
    for line in lines(path):
        last, num = line, num + 1
    return (LedgerEntry.parse(last).hash if last else FIRST), num


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Which facts of a model differ, in order, apart from those that follow from the name it was loaded by."""
    names = (before.keys() | after.keys()) - {"name", "training"}
    return sorted(name for name in names if before.get(name) != after.get(name))


def texts_by_name(what: str, given: Mapping[str, str] | None) -> dict[str, str]:
    """Facts that a caller gives. InputError for anything but texts by name."""
    facts = {} if given is None else dict(given)
    if not all(isinstance(text, str) for pair in facts.items() for text in pair):
        raise InputError(f"{what} must map names to texts, not {given!r:.60}")
    return facts


def is_written(path: Path) -> bool:
    """Whether somebody has the ledger open to write."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


class Ledger:
    """A ledger that records are appended to, by one process at a time; it is made where it is not there.

    A record that `append` has returned is on the disk. What a crash left of a line is moved aside into a file
    `L.torn-1`, and so on, when the ledger is next opened, and a record of kind "repair" says so.

    A record of another model than the last one that was of a model comes after one of kind "change".

    key  what signs: a `SigningKey`, or its file. DataError if another process has the ledger open, if its last record
    is not signed with this key, or if it is not the record that the head names.
    """

    def __init__(self, path: str | os.PathLike[str], key: SigningKey | str | os.PathLike[str]) -> None:
        self.path, self._key = Path(path), key if isinstance(key, SigningKey) else SigningKey.load(key)
        self._keys, self._appending = record_keys(self.path), Lock()
        self.records, self.last = 0, FIRST
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise InputError(f"the ledger {self.path} cannot be opened ({error.strerror}): check the path") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise DataError(f"another process writes to {self.path}: wait for it, or use another ledger") from None
        try:
            torn = self._cut_torn_line()
            self._check_last()
            self._model = self._last_model()
            if torn is not None:
                self.append("repair", {"torn": torn})
        except BaseException:
            self.close()
            raise

    def append(self, kind: str, content: Mapping[str, Any], secret: Mapping[str, Any] | None = None) -> str:
        """Write a record, and return its id once it is on the disk. `secret` is encrypted. DataError for values that
        JSON does not have, and where the disk is full; the ledger is then as it was.
        """
        with self._appending:
            before, after = self._model, content.get("model")
            differing = [] if before is None or after is None else changed(before, after)
            if differing:
                self._append("change", {"before": before, "model": after, "changed": differing}, None)
                self._model = after
            record_id = self._append(kind, content, secret)
            self._model = before if after is None else after
            return record_id

    def _append(self, kind: str, content: Mapping[str, Any], secret: Mapping[str, Any] | None) -> str:
        record_id, plain = str(uuid.uuid4()), None if secret is None else canonical(secret)
        with self._undone():
            sealed = None if plain is None else seal(plain, self._keys.make(record_id), record_id)
            self._write(self._entry(record_id, kind, content, sealed))
        return record_id

    def follow_up(
        self, record_id: str, event: str, facts: Mapping[str, str] | None = None, note: str | None = None
    ) -> str:
        """Append what became of an earlier record, and return the id of the new one. event: one of EVENTS; facts: texts
        by name, in the clear, without personal data; note: a text that is sealed. InputError for what is none of that.
        """
        if event not in EVENTS:
            raise unknown("event", event, EVENTS)
        self._check_has(record_id)
        content = {"of": record_id, "event": event, "facts": texts_by_name("facts", facts)}
        return self.append("follow_up", content, None if note is None else {"note": note})

    def _entry(self, record_id: str, kind: str, content: Mapping[str, Any], sealed: bytes | None) -> LedgerEntry:
        record = {
            "version": VERSION,
            "id": record_id,
            "kind": kind,
            "number": self.records,
            "previous": self.last,
            "created": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "signer": to_text(self._key.public),
            "sealed_sha256": None if sealed is None else digest(sealed),
            **content,
        }
        return LedgerEntry(record, sealed, self._key.sign(RECORD + canonical(record)))

    def erase(self, record_id: str, why: str = "") -> None:
        """Destroy the key of a record, so that nobody can read its text again, and append a record that says so. What
        was copied of the file of keys is out of reach. InputError for a record without a key.
        """
        self._check_has(record_id)
        self._keys.destroy(record_id)
        self.append("erasure", {"erased": record_id, "why": why})

    def _check_has(self, record_id: str) -> None:
        if not any(f'"id":"{record_id}",'.encode() in line for line in lines(self.path)):
            raise InputError(f"{self.path} has no record {record_id!r}: see `daguerre audit show`")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Where the block fails or is interrupted before the head names its record, cut that record off again."""
        size, num = os.fstat(self._file).st_size, self.records
        try:
            yield
        except BaseException as error:
            if LedgerHead.read(head_path(self.path)).records == num:
                os.ftruncate(self._file, size)
            else:
                self._check_last()
            if not isinstance(error, OSError):
                raise
            raise DataError(f"the record cannot be written to {self.path} ({error.strerror}): make room") from None

    def _write(self, entry: LedgerEntry) -> None:
        line, done = entry.line, 0
        while done < len(line):
            done += os.write(self._file, line[done:])
        os.fsync(self._file)
        self._write_head(LedgerHead(self.records + 1, entry.hash))
        self.records, self.last = self.records + 1, entry.hash

    def _write_head(self, head: LedgerHead) -> None:
        with atomic_write(head_path(self.path)) as file:
            file.write(LedgerHead(head.records, head.last, self._key.sign(head.message)).line)
        sync_folder(self.path.parent)

    def _cut_torn_line(self) -> dict[str, Any] | None:
        """Move what follows the last end of a line aside, and return what the repair says of it."""
        size = os.fstat(self._file).st_size
        torn = self._last_part(size)
        if not torn:
            return None
        number = 1
        while (aside := Path(f"{self.path}.torn-{number}")).exists():
            number += 1
        with atomic_write(aside) as file:
            file.write(torn)
        os.ftruncate(self._file, size - len(torn))
        os.fsync(self._file)
        LOG.warning("%s ended in a torn line of %d bytes, which is now in %s", self.path, len(torn), aside)
        return {"bytes": len(torn), "sha256": digest(torn), "file": aside.name}

    def _check_last(self) -> None:
        """Set `records` and `last` from the last line, and bring the head up to it if a crash came in between."""
        head, line = LedgerHead.read(head_path(self.path)), self._last_part(max(0, os.fstat(self._file).st_size - 1))
        damaged = f"{self.path} was changed since it was written: see `daguerre audit verify`"
        before = FIRST
        if line:
            entry = LedgerEntry.parse(line)
            if not entry.is_signed_by(self._key.public):
                raise DataError(f"the last record of {self.path} is not signed with this key: give the right one")
            self.records, self.last, before = entry.record["number"] + 1, entry.hash, entry.record["previous"]
        if head.records and not is_signed(self._key.public, head.signature, head.message):
            raise DataError(damaged)
        if (head.records, head.last) == (self.records, self.last):
            return
        if (head.records + 1, head.last) != (self.records, before):
            raise DataError(damaged)
        self._write_head(LedgerHead(self.records, self.last))

    def _last_model(self) -> dict[str, Any] | None:
        """The facts of the last model; None: no record is of one."""
        last = None
        for line in lines(self.path):
            last = line if MODEL in line else last
        return None if last is None else LedgerEntry.parse(last).record.get("model")

    def _last_part(self, size: int) -> bytes:
        """Of the first bytes of the file those behind the last end of a line."""
        rest, place = b"", size
        while place and b"\n" not in rest:
            place = max(0, place - TAIL)
            rest = os.pread(self._file, size - place, place)
        return rest[rest.rfind(b"\n") + 1 :]
