"""Keys and values of settled rows: exact, because a settled row never depends on anything that may still change; or,
where it is asked for, as 8-bit numbers, which approximates.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.models.config import ModelConfig
from daguerre.models.layout import Rows
from daguerre.models.rotary import rotary_tables, rotate

INT8 = 127
"""The largest code."""
ROUND = 64
"""Rows are stored in multiples of it, so that a product may take some more keys than there are. Memory grows by as many
at a time: keys that lie behind one another are multiplied as they are, a part of a longer store is copied first."""


def _rounded(num_rows: int) -> int:
    return -(-num_rows // ROUND) * ROUND


def to_int8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Int8 codes (..., H) of numbers, and scales (..., 1) of `dtype`: a 127th of the largest of each row of H.

    The scale is rounded to `dtype` first, so codes times scales are as near to the numbers as they can be.
    """
    x = x.float()
    scales = (x.abs().amax(-1, keepdim=True) / INT8).to(dtype)
    return (x / scales.clamp_min(torch.finfo(dtype).tiny)).round_().clamp_(-INT8, INT8).to(torch.int8), scales


class Window(NamedTuple):
    """Views of one layer of a cache: its new rows, (B, kv heads, rows, H), and all that it has room for,
    (B * kv heads, C, H).

    C is a multiple of ROUND, and what lies behind the new rows is finite.
    """

    new_keys: Tensor
    new_values: Tensor
    keys: Tensor
    values: Tensor

    def put(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new rows, (B, kv heads, rows, H); returns all keys and values."""
        self.new_keys.copy_(keys)
        self.new_values.copy_(values)
        return self.keys, self.values


class Int8Window(NamedTuple):
    """The same of one layer of a cache of 8-bit numbers; keys and values are made anew from them at every call."""

    cache: Cache
    layer: int

    def put(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.cache.write(self.layer, keys, values)
        both = self.cache.decoded(self.layer, _rounded(self.cache.length + keys.shape[2]))
        return both[0].flatten(0, 1), both[1].flatten(0, 1)


class Cache:
    """Keys and values, (layers, B, kv heads, C, H), written in place, and the labels of their rows.

    A forward reads the `length` rows stored so far and, through `append` or `window`, stores its own rows behind them.
    `commit` makes the settled ones visible to the next forward; what is stored and never committed is scratch.

    int8: an approximation. Every key and value, those of the forward at hand too, is rounded to a multiple of a 127th
    of the largest of its row and head (`to_int8`) before anything attends to it, so an answer does not depend on what
    was cached, as in an exact cache. Takes little more than half of the memory of bfloat16.

    memory: keys and values, (layers, B, kv heads, C, H) of finite numbers, to fill in place of new ones; left behind
    once more rows are needed.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        *,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        int8: bool = False,
        memory: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        shape = (config.num_layers, batch, config.num_kv_heads, ROUND, config.head_width)
        self.keys, self.values = memory or (
            torch.zeros(shape, dtype=torch.int8 if int8 else dtype, device=device) for _ in range(2)
        )
        self.scales = torch.zeros((*shape[:-1], 2), dtype=dtype, device=device) if int8 else None
        self._every = self._all_rows()
        self.theta = config.rope_theta
        self.capacity = capacity
        self.length = 0
        self._rows: list[Rows] = []

    @property
    def rows(self) -> Rows | None:
        """Labels of the `length` rows; None while there are none."""
        if len(self._rows) > 1:
            self._rows = [Rows.cat(self._rows)]
        return self._rows[0] if self._rows else None

    @property
    def num_bytes(self) -> int:
        """Memory of keys and values, and of their scales."""
        return sum(x.nbytes for x in (self.keys, self.values, self.scales) if x is not None)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, (B, kv heads, length, H) each."""
        return self.decoded(layer, self.length)

    def decoded(self, layer: int, num_rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's first rows, (B, kv heads, num_rows, H), those behind `length` too."""
        keys, values = self.keys[layer, :, :, :num_rows], self.values[layer, :, :, :num_rows]
        if self.scales is None:
            return keys, values
        scales = self.scales[layer, :, :, :num_rows]
        return keys * scales[..., :1], values * scales[..., 1:]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store rows of one layer, (B, kv heads, rows, H), behind the last committed row."""
        rows = slice(self.length, self._room(keys.shape[2]))
        if self.scales is not None:
            keys, key_scales = to_int8(keys, self.scales.dtype)
            values, value_scales = to_int8(values, self.scales.dtype)
            self.scales[layer, :, :, rows] = torch.cat([key_scales, value_scales], dim=-1)
        self.keys[layer, :, :, rows], self.values[layer, :, :, rows] = keys, values

    def extend(self, layer: int, keys: Tensor, values: Tensor, num_settled: int) -> tuple[Tensor, Tensor]:
        """Store the settled of one layer's new rows, (B, kv heads, rows, H); returns what is attended to: the rows
        read so far and all of the new ones.
        """
        if self.scales is not None:
            self.write(layer, keys, values)
            return self.decoded(layer, self.length + keys.shape[2])
        past_keys, past_values = self.read(layer)
        self.write(layer, keys[:, :, :num_settled], values[:, :, :num_settled])
        return torch.cat([past_keys, keys], dim=2), torch.cat([past_values, values], dim=2)

    def window(self, num_rows: int) -> list[Window] | list[Int8Window]:
        """For each layer, made once a forward: where to `put` its `num_rows` rows, and all rows with those behind."""
        end = self._room(num_rows)
        if self.scales is not None:
            return [Int8Window(self, layer) for layer in range(len(self.keys))]
        new = (x[:, :, :, self.length : end].unbind(0) for x in (self.keys, self.values))
        return [Window(*views) for views in zip(*new, *self._every, strict=True)]

    def stored(self, num_rows: int, scratch: int = 0) -> list[Tensor]:
        """Keys and values of each layer in turn, (B * kv heads, C, H), with room for `num_rows` more, and behind those
        for some that nobody will see.
        """
        self._fit(self._room(num_rows) + scratch)
        return [x for both in zip(*self._every, strict=True) for x in both]

    def _all_rows(self) -> tuple[tuple[Tensor, ...], ...]:
        """Views of keys and of values, (B * kv heads, C, H) for each layer."""
        return tuple(x.flatten(1, 2).unbind(0) for x in (self.keys, self.values))

    def reserve(self, num_rows: int) -> None:
        """Have room for this many rows in all, stored ones included; a quarter is made to spare."""
        if num_rows > self.capacity:
            self.capacity = num_rows + num_rows // 4

    def _longer(self, stored: Tensor, num_rows: int) -> Tensor:
        layers, batch, heads, _, width = stored.shape
        longer = stored.new_zeros(layers, batch, heads, _rounded(num_rows), width)
        longer[:, :, :, : self.length] = stored[:, :, :, : self.length]
        return longer

    def _room(self, num_rows: int) -> int:
        end = self.length + num_rows
        if end > self.capacity:
            raise InputError(f"the cache holds {self.capacity} rows and {end} are needed: ask for fewer tokens")
        self._fit(end)
        return end

    def _fit(self, num_rows: int) -> None:
        """Have memory for so many rows."""
        if num_rows > self.keys.shape[3]:
            self.keys, self.values = self._longer(self.keys, num_rows), self._longer(self.values, num_rows)
            self.scales = None if self.scales is None else self._longer(self.scales, num_rows)
            self._every = self._all_rows()

    def commit(self, rows: Rows) -> None:
        """Make the rows stored by the last forward part of the cache."""
        self._rows.append(rows)
        self.length += rows.num_rows

    def truncate(self, length: int) -> None:
        """Forget every row behind the first `length`."""
        while self.length > length:
            last = self._rows.pop()
            self.length -= last.num_rows
            if self.length < length:
                self.commit(last[: length - self.length])

    def spread(self, rows: Rows, capacity: int) -> Cache:
        """A cache for as many requests as `rows` (B, length) has, whose settled rows are all those of this one request
        under other labels: keys are turned by as much as each position differs.
        """
        assert self.rows is not None and self.scales is None
        batch, length = rows.position.shape
        layers, _, heads, _, width = self.keys.shape
        out = object.__new__(Cache)
        out.theta, out.capacity, out.length, out._rows, out.scales = self.theta, capacity, 0, [], None
        shape = (layers, batch, heads, _rounded(capacity), width)
        out.keys, out.values = (x.new_zeros(shape) for x in (self.keys, self.values))
        out._every = out._all_rows()
        cos, sin = rotary_tables(rows.position - self.rows.position, width, self.theta, torch.float32)
        out.keys[:, :, :, :length] = rotate(self.keys[:, :, :, :length].float(), cos, sin).to(self.keys.dtype)
        out.values[:, :, :, :length] = self.values[:, :, :, :length]
        out.commit(rows)
        return out
