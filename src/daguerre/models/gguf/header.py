"""The index of a GGUF file: its metadata, and the type, shape and place of each tensor.

Whatever the file says is compared with what the file has before it is used, and nothing is allocated for a number that
the file could not hold: the layout is that of github.com/ggml-org/ggml, docs/gguf.md, and the same things are refused
as by llama.cpp.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError, UnsupportedError, shown
from daguerre.models.texts import Texts, read_records

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
SPLIT = "split."
"""What the keys of a part begin with: its number from 0, how many parts and tensors there are."""
PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
"""The name of a part of a file, as `llama-gguf-split` writes it."""
MOST_PARTS = 1 << 10
MOST_KEYS, MOST_TENSORS, MOST_ITEMS, MOST_DIMENSIONS = 1 << 16, 1 << 18, 1 << 24, 4
LONGEST_NAME = 1 << 10
"""Bytes of a key, or of the name of a tensor."""
STRING, ARRAY = 8, 9
SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""The types of values, by their number, as `struct` names them."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A type of tensors: so many numbers are stored together in so many bytes."""

    number: int
    block: int
    num_bytes: int


KINDS: dict[str, TensorType] = {
    "F32": TensorType(0, 1, 4),
    "F16": TensorType(1, 1, 2),
    "BF16": TensorType(30, 1, 2),
    "Q4_0": TensorType(2, 32, 18),
    "Q4_1": TensorType(3, 32, 20),
    "Q5_0": TensorType(6, 32, 22),
    "Q5_1": TensorType(7, 32, 24),
    "Q8_0": TensorType(8, 32, 34),
    "Q2_K": TensorType(10, 256, 84),
    "Q3_K": TensorType(11, 256, 110),
    "Q4_K": TensorType(12, 256, 144),
    "Q5_K": TensorType(13, 256, 176),
    "Q6_K": TensorType(14, 256, 210),
}
"""The types that are read, by ggml's names."""
NAME_OF = {kind.number: name for name, kind in KINDS.items()}
OTHERS = {
    **dict(enumerate("IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M".split(), 16)),
    **dict(zip((9, 15, 34, 35, 39, 40), "Q8_1 Q8_K TQ1_0 TQ2_0 MXFP4 NVFP4".split(), strict=True)),
}
"""The names of types that are not read."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor: its type, its shape, the last dimension of which is contiguous, and its bytes in the file, or in that
    one of its parts, from 0.
    """

    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    part: int = 0

    @property
    def num_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.num_bytes // self.num_rows


@dataclass(frozen=True, slots=True)
class Header:
    """The index of a file, `path`, or of all its `parts`, of which that is the first. Arrays of numbers are NumPy's,
    arrays of texts are `Texts`.
    """

    path: Path
    metadata: Mapping[str, Any]
    entries: Mapping[str, TensorInfo]
    parts: Sequence[Path]

    def scalar(self, key: str) -> Any:
        """The value of a key; None where the file has none. CheckpointError for a list."""
        value = self.metadata.get(key)
        if isinstance(value, Texts | np.ndarray):
            raise CheckpointError(f"{self.path}: {key} must be one value, not a list: copy it again")
        return value

    def text(self, key: str) -> str | None:
        """The text of a key; None where the file has none. CheckpointError for anything else."""
        value = self.scalar(key)
        if value is not None and not isinstance(value, str):
            raise CheckpointError(f"{self.path}: {key} must be a text, not {shown(value)}: copy it again")
        return value


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file: a file that begins or is named like one."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC or path.suffix == ".gguf"
    except OSError:
        return path.suffix == ".gguf"


