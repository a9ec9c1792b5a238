"""Trials of the verifier: ledgers that are tampered with at random, by a stranger and by the owner of the key.

A stranger changes bytes and lines of the file. The owner opens records, changes a number, seals and signs them again,
and writes the chain and the head anew: only the replay can tell.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.audit.canonical import canonical, digest
from daguerre.audit.keys import SigningKey, seal
from daguerre.audit.ledger import FIRST, RECORD, LedgerEntry, LedgerHead, head_path, lines, record_keys
from daguerre.audit.summary import PARTS, concept_summary
from daguerre.audit.verification import Load, verify
from daguerre.model import Model

Records = list[tuple[dict[str, Any], dict[str, Any] | None]]
"""Of each record of a ledger what is in the clear, and the sealed part, opened; None: it has none, or no key."""
DIGITS = b"0123456789"


def tampered(content: bytes, random: np.random.Generator) -> bytes:
    """The content of a ledger after one random change: a bit, a digit, a byte more or less, two neighbors swapped, a
    line left out, doubled or moved, or the end cut off.
    """
    while True:
        changed = CHANGES[int(random.integers(len(CHANGES)))](content, random)
        if changed != content:
            return changed


def _bit(content: bytes, random: np.random.Generator) -> bytes:
    place = int(random.integers(len(content)))
    return content[:place] + bytes([content[place] ^ (1 << int(random.integers(8)))]) + content[place + 1 :]


def _digit(content: bytes, random: np.random.Generator) -> bytes:
    places = np.flatnonzero(np.isin(np.frombuffer(content, dtype=np.uint8), list(DIGITS)))
    place = int(random.choice(places))
    return content[:place] + DIGITS[(one := int(random.integers(10))) : one + 1] + content[place + 1 :]


def _byte_less(content: bytes, random: np.random.Generator) -> bytes:
    place = int(random.integers(len(content)))
    return content[:place] + content[place + 1 :]


def _byte_more(content: bytes, random: np.random.Generator) -> bytes:
    place = int(random.integers(len(content) + 1))
    return content[:place] + bytes([int(random.integers(256))]) + content[place:]


def _neighbors(content: bytes, random: np.random.Generator) -> bytes:
    place = int(random.integers(len(content) - 1))
    return content[:place] + content[place : place + 2][::-1] + content[place + 2 :]


def _line_less(content: bytes, random: np.random.Generator) -> bytes:
    rows = content.splitlines(keepends=True)
    del rows[int(random.integers(len(rows)))]
    return b"".join(rows)


def _line_twice(content: bytes, random: np.random.Generator) -> bytes:
    rows = content.splitlines(keepends=True)
    rows.insert(int(random.integers(len(rows) + 1)), rows[int(random.integers(len(rows)))])
    return b"".join(rows)


def _lines_swapped(content: bytes, random: np.random.Generator) -> bytes:
    rows = content.splitlines(keepends=True)
    one, other = random.integers(len(rows), size=2)
    rows[one], rows[other] = rows[other], rows[one]
    return b"".join(rows)


def _end_cut(content: bytes, random: np.random.Generator) -> bytes:
    return content[: int(random.integers(len(content)))]


CHANGES: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (
    _bit,
    _digit,
    _byte_less,
    _byte_more,
    _neighbors,
    _line_less,
    _line_twice,
    _lines_swapped,
    _end_cut,
)


def num_caught(path: Path, num: int, seed: int = 0) -> int:
    """How many of `num` random changes of a ledger's file are found, without a model."""
    random, caught, content = np.random.default_rng(seed), 0, path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        beside = copied(path, Path(folder))
        for _ in range(num):
            beside.write_bytes(tampered(content, random))
            caught += not verify(beside).sound
    return caught


def copied(path: Path, folder: Path) -> Path:
    """A copy of a ledger, its head and its keys in another folder."""
    for name in (path, head_path(path), record_keys(path).path):
        shutil.copyfile(name, folder / name.name)
    return folder / path.name


