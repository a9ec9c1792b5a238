"""The tensors of a GGUF file: their stored bytes, and the numbers that these stand for. PyTorch is not needed.

Bytes are read into memory of their own and not mapped: a file that is cut while it is read is an error then, and would
end the process if it were mapped.
"""

from __future__ import annotations

from collections.abc import KeysView
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError, MissingExtra, UnsupportedError
from daguerre.models.bits import TYPES, NumberType, converted
from daguerre.models.contention import num_threads
from daguerre.models.gguf.header import KINDS, Header

BLOCK = 1 << 22
"""Numbers that are made at a time without the native library: 16 MB in float32."""


class GgufFile:
    """The tensors of a file, or of all its parts, whose header was read.

    `blocks` gives the bytes of a tensor as they are stored, for whoever computes with quantized weights; `array` its
    numbers, float32, or where it is not quantized as they are stored, of bfloat16 the bits as uint16; `read` the
    numbers in a type.
    """

    def __init__(self, header: Header) -> None:
        self.path: Path = header.path
        self.entries, self.parts = header.entries, header.parts

    def keys(self) -> KeysView[str]:
        """The names of the tensors."""
        return self.entries.keys()

    def blocks(self, name: str) -> np.ndarray:
        """The stored bytes of a tensor, uint8 (rows, bytes of a row); `header.KINDS` has the sizes of a block of its
        type. CheckpointError where the file has become shorter since its header was read.
        """
        entry = self.entries[name]
        stored = read_bytes(self.parts[entry.part], entry.offset, entry.num_bytes)
        return stored.reshape(entry.num_rows, entry.row_bytes)

    def array(self, name: str) -> np.ndarray:
        """A whole tensor, in its shape."""
        entry = self.entries[name]
        if entry.kind not in ("F16", "BF16"):
            return self.read(name, "float32")
        return self.blocks(name).view(np.float16 if entry.kind == "F16" else np.uint16).reshape(entry.shape)

    def read(self, name: str, numbers: NumberType) -> np.ndarray:
        """The numbers of a tensor in a type, in its shape."""
        entry, blocks = self.entries[name], self.blocks(name)
        return numbers_of(blocks, entry.kind, numbers).reshape(entry.shape)

    def floats(self, name: str) -> np.ndarray:
        """A whole tensor as float64, in its shape."""
        return self.read(name, "float32").astype(np.float64)


def read_bytes(path: Path, offset: int, num: int) -> np.ndarray:
    """Bytes of a file, uint8. CheckpointError where it has fewer, or cannot be read."""
    out = np.empty(num, np.uint8)
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            done = 0
            while done < num and (some := file.readinto(out.data[done:])):
                done += some
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): copy it again") from None
    if done < num:
        raise CheckpointError(f"{path} became shorter while it was read: copy it again")
    return out


def numbers_of(blocks: np.ndarray, kind: str, to: NumberType) -> np.ndarray:
    """The numbers (rows, numbers of a row) in a type that stored bytes (rows, bytes of a row) stand for, by the native
    library, whose results are those of `slow_numbers`; without it those.
    """
    from daguerre.models.backends.library import library  # which reads files of its own

    about = KINDS[kind]
    if (kind, to) in (("F32", "float32"), ("BF16", "bfloat16")):
        return np.ascontiguousarray(blocks).view(TYPES[to])
    made = np.empty((len(blocks), blocks.shape[1] // about.num_bytes * about.block), TYPES[to])
    try:
        compiled = library()
    except UnsupportedError:
        step = max(1, BLOCK // made.shape[1])
        for start in range(0, len(made), step):
            made[start : start + step] = converted(slow_numbers(blocks[start : start + step], kind), to)
        return made
    held = np.ascontiguousarray(blocks)
    given = about.number, held.ctypes.data, made.size, made.ctypes.data, to == "bfloat16"
    compiled.daguerre_numbers(*given, num_threads())
    return made


def slow_numbers(blocks: np.ndarray, kind: str) -> np.ndarray:
    """The same by the package `gguf`, as float32, or as they are stored. MissingExtra for quantized ones without it."""
    if kind in ("F32", "F16", "BF16"):
        stored: Any = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[kind]
        return np.array(blocks).view(stored)
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise MissingExtra("gguf", "gguf") from None
    with np.errstate(all="ignore"):  # infinite scales of a damaged file
        made: np.ndarray = dequantize(blocks, GGMLQuantizationType(KINDS[kind].number))
        return made
