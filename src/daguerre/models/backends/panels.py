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
from daguerre.models.bits import aligned, floats, number_type
from daguerre.models.block_rows import BlockRows
from daguerre.models.contention import num_threads
from daguerre.models.gguf.header import NAME_OF

COLUMNS, QUARTER, GROUP, WORDS = 64, 16, 16, 16
"""Outputs of a panel; outputs of a quarter; size of the alternating groups of gates and values; words of a row are a
multiple of WORDS."""
IN_CHUNK, CHUNK_WORDS = 64, 9
"""Inputs of a column that are packed together in 4 bits, and their words: 8 of codes, 1 of the scales of two groups."""
Numbers = Literal["float32", "bfloat16", "int8", "int4", "stored"]
"""Types of numbers of packed matrices: `Float32` and so on of `native/products.h`; "stored": each matrix as it is,
blocks among them.
"""
PRODUCTS: dict[Numbers, int] = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3, "stored": 4}
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


Matrix = tuple[np.ndarray | BlockRows, np.ndarray | None]
"""A matrix (out, in), and its bias."""


def gates(weight: np.ndarray | BlockRows, bias: np.ndarray | None) -> Matrix:
    """A matrix of gates and values, and its bias, in alternating groups."""
    rows = weight.changed(interleaved) if isinstance(weight, BlockRows) else interleaved(weight)
    return rows, None if bias is None else interleaved(bias)


@dataclass(frozen=True)
class PackedMatrix:
    """A packed matrix: its words, and where it has them its bias, scales and offsets of outputs, and where quarters of
    blocks begin, with their types. kind: of PRODUCTS.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    scale: np.ndarray | None
    offset: np.ndarray | None
    quarters: np.ndarray | None
    words: int
    panels: int
    kind: int

    @property
    def arrays(self) -> list[np.ndarray | None]:
        """Its parts."""
        return [self.weight, self.bias, self.scale, self.offset, self.quarters]

    @property
    def struct(self) -> interface.LinearStruct:
        """As the native library reads it."""
        *addresses, quarters = (None if x is None else x.ctypes.data for x in self.arrays)
        return interface.LinearStruct(*addresses, self.words, self.panels, quarters, self.kind)


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
    def block_types(self) -> set[str]:
        """The types of blocks in matrices, by ggml's names; WIDENED for those that are another type than the file's."""
        found = (
            one.quarters[:-1, 1] for one in self.made if isinstance(one, PackedMatrix) and one.quarters is not None
        )
        return {NAME_OF.get(number, WIDENED) for types in found for number in np.unique(types).tolist()}

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
    weight: np.ndarray | BlockRows,
    bias: np.ndarray | None,
    numbers: Numbers,
    narrow: bool = False,
    file: ExpertsFile | None = None,
) -> PackedMatrix:
    """A matrix (out, in) in packed numbers, in memory or in a file."""
    if isinstance(weight, BlockRows):
        if numbers == "stored":
            return packed_blocks(weight, bias, file)
        weight = weight.numbers()
    if numbers == "stored":
        numbers = number_type(weight)
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
    return PackedMatrix(made, _bias(bias, panels), scale, offset, None, words, panels, PRODUCTS[numbers])


def _bias(bias: np.ndarray | None, panels: int) -> np.ndarray | None:
    return None if bias is None else padded(floats(bias), panels * COLUMNS)


WORDS_OF = {2: 9, 3: 10, 6: 11, 7: 12, 8: 17, 12: 9, 13: 11, 14: 13.25}
"""Words that 64 inputs of a column take when packed, by ggml's number of the type; all others are widened to WIDE."""
WIDE, WIDE_WORDS, SMALLEST = -1, 24, 2
WIDENED = "widened"
IN_BLOCK = 32
"""Inputs of a group."""


def packed_blocks(rows: BlockRows, bias: np.ndarray | None, file: ExpertsFile | None = None) -> PackedMatrix:
    """Rows of blocks, packed as they are stored. A quarter whose rows are of several types, or of one that is not
    multiplied as it is, is widened without a rounding.
    """
    panels, groups = -(-len(rows) // COLUMNS), round_up(rows.num_in, 2 * IN_BLOCK) // IN_BLOCK
    addresses, kinds = padded(rows.addresses, panels * COLUMNS), padded(rows.kinds, panels * COLUMNS)
    quarters = _quarters(addresses, kinds, groups)
    size = int(quarters[-1, 0])
    made = aligned(size, np.int32) if file is None else file.take(size)
    about = interface.UnpackedBlocksStruct(
        *(x.ctypes.data for x in (addresses, kinds, made, quarters)), groups, panels, rows.num_in
    )
    if interface.library().daguerre_pack_blocks(ctypes.byref(about), num_threads()):
        raise MemoryError(interface.ERRORS[3])
    return PackedMatrix(made, _bias(bias, panels), None, None, quarters, groups, panels, PRODUCTS["stored"])


def _quarters(addresses: np.ndarray, kinds: np.ndarray, groups: int) -> np.ndarray:
    """Where the words of each quarter begin, and its type, int64 (quarters + 1, 2)."""
    empty, kinds = (addresses == 0).reshape(-1, QUARTER), kinds.reshape(-1, QUARTER)
    most, least = np.where(empty, -1, kinds).max(1), np.where(empty, 1 << 16, kinds).min(1)
    types = np.where(most < 0, SMALLEST, np.where((most == least) & np.isin(most, [*WORDS_OF]), most, WIDE))
    sizes = [int(WORDS_OF.get(number, WIDE_WORDS) * groups / 2) * QUARTER for number in types.tolist()]
    return np.stack([np.cumsum([0, *sizes]), np.append(types, 0)], axis=1).astype(np.int64)