def opened(path: Path) -> Records:
    """All records of a ledger, as far as there are keys."""
    keys, out = record_keys(path).read(), Records()
    for line in lines(path):
        entry = LedgerEntry.parse(line)
        key = keys.get(entry.record["id"])
        out.append((entry.record, None if entry.sealed is None or key is None else entry.opened(key)))
    return out


def forge(path: Path, key: SigningKey, edit: Callable[[Records], None]) -> None:
    """What the owner of the key can do: change records, and make everything else fit, also what is said of a record's
    concepts as a whole if that was left as it is.
    """
    records, keys, before, out = opened(path), record_keys(path).read(), FIRST, b""
    said = {record["id"]: copy.deepcopy(record.get("concepts")) for record, _ in records}
    edit(records)
    for number, (record, content) in enumerate(records):
        if content is not None and said.get(record["id"]) and record["concepts"] == said[record["id"]]:
            record["concepts"] |= concept_summary(record["concepts"], content["evidence"])
        secret, sealed = keys.get(record["id"]), None
        if content is not None and secret is not None:
            sealed = seal(canonical(content), secret, record["id"])
            record["sealed_sha256"] = digest(sealed)
        record.update(number=number, previous=before)
        entry = LedgerEntry(record, sealed, key.sign(RECORD + canonical(record)))
        before, out = entry.hash, out + entry.line
    path.write_bytes(out)
    head = LedgerHead(len(records), before)
    head_path(path).write_bytes(LedgerHead(len(records), before, key.sign(head.message)).line)


def num_forgeries_caught(path: Path, key: SigningKey, model: Model | Load, num: int, seed: int = 0) -> int:
    """How many of `num` random forgeries, of a number each, are found by replay."""
    random, caught = np.random.default_rng(seed), 0
    for _ in range(num):
        with tempfile.TemporaryDirectory() as folder:
            beside = copied(path, Path(folder))
            forge(beside, key, lambda records: forged_number(records, random))
            caught += not verify(beside, model).sound
    return caught


def _sums(record: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """The numbers that sum a record up: the object that each is in, and its key."""
    said = record["concepts"] or {"shares": None, "fvu": None}
    shares = [(said["shares"], part) for part in PARTS] if said["shares"] else []
    fvu = [] if said["fvu"] is None else [(said, "fvu")]
    return [(record["output"], "tokens"), (record["output"], "characters"), *shares, *fvu]


def forged_number(records: Records, random: np.random.Generator) -> None:
    """Change one number of one record: a committed token, its probability, its logit or a part of it, a concept's
    number, weight or contribution, or one that sums a record up.
    """
    while True:
        record, content = records[int(random.integers(len(records)))]
        steps = [] if content is None else [n for n, step in enumerate(content["evidence"]) if step is not None]
        if content is None or not steps:
            continue
        number = int(random.choice(steps))
        columns, step = content["evidence"][number], content["trace"]["steps"][number]
        names, sums = [*columns, "tokens", "probabilities"], _sums(record)
        which = int(random.integers(len(names) + len(sums)))
        if which >= len(names):
            held, key = sums[which - len(names)]
            held[key] += (-0.1 if held[key] > 0.5 else 0.1) if key in PARTS else 1
            return
        name = names[which]
        place = int(random.choice([n for n, value in enumerate(columns["logit"]) if value is not None] or [0]))
        column = step[name] if name in step else columns[name]
        before = copy.deepcopy(column)
        if name == "tokens":
            column[place] = max(0, column[place] + int(random.choice([-1, 1])))
        elif name == "probabilities":
            column[place] *= 0.5
        elif isinstance(column[place], list):
            if column[place]:
                among = int(random.integers(len(column[place])))
                column[place][among] += 1 if name == "concepts" else float(random.choice([-1, 1]))
        elif column[place] is not None:
            column[place] += float(random.choice([-1, 1])) * max(1.0, 0.1 * abs(column[place]))
        if column != before:
            return
