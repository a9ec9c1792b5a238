"""The tensors of a GGUF file: mapped into memory, and made numbers a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, KeysView
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import MissingExtra
from daguerre.models.gguf.header import KINDS, Header, read_header

BLOCK = 1 << 22
"""Numbers that are made at a time: 16 MB in float32."""


class GgufFile:
    """A file, or all its parts, to read tensors from, as a context; it has the methods of a safetensors file that are
    used here.

    `blocks` gives the bytes of a tensor as they are stored, for whoever computes with quantized weights; `rows` gives
    its numbers.
    """

    def __init__(self, path: Path, header: Header | None = None) -> None:
        self.header = read_header(path, texts=False) if header is None else header
        self._bytes: list[np.ndarray] = [np.memmap(part, mode="r") for part in self.header.parts]

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes = []  # a map goes with the last array that is made of it

    def keys(self) -> KeysView[str]:
        """The names of the tensors."""
        return self.header.entries.keys()

    def blocks(self, name: str) -> np.ndarray:
        """The stored bytes of a tensor, uint8 (rows, bytes of a row), mapped from the file; `header.KINDS` has the
        sizes of a block of its type.
        """
        entry = self.header.entries[name]
        stored = self._bytes[entry.part][entry.offset : entry.offset + entry.num_bytes]
        return stored.reshape(entry.num_rows, entry.row_bytes)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows of a tensor, (rows, numbers of a row): of its own type, or float32 where that is quantized."""
        return numbers(self.blocks(name)[start:stop], self.header.entries[name].kind)

    def row_blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """Parts of a tensor of BLOCK numbers, or of one row or one matrix, each with the number of its first one."""
        entry = self.header.entries[name]
        if len(entry.shape) < 2:
            yield 0, self.get_tensor(name)
            return
        within = entry.num_rows // entry.shape[0]  # rows of a matrix, of a tensor that has several
        step = max(1, BLOCK // (within * entry.shape[-1]))
        for start in range(0, entry.shape[0], step):
            part = self.rows(name, start * within, (start + step) * within)
            yield start, part.reshape(-1, *entry.shape[1:])

    def get_tensor(self, name: str) -> Tensor:
        """A whole tensor, in its shape."""
        return self.rows(name).reshape(self.header.entries[name].shape)


def numbers(blocks: np.ndarray, kind: str) -> Tensor:
    """The numbers (rows, numbers of a row) that stored bytes (rows, bytes of a row) stand for. MissingExtra for
    quantized ones without the package `gguf`.
    """
    if kind in ("F32", "F16", "BF16"):
        stored: Any = {"F32": np.float32, "F16": np.float16, "BF16": np.int16}[kind]
        made = torch.from_numpy(np.array(blocks).view(stored))
        return made.view(torch.bfloat16) if kind == "BF16" else made
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise MissingExtra("gguf", "gguf") from None
    with np.errstate(all="ignore"):  # infinite scales of a damaged file
        return torch.from_numpy(dequantize(blocks, GGMLQuantizationType(KINDS[kind].number)))
