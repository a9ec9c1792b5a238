"""The cache of one request in the packed layout of `native/attention.h`."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.models.backends import library as interface
from daguerre.models.backends.packing import COLUMNS, QUARTER, WORDS, round_up
from daguerre.models.core.cache import ROUND, shifted_keys
from daguerre.models.core.config import ModelConfig


class NativeCache:
    """Keys and values of one request, packed for multiplication."""

    def __init__(self, config: ModelConfig, capacity: int, dtype: torch.dtype, int8: bool = False) -> None:
        self.config, self.capacity, self.dtype, self.int8 = config, capacity, dtype, int8
        self.length = 0
        self._per = 4 // dtype.itemsize  # numbers in a word
        self._words = round_up(round_up(config.head_width, self._per) // self._per, WORDS)
        self._wide = round_up(config.head_width, COLUMNS)
        self._heads = config.num_layers * config.num_kv_heads
        self._keys = self._values = self._scales = torch.zeros(0)
        self._struct = interface.Cache()
        self._panels = round_up(capacity, ROUND) // COLUMNS

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values, and of their scales."""
        return self._keys.nbytes + self._values.nbytes + self._scales.nbytes

    def truncate(self, length: int) -> None:
        """Discard all rows after the first `length`."""
        self.length = min(self.length, length)

    def address(self, num_new: int) -> int:
        """The address of the C struct, with memory for `num_new` more rows. InputError beyond the capacity."""
        need = self.length + num_new
        if need > self.capacity:
            raise InputError(f"the cache holds {self.capacity} rows and {need} are needed: ask for fewer tokens")
        if not self._keys.numel():
            self._allocate()
        return ctypes.addressof(self._struct)

    def _allocate(self) -> None:
        """Allocate the whole capacity at once: a request knows its length, and growing memory would be copied."""
        kind = torch.int8 if self.int8 else self.dtype
        self._keys = torch.zeros(self._heads, self._panels, self._words * self._per * COLUMNS, dtype=kind)
        self._values = torch.zeros(self._heads, self._panels, COLUMNS * self._wide, dtype=kind)
        if self.int8:
            self._scales = torch.zeros(self._heads, self._panels, COLUMNS * 2)
        self._struct = interface.Cache(
            self._keys.data_ptr(),
            self._values.data_ptr(),
            self._scales.data_ptr() if self.int8 else None,
            self._panels * COLUMNS,
            self.config.num_layers,
        )

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, (1, K, length, H) each, as `Cache.read` returns them."""
        heads = slice(layer * self.config.num_kv_heads, (layer + 1) * self.config.num_kv_heads)
        keys, values = self._plain_keys()[heads], self._plain_values()[heads]
        if self.int8:
            scales = self._scales[heads].view(self.config.num_kv_heads, -1, 2).to(self.dtype)
            keys, values = keys * scales[..., :1], values * scales[..., 1:]
        return keys[None, :, : self.length], values[None, :, : self.length]

    def _plain_keys(self) -> Tensor:
        """(layers * K, room, H)."""
        packed = self._keys.unflatten(-1, (4, self._words, QUARTER, self._per))
        return packed.transpose(-3, -2).flatten(-2).flatten(1, 3)[..., : self.config.head_width]

    def _plain_values(self) -> Tensor:
        shape = (self._wide // COLUMNS, 4, COLUMNS // self._per, QUARTER, self._per)
        packed = self._values.unflatten(-1, shape)  # (layers * K, panels, parts of H, 4, words, 16, numbers in a word)
        return packed.permute(0, 1, 4, 6, 2, 3, 5).flatten(4).flatten(1, 3)[..., : self.config.head_width]

    def moved(self, by: np.ndarray) -> NativeCache:
        """A copy whose rows are moved right by `by`, int64 (length,), positions; see `KeyCache`."""
        assert not self.int8
        out = NativeCache(self.config, self.capacity, self.dtype)
        out.address(self.length)
        if not self.length:
            return out
        plain = self._plain_keys().new_zeros(self._heads, self._panels * COLUMNS, self._words * self._per)
        keys = shifted_keys(self.config, self._plain_keys()[:, : self.length], torch.from_numpy(by))
        plain[:, : self.length, : self.config.head_width] = keys
        packed = plain.view(self._heads, -1, 4, QUARTER, self._words, self._per).transpose(-3, -2)
        out._keys.copy_(packed.flatten(2))
        out._values.copy_(self._values)
        out.length = self.length
        return out