def parts_of(path: Path) -> list[Path]:
    """All parts of the file that a part is of, the first of them first; the path alone where its name is that of no
    part. CheckpointError that names a part that is missing.
    """
    match = PART.fullmatch(path.name)
    count = int(match["count"]) if match else 1
    if match is None or not 1 <= int(match["number"]) <= count <= MOST_PARTS:
        return [path]
    found = [path.with_name(f"{match['name']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = next((part for part in found if not part.is_file()), None)
    if missing is not None:
        raise CheckpointError(f"{missing} is missing: all {count} parts must be in one folder")
    return found


def size_of(path: Path) -> int:
    """The bytes of all parts of a file."""
    return sum(part.stat().st_size for part in parts_of(path))


def stem_of(path: Path) -> str:
    """The name of a file without its end, and without which part it is."""
    match = PART.fullmatch(path.name)
    return match["name"] if match else path.stem


def read_header(path: Path) -> Header:
    """The index of a GGUF file, of all parts where it is one of several.

    CheckpointError, in one line, for a file that is none, is truncated, lacks a part, or whose numbers contradict each
    other or the file; UnsupportedError for types that are not read.
    """
    paths = parts_of(path)
    found = [_read_part(part) for part in paths]
    for number, one in enumerate(found):
        _check_part(one, number, len(found))
    entries = dict[str, TensorInfo]()
    for number, one in enumerate(found):
        if twice := entries.keys() & one.entries.keys():
            raise CheckpointError(f"{one.path} has {shown(min(twice))}, which another part has, too: copy it again")
        entries |= {name: replace(entry, part=number) for name, entry in one.entries.items()}
    whole = found[0].metadata.get(f"{SPLIT}tensors.count", len(entries))
    if whole != len(entries):
        raise CheckpointError(
            f"{paths[0]} says that its parts have {shown(whole)} tensors, and they have {len(entries)}"
        )
    return Header(paths[0], found[0].metadata, entries, paths)


def _check_part(header: Header, number: int, count: int) -> None:
    """That the part at this place says so."""
    says = header.metadata.get(f"{SPLIT}count", 1), header.metadata.get(f"{SPLIT}no", 0)
    if count == 1 and type(says[0]) is int and says[0] > 1:
        raise CheckpointError(
            f"{header.path} is one of {says[0]} parts, and its name does not say which: name them as they were, "
            f"NAME-00001-of-{says[0]:05}.gguf"
        )
    if count > 1 and says != (count, number):
        raise CheckpointError(f"{header.path} is no part {number + 1} of {count}, as it is named: copy it again")


def _read_part(path: Path) -> Header:
    try:
        if not path.stat().st_size:  # which cannot be mapped
            raise CheckpointError(f"{path} is empty: copy it again")
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _Reader(path, content).header()
    except OSError as error:
        raise CheckpointError(f"cannot read {path} ({error.strerror}): check the path") from None


class _Reader:
    """Reads forward through a file; what would go beyond its end is an error."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.size, self.at = path, content, len(content), 0

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} {what}: copy it again")

    def header(self) -> Header:
        if self.content[:4] != MAGIC:
            raise CheckpointError(f"{self.path} is not a GGUF file: it does not begin with GGUF")
        self.at = 4
        version = self.number("I")
        if version not in VERSIONS:
            raise UnsupportedError(f"{self.path} is GGUF version {version}, and versions 2 and 3 are read: convert it")
        num_tensors, num_keys = self.count(MOST_TENSORS, 24, "tensors"), self.count(MOST_KEYS, 13, "keys")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self.text("the name of a key", LONGEST_NAME)
            if key in metadata:
                raise self.error(f"has {shown(key)} twice")
            metadata[key] = self.value(self.number("I"), key)
        return Header(self.path, metadata, self.tensors(num_tensors, metadata), [self.path])

    def number(self, kind: str) -> Any:
        size = struct.calcsize(f"<{kind}")
        if self.at + size > self.size:
            raise self.error("is truncated: its header goes on beyond its end")
        (value,) = struct.unpack_from(f"<{kind}", self.content, self.at)
        self.at += size
        return value

    def count(self, most: int, each: int, what: str) -> int:
        """A number of things that take `each` bytes or more."""
        num: int = self.number("Q")
        if num > most or num * each > self.size - self.at:
            raise self.error(f"says that it has {num:,} {what}, more than it could hold")
        return num

    def text(self, what: str, most: int | None = None) -> str:
        num = self.count(self.size if most is None else most, 1, f"bytes in {what}")
        self.at += num
        try:
            return self.content[self.at - num : self.at].decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"has {what} that is not UTF-8") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.text(f"the text of {shown(key)}")
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALARS:
            raise self.error(f"has a value of the unknown type {kind} as {shown(key)}")
        return self.number(SCALARS[kind])

    def array(self, key: str) -> Any:
        kind = self.number("I")
        if kind == STRING:
            return self.texts(key)
        if kind not in SCALARS:
            raise self.error(f"has an array of the type {kind} as {shown(key)}, which is not read")
        item = np.dtype(SCALARS[kind]).newbyteorder("<")
        num = self.count(MOST_ITEMS, item.itemsize, shown(key))
        self.at += num * item.itemsize
        return np.frombuffer(self.content[self.at - num * item.itemsize : self.at], item)

    def texts(self, key: str) -> Texts:
        num = self.count(MOST_ITEMS, 8, shown(key))
        try:
            found = read_records(np.frombuffer(self.content, np.uint8)[self.at :], num)
        except UnicodeDecodeError:
            raise self.error(f"has a text of {shown(key)} that is not UTF-8") from None
        if found is None:
            raise self.error(f"is truncated: a text of {shown(key)} goes on beyond its end")
        self.at += found[1]
        return found[0]

    def tensors(self, num: int, metadata: Mapping[str, Any]) -> dict[str, TensorInfo]:
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.error(f"has general.alignment={shown(alignment)}, which is no power of two")
        found: dict[str, TensorInfo] = {}
        expected = 0
        for _ in range(num):
            name = self.text("the name of a tensor", LONGEST_NAME)
            if name in found:
                raise self.error(f"has the tensor {shown(name)} twice")
            found[name] = entry = self.entry(name)
            if entry.offset != expected:
                raise self.error(f"says that {shown(name)} is at {entry.offset:,}, and it follows at {expected:,}")
            expected += -(-entry.num_bytes // alignment) * alignment
        start = -(-self.at // alignment) * alignment
        for name, entry in found.items():
            if start + entry.offset + entry.num_bytes > self.size:
                needed, has = start + entry.offset + entry.num_bytes, self.size
                raise self.error(f"is truncated: {shown(name)} ends at byte {needed:,} and the file has {has:,}")
        return {
            name: TensorInfo(entry.kind, entry.shape, start + entry.offset, entry.num_bytes)
            for name, entry in found.items()
        }

    def entry(self, name: str) -> TensorInfo:
        """A tensor, whose offset is from the first one's beginning."""
        dimensions = self.number("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise self.error(f"says that {shown(name)} has {dimensions:,} dimensions")
        shape = tuple(self.number("Q") for _ in range(dimensions))[::-1]
        number, offset = self.number("I"), self.number("Q")
        kind = NAME_OF.get(number)
        if kind is None:
            named = OTHERS.get(number, f"number {number}")
            read = ", ".join(KINDS)
            raise UnsupportedError(
                f"{self.path}: {shown(name)} is of the type {named}, which is not read: use a file of {read}"
            )
        num = math.prod(shape)
        num_bytes = num // KINDS[kind].block * KINDS[kind].num_bytes
        if not num or shape[-1] % KINDS[kind].block:
            raise self.error(f"says that {shown(name)} is {shape} of {kind}, which cannot be")
        if num_bytes > self.size:
            raise self.error(f"is truncated, or lies: {shown(name)} of {num_bytes:,} bytes is longer than the file")
        return TensorInfo(kind, shape, offset, num_bytes)
