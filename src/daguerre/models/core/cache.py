"""Cached keys and values of clean rows: exact, because a clean row never depends on anything that may still change; or,
as an option, approximated by 8-bit numbers, or kept although they are out of date (`models.stale`).

Letters: B examples, K key-value heads, C allocated rows, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.frequencies import refuse_to_move as refuse_to_move
from daguerre.models.core.parameters import ROUND as ROUND
from daguerre.models.core.rotary import rotary_tables, rotate

INT8 = 127
"""The largest code."""


def to_int8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Int8 codes (..., H) of numbers, and scales (..., 1) of `dtype`: 1/127 of the largest magnitude of each row of H.

    The scale is rounded to `dtype` first, so that codes times scales are as close to the numbers as possible.
    """
    x = x.float()
    scales = (x.abs().amax(-1, keepdim=True) / INT8).to(dtype)
    return (x / scales.clamp_min(torch.finfo(dtype).tiny)).round_().clamp_(-INT8, INT8).to(torch.int8), scales


class KeyValueCache:
    """Keys and values, (layers, B, K, C, H), written in place.

    A forward reads the first `length` rows and, through `extend`, stores its rows after them. `commit` makes the
    clean ones visible to the next forward; rows that are never committed are scratch.

    int8: an approximation. Every key and value, those of the current forward too, is rounded to a multiple of 1/127 of
    the largest magnitude of its row and head (`to_int8`) before any row attends to it. So, as with an exact cache, an
    answer does not depend on which rows were cached. Needs little more than half of the memory of bfloat16.
    """

    shares, kept_from = False, 0

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        *,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        int8: bool = False,
        layers: Sequence[int] | None = None,
    ) -> None:
        """layers: the layers whose rows it holds, all of one shape; None: all."""
        numbers = range(config.num_layers) if layers is None else layers
        ((heads, width),) = {config.key_shapes[number] for number in numbers}
        shape = (len(numbers), batch, heads, ROUND, width)
        held_in = torch.int8 if int8 else dtype
        self.keys, self.values = (torch.zeros(shape, dtype=held_in, device=device) for _ in range(2))
        self.scales = torch.zeros((*shape[:-1], 2), dtype=dtype, device=device) if int8 else None
        self.config, self.capacity, self.length = config, capacity, 0

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values, and of their scales."""
        return sum(x.nbytes for x in (self.keys, self.values, self.scales) if x is not None)

    def read(self, layer: int, num_rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's first rows, (B, K, rows, H) each; by default the first `length`."""
        rows = slice(self.length if num_rows is None else num_rows)
        keys, values = self.keys[layer, :, :, rows], self.values[layer, :, :, rows]
        if self.scales is None:
            return keys, values
        scales = self.scales[layer, :, :, rows]
        return keys * scales[..., :1], values * scales[..., 1:]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store rows of one layer, (B, K, rows, H), after the last committed row."""
        rows = slice(self.length, self.length + keys.shape[2])
        if self.scales is not None:
            keys, key_scales = to_int8(keys, self.scales.dtype)
            values, value_scales = to_int8(values, self.scales.dtype)
            self.scales[layer, :, :, rows] = torch.cat([key_scales, value_scales], dim=-1)
        self.keys[layer, :, :, rows], self.values[layer, :, :, rows] = keys, values

    def extend(self, layer: int, keys: Tensor, values: Tensor, num_clean: int) -> tuple[Tensor, Tensor]:
        """Store one layer's new rows, (B, K, rows, H), the first `num_clean` of them clean. Returns all keys and values
        to attend to: those of the first `length` rows and of the new ones.
        """
        num = keys.shape[2]
        self.reserve(self.length + num, self.length + num_clean)
        self.write(layer, keys, values)
        return self.read(layer, self.length + num)

    def reserve(self, num_rows: int, num_clean: int) -> None:
        """Allocate memory for `num_rows` rows, the first `num_clean` of them clean. InputError if these exceed the
        capacity.
        """
        if num_clean > self.capacity:
            raise InputError(f"the cache holds {self.capacity} rows and {num_clean} are needed: ask for fewer tokens")
        if num_rows > self.keys.shape[3]:
            more = -(-max(num_rows, min(self.keys.shape[3] * 3 // 2, self.capacity)) // ROUND) * ROUND
            self.keys, self.values = self._longer(self.keys, more), self._longer(self.values, more)
            self.scales = None if self.scales is None else self._longer(self.scales, more)

    def _longer(self, stored: Tensor, num_rows: int) -> Tensor:
        longer = stored.new_zeros(*stored.shape[:3], num_rows, stored.shape[4])
        longer[:, :, :, : self.length] = stored[:, :, :, : self.length]
        return longer

    def commit(self, num_rows: int) -> None:
        """Make the first `num_rows` rows stored by the last forward part of the cache."""
        self.length += num_rows

    def reaches(self, length: int) -> bool:
        """Yes: all rows are kept, also those that no row sees."""
        return True

    def truncate(self, length: int) -> None:
        """Discard all rows after the first `length`."""
        self.length = min(self.length, length)

    @property
    def kind(self) -> str:
        """What rows must have in common to be copied; see `KeyCache`."""
        return f"torch {self.keys.dtype} {self.scales is not None}"

    def copy(self, start: int, stop: int) -> list[list[Tensor]]:
        """A copy of rows; see `KeyCache`."""
        numbers = range(start, stop, ROUND)
        return [[stored[:, :, :, at : at + ROUND].clone() for stored in self._stored] for at in numbers]

    def append(self, rows: list[list[Tensor]]) -> int:
        """Add copied rows; see `KeyCache`."""
        self.reserve(self.length + len(rows) * ROUND, self.length)
        for page in rows:
            for stored, more in zip(self._stored, page, strict=True):
                stored[:, :, :, self.length : self.length + ROUND] = more
            self.length += ROUND
        return len(rows)

    def free(self) -> None:
        """Discard all rows, and their memory."""
        self.length = 0
        self.keys, self.values = self.keys[:, :, :, :0].clone(), self.values[:, :, :, :0].clone()
        self.scales = None if self.scales is None else self.scales[:, :, :, :0].clone()

    @property
    def _stored(self) -> list[Tensor]:
        return [self.keys, self.values, *([] if self.scales is None else [self.scales])]


def shifted_keys(config: ModelConfig, keys: Tensor, by: Tensor) -> Tensor:
    """Keys (..., rows, H) after their rows are moved right by `by`, int64 (rows,), positions: rotated further."""
    if not (config.rotary_width and len(by)):
        return keys
    cos, sin = rotary_tables(config, by, torch.float32)
    scale = torch.hypot(cos[0, 0, 0], sin[0, 0, 0])  # the keys are already scaled
    return rotate(keys.float()[..., None, :], cos / scale, sin / scale)[..., 0, :].to(keys.dtype)


class LayeredCache:
    """A cache of layers whose keys have different shapes: one `KeyValueCache` for the layers of each shape."""

    shares, kept_from = False, 0

    def __init__(
        self, config: ModelConfig, capacity: int, *, dtype: torch.dtype, device: torch.device | str, int8: bool = False
    ) -> None:
        self.config, shapes = config, config.key_shapes
        alike = {shape: [layer for layer, own in enumerate(shapes) if own == shape] for shape in shapes}
        parts = {
            shape: KeyValueCache(config, capacity, dtype=dtype, device=device, int8=int8, layers=layers)
            for shape, layers in alike.items()
        }
        self._parts = list(parts.values())
        self._place = [(parts[shape], alike[shape].index(layer)) for layer, shape in enumerate(shapes)]

    @property
    def length(self) -> int:
        """Number of rows that forwards read."""
        return self._parts[0].length

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values, and of their scales."""
        return sum(part.num_bytes for part in self._parts)

    def extend(self, layer: int, keys: Tensor, values: Tensor, num_clean: int) -> tuple[Tensor, Tensor]:
        """Store one layer's new rows; returns all keys and values of the layer. See `KeyValueCache`."""
        part, place = self._place[layer]
        return part.extend(place, keys, values, num_clean)

    def commit(self, num_rows: int) -> None:
        """Make the first `num_rows` rows stored by the last forward part of the cache."""
        for part in self._parts:
            part.commit(num_rows)

    def reaches(self, length: int) -> bool:
        """Yes: all rows are kept, also those that no row sees."""
        return True

    def truncate(self, length: int) -> None:
        """Discard all rows after the first `length`."""
        for part in self._parts:
            part.truncate(length)

    @property
    def kind(self) -> str:
        """What rows must have in common to be copied; see `KeyCache`."""
        return self._parts[0].kind

    def copy(self, start: int, stop: int) -> list[Any]:
        """A copy of rows; see `KeyCache`."""
        return list(zip(*(part.copy(start, stop) for part in self._parts), strict=True))

    def append(self, rows: list[Any]) -> int:
        """Add copied rows; see `KeyCache`."""
        for number, part in enumerate(self._parts):
            part.append([page[number] for page in rows])
        return len(rows)

    def free(self) -> None:
        """Discard all rows, and their memory."""
        for part in self._parts:
            part.free()

    def moved(self, by: np.ndarray) -> LayeredCache:
        """UnsupportedError; see `refuse_to_move`."""
        refuse_to_move(self.config)
        raise AssertionError("a model of layers of two shapes has windows")
