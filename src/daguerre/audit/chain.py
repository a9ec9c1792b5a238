"""The chain of a ledger: each line by itself, each against the one before it, the head, and what is sealed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daguerre.audit.canonical import digest
from daguerre.audit.keys import from_text, is_signed, to_text
from daguerre.audit.ledger import FIRST, LedgerEntry, LedgerHead, changed, head_path, is_written, lines, record_keys
from daguerre.audit.schema import complaint
from daguerre.errors import DataError

REPLAYED = "replayed"
UNREAD = "chain and signature only"


@dataclass
class Checked:
    """What was found of one record.

    number    of its line, from 0
    status    what was checked, beside what every record is checked for
    problems  what is wrong, in words
    tokens    how many tokens were computed again
    worst     the largest distance of a logit from its replay, in logits
    """

    number: int
    id: str = ""
    kind: str = ""
    status: str = UNREAD
    problems: list[str] = field(default_factory=list)
    tokens: int = 0
    worst: float = 0.0


@dataclass
class LedgerReport:
    """What was found of a ledger. `problems` are those of no single record. `head`: the hash of the last record."""

    records: list[Checked] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    head: str = FIRST
    signer: str = ""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.problems or any(record.problems for record in self.records))

    @property
    def num_replayed(self) -> int:
        """How many records were computed again."""
        return sum(record.status == REPLAYED for record in self.records)

    def complaints(self) -> Iterator[str]:
        """All problems, each in a line."""
        for problem in self.problems:
            yield f"ledger: {problem}"
        for record in self.records:
            for problem in record.problems:
                yield f"record {record.number} {record.id}: {problem}"


def check_chain(path: Path, report: LedgerReport, public: bytes | None) -> dict[int, LedgerEntry]:
    """Check every line by itself and against the one before it, and the head; returns the entries that are records, by
    the number of their line.
    """
    entries, before, ids, hashes = dict[int, LedgerEntry](), FIRST, set[str](), [FIRST]
    model: Mapping[str, Any] | None = None
    head = _head(path, report)  # before the lines, to which a writer may add meanwhile
    for number, line in enumerate(lines(path)):
        checked = Checked(number)
        report.records.append(checked)
        try:
            entry = LedgerEntry.parse(line)
        except DataError as error:
            checked.problems.append(str(error))
            before = ""
            hashes.append(before)
            continue
        last, before = before, entry.hash
        hashes.append(before)
        wrong = complaint(entry.record)
        if wrong is not None:
            checked.problems.append(f"it does not follow the schema: {wrong}")
            continue
        checked.id, checked.kind = entry.record["id"], entry.record["kind"]
        report.signer = report.signer or entry.record["signer"]
        signer = report.signer if public is None else to_text(public)
        checked.problems += _of_line(entry, number, last, signer)
        if checked.id in ids:
            checked.problems.append("its id is that of an earlier record")
        checked.problems += _of_history(entry.record, ids, model)
        model = entry.record.get("model", model)
        ids.add(checked.id)
        entries[number] = entry
    report.head = before
    report.problems += _of_end(path, head, hashes, report.signer if public is None else to_text(public))
    return entries


def _of_line(entry: LedgerEntry, number: int, before: str, signer: str) -> Iterator[str]:
    record = entry.record
    if record["number"] != number:
        yield f"it is number {record['number']} of its ledger, in place {number}: records are missing, added or moved"
    if record["previous"] != before:
        yield "the record before it is not the one that it names"
    if record["signer"] != signer:
        yield "it is signed with another key"
    if not entry.is_signed_by(_bytes(record["signer"])):
        yield "its signature does not fit: it was changed"
    if (entry.sealed is None) != (record["sealed_sha256"] is None):
        yield "its sealed part is missing, or was added"
    elif entry.sealed is not None and digest(entry.sealed) != record["sealed_sha256"]:
        yield "its sealed part was changed"


def _of_history(record: Mapping[str, Any], ids: Set[str], model: Mapping[str, Any] | None) -> Iterator[str]:
    """What is wrong with what a record says of earlier ones. model: the facts of the last one."""
    named = record.get("of", record.get("erased"))
    if named is not None and named not in ids:
        yield "no earlier record has the id that it names"
    after = record.get("model")
    if record["kind"] == "change":
        differing = changed(record["before"], record["model"])
        if record["before"] != model or not differing or record["changed"] != differing:
            yield "the change of the model that it tells is not the one that happened"
    elif model is not None and after is not None and changed(model, after):
        yield "its model is another one than before, and no record tells of the change"


def _bytes(text: str) -> bytes:
    """The bytes of base64; none where it is not canonical."""
    try:
        return from_text(text)
    except ValueError:
        return b""


def _head(path: Path, report: LedgerReport) -> LedgerHead | None:
    try:
        return LedgerHead.read(head_path(path))
    except DataError as error:
        report.problems.append(str(error))
        return None


def _of_end(path: Path, head: LedgerHead | None, hashes: Sequence[str], signer: str) -> Iterator[str]:
    """What is wrong with the last byte, and with the head. hashes: of the records, after that of none. A crash may come
    between a record and its head; a process that writes now may be several records ahead.
    """
    size, num, is_open = path.stat().st_size, len(hashes) - 1, is_written(path)
    with path.open("rb") as file:
        file.seek(max(0, size - 1))
        if file.read(1) not in (b"", b"\n") and not is_open:
            yield "its last line is torn: open the ledger with its key, which moves that line aside"
    if head is None:
        return
    if head.records and not is_signed(_bytes(signer), head.signature, head.message):
        yield "the signature of its head does not fit"
    ahead = num - head.records
    if not (0 <= ahead <= (num if is_open else 1) and hashes[head.records] == head.last):
        yield f"its head names {head.records} records, and not the last of its {num} lines"


def open_all(path: Path, entries: Mapping[int, LedgerEntry], report: LedgerReport) -> dict[int, dict[str, Any]]:
    """The sealed parts that there are keys of, checked against the schema; sets the status of the others."""
    keys, opened = record_keys(path).read(), dict[int, dict[str, Any]]()
    erased = {str(entry.record["erased"]) for entry in entries.values() if entry.record["kind"] == "erasure"}
    for number, entry in entries.items():
        if entry.sealed is None:
            continue
        checked = report.records[number]
        key = keys.get(checked.id)
        if key is None:
            told = "erased" if checked.id in erased else "erased, and no record says so"
            checked.status = f"{told if checked.id in keys else 'sealed'}: {UNREAD}"
            continue
        try:
            content = entry.opened(key)
        except (DataError, ValueError) as error:
            checked.problems.append(str(error))
            continue
        wrong = complaint(content, checked.kind)
        if wrong is None:
            opened[number] = content
        else:
            checked.problems.append(f"its sealed part does not follow the schema: {wrong}")
    return opened
