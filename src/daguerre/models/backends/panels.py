"""Packs matrices into the layout that `native/products.h` and `native/grouped.h` read.

A matrix (out, in) becomes panels of COLUMNS outputs, each split into quarters of QUARTER outputs; within a quarter the
32-bit words of the same inputs are adjacent.
"""

from __future__ import annotations

import ctypes
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.backends import library as interface
from daguerre.models.backends.disk import ExpertsFile
from daguerre.models.backends.rounding import IN_CHUNK

COLUMNS, QUARTER, GROUP, WORDS = 64, 16, 16, 16
"""Outputs of a panel; outputs of a quarter; size of the alternating groups of gates and values; words of a row are a
multiple of WORDS."""
CHUNK_WORDS = 9
"""Words of IN_CHUNK inputs of a column in 4 bits: 8 of codes, 1 of the scales of two groups."""
Numbers = Literal["float32", "bfloat16", "int8", "int4"]
"""Types of numbers of packed matrices: `Float32` and so on of `native/products.h`."""
PRODUCTS: dict[Numbers, int] = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}
TYPES: dict[torch.dtype, Numbers] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
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


def interleaved(gate_up: Tensor) -> Tensor:
    """GROUP rows of gates and GROUP rows of values, alternating: (2 * inner width rounded up to GROUP, D)."""
    halves = gate_up.chunk(2)
    if len(halves[0]) % GROUP:
        halves = tuple(F.pad(x, (0, 0, 0, -len(x) % GROUP)) for x in halves)
    gate, up = (x.unflatten(0, (-1, GROUP)) for x in halves)
    return torch.stack([gate, up], dim=1).flatten(0, 2)


def gates(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A matrix of gates and values, and its bias, in alternating groups."""
    return interleaved(weight), None if bias is None else interleaved(bias[:, None])[:, 0]


class Packing:
    """Packs matrices, and keeps alive the memory that the results point to."""

    def __init__(self, numbers: Numbers, experts: ExpertsFile | None = None) -> None:
        self.numbers, self.experts = numbers, experts
        self._held: list[Tensor] = []

    def of(self, numbers: Numbers) -> Packing:
        """A packing in another type that shares the memory it keeps alive."""
        other = Packing(numbers, self.experts)
        other._held = self._held
        return other

    def expert(self, weight: Tensor, bias: Tensor | None = None) -> interface.LinearStruct:
        """The same as `linear` for a matrix of an expert, which may be in a file."""
        return self._linear(weight, bias, words_of(weight.shape[1], self.numbers), self.experts)

    def hold(self, x: Tensor) -> int:
        """The address of a tensor, which is kept alive."""
        self._held.append(x.contiguous())
        return self._held[-1].data_ptr()

    @property
    def num_bytes(self) -> int:
        """Bytes of all that is kept alive."""
        return sum(x.nbytes for x in self._held)

    def linear(self, weight: Tensor, bias: Tensor | None = None, narrow: bool = False) -> interface.LinearStruct:
        """Pack a matrix (out, in). A `narrow` one has the words of a multiple of QUARTER inputs, whether tiles can
        multiply them or not.
        """
        return self._linear(weight, bias, words_of(weight.shape[1], self.numbers, narrow), None)

    def _linear(
        self, weight: Tensor, bias: Tensor | None, words: int, file: ExpertsFile | None
    ) -> interface.LinearStruct:
        weight = (weight if weight.dtype in TYPES else weight.float()).contiguous()
        num_out, num_in = weight.shape
        panels, rounds = -(-num_out // COLUMNS), self.numbers == "int8"
        size = panels * COLUMNS * words
        made = torch.empty(size, dtype=torch.int32) if file is None else file.take(size)
        scale = torch.empty(panels * COLUMNS, dtype=torch.float32) if rounds else None
        offset = torch.empty(panels * COLUMNS, dtype=torch.int32) if rounds else None
        about = interface.UnpackedStruct(
            *(weight.data_ptr(), num_out, num_in),
            *(int(weight.dtype == torch.bfloat16), PRODUCTS[self.numbers]),
            *(None if x is None else x.data_ptr() for x in (made, scale, offset)),
            *(words, panels),
        )
        if interface.library().daguerre_pack(ctypes.byref(about), torch.get_num_threads()):
            raise MemoryError(interface.ERRORS[3])
        padded = None if bias is None else F.pad(bias.float(), (0, panels * COLUMNS - len(bias)))
        more = (None if x is None else self.hold(x) for x in (padded, scale, offset))
        return interface.LinearStruct(self.hold(made), *more, words, panels)
