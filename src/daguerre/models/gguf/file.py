"""The tensors of a GGUF file: mapped into memory, and made numbers a few rows at a time. PyTorch is not needed."""

from __future__ import annotations

from collections.abc import Iterator, KeysView
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError, MissingExtra
from daguerre.models.gguf.header import KINDS, Header

BLOCK = 1 << 22
"""Numbers that are made at a time: 16 MB in float32."""


class GgufFile:
    """The tensors of a file, or of all its parts, whose header was read. They can be read in `with file.open():`.

    `blocks` gives the bytes of a tensor as they are stored, for whoever computes with quantized weights; `rows` and
    what is made of it give its numbers: float32, or where it is not quantized as they are stored, the bits of a
    bfloat16 as int16.
    """

    def __init__(self, header: Header) -> None:
        self.path: Path = header.path
        self.entries, self._parts = header.entries, header.parts
        self._bytes: list[np.ndarray] = []

    def open(self) -> GgufFile:
        """The file as a context in which it is mapped. CheckpointError where it has become shorter since its header
        was read.
        """
        return self

    def __enter__(self) -> GgufFile:
        try:
            self._bytes = [np.memmap(part, mode="r") for part in self._parts]
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path} cannot be read ({error}): copy it again") from None
        for entry in self.entries.values():
            if entry.offset + entry.num_bytes > len(self._bytes[entry.part]):
                raise CheckpointError(f"{self._parts[entry.part]} became shorter while it was read: copy it again")
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes = []  # a map goes with the last array that is made of it

    def keys(self) -> KeysView[str]:
        """The names of the tensors."""
        return self.entries.keys()

    def blocks(self, name: str) -> np.ndarray:
        """The stored bytes of a tensor, uint8 (rows, bytes of a row), mapped from the file; `header.KINDS` has the
        sizes of a block of its type.
        """
        entry = self.entries[name]
        stored = self._bytes[entry.part][entry.offset : entry.offset + entry.num_bytes]
        return stored.reshape(entry.num_rows, entry.row_bytes)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows of a tensor, (rows, numbers of a row)."""
        return numbers(self.blocks(name)[start:stop], self.entries[name].kind)

    def row_blocks(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Parts of a tensor of BLOCK numbers, or of one row or one matrix, each with the number of its first one."""
        entry = self.entries[name]
        if len(entry.shape) < 2:
            yield 0, self.array(name)
            return
        within = entry.num_rows // entry.shape[0]  # rows of a matrix, of a tensor that has several
        step = max(1, BLOCK // (within * entry.shape[-1]))
        for start in range(0, entry.shape[0], step):
            part = self.rows(name, start * within, (start + step) * within)
            yield start, part.reshape(-1, *entry.shape[1:])

    def array(self, name: str) -> np.ndarray:
        """A whole tensor, in its shape."""
        return self.rows(name).reshape(self.entries[name].shape)

    def floats(self, name: str) -> np.ndarray:
        """A whole tensor as float64, in its shape."""
        array = self.array(name)
        if array.dtype == np.int16:
            array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float64)


def numbers(blocks: np.ndarray, kind: str) -> np.ndarray:
    """The numbers (rows, numbers of a row) that stored bytes (rows, bytes of a row) stand for; of BF16 their bits, as
    int16. MissingExtra for quantized ones without the package `gguf`.
    """
    if kind in ("F32", "F16", "BF16"):
        stored: Any = {"F32": np.float32, "F16": np.float16, "BF16": np.int16}[kind]
        return np.array(blocks).view(stored)
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise MissingExtra("gguf", "gguf") from None
    with np.errstate(all="ignore"):  # infinite scales of a damaged file
        made: np.ndarray = dequantize(blocks, GGMLQuantizationType(KINDS[kind].number))
        return made
