"""Matrices as rows of GGUF's blocks: the bytes of a file, which the native backend multiplies without widening them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from daguerre.models.gguf.file import numbers_of
from daguerre.models.gguf.header import KINDS, NAME_OF

NUMBER_KINDS = ("F32", "F16", "BF16")
"""Types whose numbers are stored one by one."""


def is_block_kind(kind: str) -> bool:
    """Whether a type of stored numbers, by its name, is one of blocks."""
    return kind in KINDS and kind not in NUMBER_KINDS


@dataclass(frozen=True, eq=False)
class BlockRows:
    """Rows of `num_in` numbers each, in blocks; or several such matrices, one after the other.

    addresses  uint64, of any shape: where the bytes of each row begin; 0: a row of zeros
    kinds      int32, of the same shape: ggml's number of each row's type
    held       the arrays that have the bytes
    """

    addresses: np.ndarray
    kinds: np.ndarray
    num_in: int
    held: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, blocks: np.ndarray, kind: str, shape: tuple[int, ...]) -> BlockRows:
        """The matrix, or matrices, of a shape whose stored bytes are these, uint8."""
        held = np.ascontiguousarray(blocks).reshape(*shape[:-1], -1)
        row, num = held.shape[-1], int(np.prod(shape[:-1]))
        addresses = held.ctypes.data + row * np.arange(num, dtype=np.uint64)
        kinds = np.full(shape[:-1], KINDS[kind].number, np.int32)
        return cls(addresses.reshape(shape[:-1]), kinds, shape[-1], (held,))

    @classmethod
    def joined(cls, shape: tuple[int, ...], parts: list[tuple[Any, BlockRows]]) -> BlockRows:
        """The matrices of a shape whose parts, by their index among rows, are these."""
        addresses, kinds = np.zeros(shape[:-1], np.uint64), np.zeros(shape[:-1], np.int32)
        for index, part in parts:
            addresses[index], kinds[index] = part.addresses, part.kinds
        return cls(addresses, kinds, shape[-1], sum((part.held for _, part in parts), ()))

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array of the numbers."""
        return *self.addresses.shape, self.num_in

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, index: Any) -> BlockRows:
        """Some of the rows, or one of the matrices."""
        return self.changed(lambda rows: rows[index])

    def changed(self, change: Callable[[np.ndarray], np.ndarray]) -> BlockRows:
        """Rows that were moved, left out or padded by a function of arrays; padding is rows of zeros."""
        return BlockRows(change(self.addresses), change(self.kinds), self.num_in, self.held)

    def numbers(self) -> np.ndarray:
        """The numbers, float32."""
        made = np.zeros((self.addresses.size, self.num_in), np.float32)
        addresses, kinds = self.addresses.ravel(), self.kinds.ravel()
        for number in np.unique(kinds[addresses != 0]).tolist():
            name, (places,) = NAME_OF[number], np.nonzero((kinds == number) & (addresses != 0))
            size = self.num_in // KINDS[name].block * KINDS[name].num_bytes
            rows = b"".join(ctypes.string_at(address, size) for address in addresses[places].tolist())
            made[places] = numbers_of(np.frombuffer(rows, np.uint8).reshape(-1, size), name, "float32")
        return made.reshape(self.shape)


def in_q8_0(matrix: np.ndarray) -> BlockRows:
    """A matrix (out, in) of float32 numbers, rounded to blocks of Q8_0; rows are padded with zeros to whole blocks."""
    wide = np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % 32))).reshape(len(matrix), -1, 32)
    scale = (np.abs(wide).max(-1, keepdims=True) / 127).astype(np.float16)
    step = scale.astype(np.float32)
    codes = np.divide(wide, step, out=np.zeros_like(wide), where=step > 0)
    stored = np.concatenate([scale.view(np.uint8), np.rint(codes).clip(-127, 127).astype(np.int8).view(np.uint8)], -1)
    return BlockRows.of(stored, "Q8_0", (len(matrix), wide.shape[1] * 32))
