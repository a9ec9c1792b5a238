"""Weights whose matrices are rounded to the block types of GGUF files, as `quantize` asks: to the bytes that an export
in the same type has (`models.gguf.rounding`). All else stays as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daguerre.models.bits import TYPES, converted, floats
from daguerre.models.block_rows import BlockRows
from daguerre.models.core.parameters import part_shapes
from daguerre.models.gguf.file import numbers_of
from daguerre.models.gguf.header import KINDS
from daguerre.models.gguf.rounding import MIX, counts_more, kind_in, rounded
from daguerre.models.model_weights import InBlocks, ModelWeights, Part, Parts

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone

MATRIX = re.compile(r"(?!router)(?:.+\.)?(?:qkv|out|gate_up|up|down)\.weight")
"""Matrices of layers, by their names within them; their low-rank weights are none."""
Rows = list[tuple[slice, str]]
"""Runs of a matrix's rows, and the type of each."""


class RoundedWeights(ModelWeights):
    """The weights of a model, of which matrices are the numbers that their blocks stand for.

    name: one of `rounding.NAMES`. Matrices whose rows are no whole number of blocks stay as they are.
    """

    def __init__(self, weights: ModelWeights, name: str) -> None:
        self.config, self.numbers, self.cannot_pack = weights.config, weights.numbers, weights.cannot_pack
        self.rounding: str = name
        self._weights, self._exact = weights, weights.exact()  # rounded once

    @property
    def paths(self) -> list[Path]:
        """The files that hold them as they were."""
        return self._weights.paths

    @property
    def stored_bits(self) -> float | None:
        """Bits of a weight; None where no matrix is rounded."""
        bits, some = 0.0, False
        for layer in (None, *range(self.config.num_layers)):
            for name, shape in part_shapes(self.config, layer).items():
                types = self._types(layer, name, shape)
                bits += self._bits(shape, types)
                some |= types is not None
        return bits / self.num_parameters if some else None

    def as_stored(self) -> Parts:
        """The same weights, of which rounded matrices are `BlockRows`."""
        return InBlocks(self, lambda layer: self._part(layer, _block_rows))

    def module(self) -> Backbone:
        """The backbone, not rounded."""
        return self._weights.module()

    def part(self, layer: int | None) -> Part:
        """The weights of a part, rounded one matrix at a time."""
        return self._part(layer, self._numbers)

    def _part(self, layer: int | None, made: Callable[[np.ndarray, Rows], Any]) -> Part:
        held, out = self._exact.part(layer), Part()
        for name in list(held):
            array = held.pop(name)
            rows = self._types(layer, name, array.shape)
            out[name] = converted(array, self.numbers) if rows is None else made(array, rows)
        return out

    def _numbers(self, matrix: np.ndarray, types: Rows) -> np.ndarray:
        made = np.concatenate([numbers_of(blocks, kind, self.numbers) for _, kind, blocks in in_blocks(matrix, types)])
        return made.reshape(matrix.shape)

    def _types(self, layer: int | None, name: str, shape: tuple[int, ...]) -> Rows | None:
        """What the rows of a weight become; None for one that stays."""
        config, every = self.config, slice(None)
        if layer is None:
            projects = name == "output.weight" or (config.tied and name == "embedding.weight")
            kind = kind_in(self.rounding, shape[-1], projects=projects)
            return [(every, kind)] if kind is not None and (projects or name == "embedding.weight") else None
        kind = kind_in(self.rounding, shape[-1])
        if kind is None or not MATRIX.fullmatch(name) or (name.startswith("mlp.") and not self._mixes(layer)):
            return None
        counts = self.rounding == MIX and counts_more(layer, config.num_layers)
        more = kind_in(self.rounding, shape[-1], counts=counts)
        assert more is not None
        if name.endswith("down.weight"):
            return [(every, more)]
        if name != "attention.qkv.weight" or more == kind or config.gemma is not None:
            return [(every, kind)]
        values = shape[0] - config.num_kv_heads * config.head_width
        return [(slice(values), kind), (slice(values, None), more)]

    def _mixes(self, layer: int) -> bool:
        """Whether all matrices of a layer's experts have rows of whole blocks, if there are any: all or none are."""
        experts = self.config.experts_of(layer)
        widths = [] if experts is None else [self.config.width, experts.width, experts.shared_width or experts.width]
        return all(kind_in(self.rounding, width) for width in widths)

    def _bits(self, shape: tuple[int, ...], types: Rows | None) -> float:
        if types is None:
            return math.prod(shape) * 8 * TYPES[self.numbers].itemsize
        rows = range(math.prod(shape[:-1]))
        each = ((len(rows[some]), KINDS[kind]) for some, kind in types)
        return sum(8 * num * shape[-1] // kind.block * kind.num_bytes for num, kind in each)


def _block_rows(matrix: np.ndarray, types: Rows) -> BlockRows:
    parts = []
    for some, kind, blocks in in_blocks(matrix, types):
        shape = matrix.shape if len(types) == 1 else (len(blocks), matrix.shape[-1])
        parts.append((some, BlockRows.of(blocks, kind, shape)))
    return BlockRows.joined(matrix.shape, parts)


def in_blocks(matrix: np.ndarray, types: Rows) -> Iterator[tuple[slice, str, np.ndarray]]:
    """Runs of the rows of a matrix, or of several one after the other, with their types and bytes."""
    rows = floats(matrix.reshape(-1, matrix.shape[-1]))
    return ((some, kind, rounded(rows[some], kind)) for some, kind in types)
