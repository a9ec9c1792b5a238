"""Packs matrices into the layout that `native/products.h` and `native/grouped.h` read.

A matrix (out, in) becomes panels of COLUMNS outputs, each split into quarters of QUARTER outputs; within a quarter the
32-bit words of the same inputs are adjacent.
"""

from __future__ import annotations

import ctypes
from typing import Literal

import numpy as np

from daguerre.models.backends import library as interface
from daguerre.models.backends.disk import ExpertsFile
from daguerre.models.bits import aligned, floats
from daguerre.models.thread_count import num_threads

COLUMNS, QUARTER, GROUP, WORDS = 64, 16, 16, 16
"""Outputs of a panel; outputs of a quarter; size of the alternating groups of gates and values; words of a row are a
multiple of WORDS."""
IN_CHUNK, CHUNK_WORDS = 64, 9
"""Inputs of a column that are packed together in 4 bits, and their words: 8 of codes, 1 of the scales of two groups."""
Numbers = Literal["float32", "bfloat16", "int8", "int4"]
"""Types of numbers of packed matrices: `Float32` and so on of `native/products.h`."""
PRODUCTS: dict[Numbers, int] = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}
IN_WORD: dict[Numbers, int] = {"float32": 1, "bfloat16": 2, "int8": 4}


def round_up(num: int, to: int) -> int:
    """The smallest multiple of `to` that is at least `num`."""
    return -(-num // to) * to


def words_of(num_in: int, numbers: Numbers, narrow: bool = False) -> int:
    """Words of a column of so many inputs."""
    if numbers == "int4":
        return -(-num_in // IN_CHUNK) * CHUNK_WORDS
    words = round_up(num_in, QUARTER) // IN_WORD[numbers]
    return words if narrow else round_up(words, WORDS)


def padded(x: np.ndarray, num: int, value: float = 0) -> np.ndarray:
    """The array, with as many rows of a value behind it as make `num`."""
    return np.pad(x, [(0, num - len(x)), *((0, 0) for _ in x.shape[1:])], constant_values=value)


def interleaved(gate_up: np.ndarray) -> np.ndarray:
    """GROUP rows of gates and GROUP rows of values, alternating: (2 * inner width rounded up to GROUP, D)."""
    inner = len(gate_up) // 2
    halves = [padded(half, round_up(inner, GROUP)) for half in (gate_up[:inner], gate_up[inner:])]
    groups = [half.reshape(-1, 1, GROUP, *half.shape[1:]) for half in halves]
    return np.concatenate(groups, axis=1).reshape(-1, *gate_up.shape[1:])


def gates(weight: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """A matrix of gates and values, and its bias, in alternating groups."""
    return interleaved(weight), None if bias is None else interleaved(bias)


class Packing:
    """Packs matrices, and keeps alive the memory that the results point to."""

    def __init__(self, numbers: Numbers, experts: ExpertsFile | None = None) -> None:
        self.numbers, self.experts = numbers, experts
        self._held: list[np.ndarray] = []

    def of(self, numbers: Numbers) -> Packing:
        """A packing in another type that shares the memory it keeps alive."""
        other = Packing(numbers, self.experts)
        other._held = self._held
        return other

    def expert(self, weight: np.ndarray, bias: np.ndarray | None = None) -> interface.LinearStruct:
        """The same as `linear` for a matrix of an expert, which may be in a file."""
        return self._linear(weight, bias, words_of(weight.shape[1], self.numbers), self.experts)

    def hold(self, x: np.ndarray) -> int:
        """The address of an array, which is kept alive."""
        self._held.append(np.ascontiguousarray(x))
        return self._held[-1].ctypes.data

    @property
    def num_bytes(self) -> int:
        """Bytes of all that is kept alive."""
        return sum(x.nbytes for x in self._held)

    def linear(
        self, weight: np.ndarray, bias: np.ndarray | None = None, narrow: bool = False
    ) -> interface.LinearStruct:
        """Pack a matrix (out, in). A `narrow` one has the words of a multiple of QUARTER inputs, whether tiles can
        multiply them or not.
        """
        return self._linear(weight, bias, words_of(weight.shape[1], self.numbers, narrow), None)

    def _linear(
        self, weight: np.ndarray, bias: np.ndarray | None, words: int, file: ExpertsFile | None
    ) -> interface.LinearStruct:
        weight = np.ascontiguousarray(weight if weight.dtype == np.uint16 else floats(weight))
        num_out, num_in = weight.shape
        panels, rounds = -(-num_out // COLUMNS), self.numbers == "int8"
        size = panels * COLUMNS * words
        made = aligned(size, np.int32) if file is None else file.take(size)
        scale = aligned(panels * COLUMNS, np.float32) if rounds else None
        offset = aligned(panels * COLUMNS, np.int32) if rounds else None
        about = interface.UnpackedStruct(
            *(weight.ctypes.data, num_out, num_in),
            *(int(weight.dtype == np.uint16), PRODUCTS[self.numbers]),
            *(None if x is None else x.ctypes.data for x in (made, scale, offset)),
            *(words, panels),
        )
        if interface.library().daguerre_pack(ctypes.byref(about), num_threads()):
            raise MemoryError(interface.ERRORS[3])
        wide = None if bias is None else padded(floats(bias), panels * COLUMNS)
        more = (None if x is None else self.hold(x) for x in (wide, scale, offset))
        return interface.LinearStruct(self.hold(made), *more, words, panels)
