"""Packs matrices into the layout that `native/products.h` and `native/grouped.h` read.

A matrix (out, in) becomes panels of COLUMNS outputs, each split into quarters of QUARTER outputs; within a quarter the
32-bit words of the same inputs are adjacent.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from daguerre.models.backends import library as interface
from daguerre.models.backends.disk import ExpertsFile
from daguerre.models.bits import aligned, floats
from daguerre.models.contention import num_threads

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


Matrix = tuple[np.ndarray, np.ndarray | None]
"""A matrix (out, in), and its bias."""


@dataclass(frozen=True)
class PackedMatrix:
    """A packed matrix: its words, and where it has them its bias, and scales and offsets of outputs."""

    weight: np.ndarray
    bias: np.ndarray | None
    scale: np.ndarray | None
    offset: np.ndarray | None
    words: int
    panels: int

    @property
    def arrays(self) -> list[np.ndarray | None]:
        """Its parts."""
        return [self.weight, self.bias, self.scale, self.offset]

    @property
    def struct(self) -> interface.LinearStruct:
        """As the native library reads it."""
        addresses = (None if x is None else x.ctypes.data for x in self.arrays)
        return interface.LinearStruct(*addresses, self.words, self.panels)


class Packing:
    """Packs matrices, and keeps alive the memory that the results point to.

    What is packed is given by functions, which are called where it is not there yet (`kept_weights`).
    """

    def __init__(self, numbers: Numbers, experts: ExpertsFile | None = None) -> None:
        self.numbers, self.experts = numbers, experts
        self.made: list[np.ndarray | PackedMatrix] = []

    def of(self, numbers: Numbers) -> Packing:
        """A packing in another type that shares the memory it keeps alive."""
        other = copy.copy(self)
        other.numbers = numbers
        return other

    @property
    def num_bytes(self) -> int:
        """Bytes of all that is kept alive."""
        every = (one.arrays if isinstance(one, PackedMatrix) else [one] for one in self.made)
        return sum(x.nbytes for some in every for x in some if x is not None)

    def kept(self, make: Callable[[], np.ndarray]) -> np.ndarray:
        """An array that is kept alive."""
        self.made.append(made := np.ascontiguousarray(make()))
        return made

    def hold(self, make: Callable[[], np.ndarray]) -> int:
        """The address of an array that is kept alive."""
        return self.kept(make).ctypes.data

    def linear(self, make: Callable[[], Matrix], narrow: bool = False) -> interface.LinearStruct:
        """Pack a matrix (out, in). A `narrow` one has the words of a multiple of QUARTER inputs, whether tiles can
        multiply them or not.
        """
        return self._matrix(lambda: packed(*make(), self.numbers, narrow)).struct

    def expert(self, make: Callable[[], Matrix]) -> interface.LinearStruct:
        """The same as `linear` for a matrix of an expert, which may be in a file."""
        return self._matrix(lambda: packed(*make(), self.numbers, file=self.experts)).struct

    def _matrix(self, make: Callable[[], PackedMatrix]) -> PackedMatrix:
        self.made.append(made := make())
        return made


def packed(
    weight: np.ndarray,
    bias: np.ndarray | None,
    numbers: Numbers,
    narrow: bool = False,
    file: ExpertsFile | None = None,
) -> PackedMatrix:
    """A matrix (out, in) in packed numbers, in memory or in a file."""
    weight = np.ascontiguousarray(weight if weight.dtype == np.uint16 else floats(weight))
    num_out, num_in = weight.shape
    panels, rounds, words = -(-num_out // COLUMNS), numbers == "int8", words_of(num_in, numbers, narrow)
    size = panels * COLUMNS * words
    made = aligned(size, np.int32) if file is None else file.take(size)
    scale = aligned(panels * COLUMNS, np.float32) if rounds else None
    offset = aligned(panels * COLUMNS, np.int32) if rounds else None
    about = interface.UnpackedStruct(
        *(weight.ctypes.data, num_out, num_in),
        *(int(weight.dtype == np.uint16), PRODUCTS[numbers]),
        *(None if x is None else x.ctypes.data for x in (made, scale, offset)),
        *(words, panels),
    )
    if interface.library().daguerre_pack(ctypes.byref(about), num_threads()):
        raise MemoryError(interface.ERRORS[3])
    wide = None if bias is None else padded(floats(bias), panels * COLUMNS)
    return PackedMatrix(made, wide, scale, offset, words, panels)
