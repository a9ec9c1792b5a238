"""The cache of one request in the packed layout of `native/attention.h`.

Letters: K key-value heads, H head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.models.backends import library as interface
from daguerre.models.backends.panels import COLUMNS, QUARTER, WORDS, round_up
from daguerre.models.core.cache import refuse_to_move, shifted_keys
from daguerre.models.core.config import ModelConfig


class Page:
    """COLUMNS rows of all layers, which several caches may read. One that is `shared` is never written again."""

    __slots__ = ("memory", "shared")

    def __init__(self, memory: Tensor) -> None:
        self.memory, self.shared = memory, False


class NativeCache:
    """Keys and values of one request, packed for multiplication, in pages of COLUMNS rows."""

    shares = True

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        dtype: torch.dtype,
        int8: bool = False,
        layers: Sequence[int] | None = None,
        window: int | None = None,
    ) -> None:
        """layers: the layers whose rows it holds, all of one shape; None: all. window: how many keys, its own included,
        a row sees at most; what no row will see is let go. None: all.
        """
        numbers = range(config.num_layers) if layers is None else layers
        ((self._num_kv, self._head),) = {config.key_shapes[number] for number in numbers}
        self.config, self.capacity, self.dtype, self.int8 = config, capacity, dtype, int8
        self.length, self.kept_from, self._window = 0, 0, window
        self._per = 4 // dtype.itemsize  # numbers in a word
        self._words = round_up(round_up(self._head, self._per) // self._per, WORDS)
        self._wide = round_up(self._head, COLUMNS)
        self._heads = len(numbers) * self._num_kv
        size = 1 if int8 else dtype.itemsize
        self._sizes = [self._heads * n * COLUMNS * size for n in (self._words * self._per, self._wide)]
        self._sizes += [self._heads * COLUMNS * 2 * 4] if int8 else []
        self._pages: list[Page | None] = []  # None: let go
        self._table = (ctypes.c_void_p * (round_up(capacity, COLUMNS) // COLUMNS))()
        self._struct = interface.CacheStruct(ctypes.addressof(self._table), None, len(numbers), int(int8))

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values, and of their scales."""
        return sum(page.memory.nbytes for page in self._pages if page is not None)

    def reaches(self, length: int) -> bool:
        """Whether all that rows after the first `length` see is here."""
        return self._first_seen(length) >= self.kept_from

    def _first_seen(self, length: int) -> int:
        """The first of the pages' rows that rows after the first `length` see."""
        return 0 if self._window is None else max(0, length + 1 - self._window) // COLUMNS * COLUMNS

    def truncate(self, length: int) -> None:
        """Discard all rows after the first `length`; or all, if those that rows after them see were let go."""
        if length < self.length:
            if self.reaches(length):
                self.length = length
            else:
                self.free()

    def commit(self, num_rows: int) -> None:
        """Make the rows that were stored last part of the cache. Let go of rows that no later row sees, even if these
        and a page of rows before them are taken back.
        """
        kept = self._first_seen(self.length - COLUMNS)
        self.length += num_rows
        if num_rows and kept > self.kept_from:
            for number in range(self.kept_from // COLUMNS, kept // COLUMNS):
                self._pages[number] = self._table[number] = None
            self.kept_from = kept

    def address(self, num_new: int) -> int:
        """The address of the C struct, with memory for `num_new` more rows. InputError beyond the capacity."""
        return ctypes.addressof(self.struct(num_new))

    def struct(self, num_new: int) -> interface.CacheStruct:
        """The C struct itself."""
        need = self.length + num_new
        if need > self.capacity:
            raise InputError(f"the cache holds {self.capacity} rows and {need} are needed: ask for fewer tokens")
        for number in range(self.length // COLUMNS, -(-need // COLUMNS)):
            if number == len(self._pages):
                self._put(number, Page(torch.zeros(sum(self._sizes), dtype=torch.uint8)))
            elif (page := self._pages[number]) is not None and page.shared:
                self._put(number, Page(page.memory.clone()))
        return self._struct

    def _put(self, number: int, page: Page | None) -> None:
        self._pages[number:] = [page, *self._pages[number + 1 :]]
        self._table[number] = None if page is None else page.memory.data_ptr()

    @property
    def kind(self) -> str:
        """What rows must have in common to be copied; see `KeyCache`."""
        return f"native {self.dtype} {self.int8}"

    def copy(self, start: int, stop: int) -> list[Page | None]:
        """Rows for other caches; see `KeyCache`. Their pages are shared, not copied; None: let go."""
        pages = self._pages[start // COLUMNS : stop // COLUMNS]
        for page in pages:
            if page is not None:
                page.shared = True
        return pages

    def append(self, rows: list[Page | None]) -> int:
        """Add rows of another cache; see `KeyCache`."""
        num = self.can_append(rows)
        for number, page in enumerate(rows[:num], self.length // COLUMNS):
            self._put(number, page)
            if page is None:
                self.kept_from = (number + 1) * COLUMNS
        self.length += num * COLUMNS
        return num

    def can_append(self, rows: list[Page | None]) -> int:
        """How many of these pages can be added so that all that later rows see is there."""
        start, kept = self.length // COLUMNS, self.kept_from // COLUMNS
        best = 0
        for num, page in enumerate(rows, 1):
            kept = start + num if page is None else kept
            if self._first_seen((start + num) * COLUMNS) >= kept * COLUMNS:
                best = num
        return best

    def free(self) -> None:
        """Discard all rows, and their memory."""
        self._pages, self.length, self.kept_from = [], 0, 0

    def _numbers(self, part: int, *shape: int) -> Tensor:
        """Keys, values or scales of all pages, (layers * K, pages, *shape)."""
        start, size = sum(self._sizes[:part]), self._sizes[part]
        kind = torch.float32 if part == 2 else torch.int8 if self.int8 else self.dtype
        pages = [
            torch.zeros(size, dtype=torch.uint8) if page is None else page.memory[start : start + size]
            for page in self._pages
        ]
        numbers = [page.view(kind).view(self._heads, *shape) for page in pages]
        return torch.stack(numbers, dim=1) if numbers else torch.zeros(self._heads, 0, *shape, dtype=kind)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, (1, K, length, H) each, as `Cache.read` returns them; 0 of what was let go."""
        heads = slice(layer * self._num_kv, (layer + 1) * self._num_kv)
        keys, values = self._plain_keys()[heads], self._plain_values()[heads]
        if self.int8:
            scales = self._numbers(2, COLUMNS, 2)[heads].flatten(1, 2).to(self.dtype)
            keys, values = keys * scales[..., :1], values * scales[..., 1:]
        return keys[None, :, : self.length], values[None, :, : self.length]

    def _plain_keys(self) -> Tensor:
        """(layers * K, room, H)."""
        packed = self._numbers(0, 4, self._words, QUARTER, self._per)
        return packed.transpose(-3, -2).flatten(-2).flatten(1, 3)[..., : self._head]

    def _plain_values(self) -> Tensor:
        shape = (self._wide // COLUMNS, 4, COLUMNS // self._per, QUARTER, self._per)
        packed = self._numbers(1, *shape)  # (layers * K, pages, parts of H, 4, words, 16, numbers in a word)
        return packed.permute(0, 1, 4, 6, 2, 3, 5).flatten(4).flatten(1, 3)[..., : self._head]

    def moved(self, by: np.ndarray) -> NativeCache:
        """A copy whose rows are moved right by `by`, int64 (length,), positions; see `KeyCache`."""
        refuse_to_move(self.config)
        assert not self.int8
        out = NativeCache(self.config, self.capacity, self.dtype)
        if not self.length:
            return out
        pages = [page for page in self._pages if page is not None]  # all: only windows let go of any
        out.append([Page(page.memory.clone()) for page in pages])
        out.length = self.length
        plain = self._plain_keys().new_zeros(self._heads, len(self._pages) * COLUMNS, self._words * self._per)
        keys = shifted_keys(self.config, self._plain_keys()[:, : self.length], torch.from_numpy(by))
        plain[:, : self.length, : self._head] = keys
        packed = plain.view(self._heads, -1, 4, QUARTER, self._words, self._per).transpose(-3, -2).flatten(2)
        for number, page in enumerate(out._pages):
            assert page is not None
            page.memory[: self._sizes[0]] = packed[:, number].contiguous().flatten().view(torch.uint8)
        return out


class LayeredNativeCache:
    """A cache of a model with windows: a `NativeCache` of its sliding layers, and one of all others.

    After a forward the first lets go of pages that no row behind the cache's length before that forward, less a page,
    sees: whatever a forward added can be taken back, a rejected draft of any length included. A stored page that has
    lost its sliding layers is taken only where the whole window before the end of what is taken is there.
    """

    shares = True

    def __init__(self, config: ModelConfig, capacity: int, dtype: torch.dtype, int8: bool = False) -> None:
        self.config = config
        kinds = config.layers_by_kind
        assert config.windows is not None
        self._structs = (interface.CacheStruct * len(kinds))()
        self._parts = {
            number: NativeCache(config, capacity, dtype, int8, layers, window)
            for number, (layers, window) in enumerate(zip(kinds, (config.windows.size, None), strict=True))
            if layers
        }
        self._first, *_ = self._parts.values()

    @property
    def length(self) -> int:
        """Number of rows that forwards read."""
        return self._first.length

    @property
    def kept_from(self) -> int:
        """The first row whose keys are here in all layers; see `KeyCache`."""
        return self._first.kept_from

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values, and of their scales."""
        return sum(part.num_bytes for part in self._parts.values())

    def reaches(self, length: int) -> bool:
        """Whether all that rows after the first `length` see is here; see `KeyCache`."""
        return self._first.reaches(length)

    def truncate(self, length: int) -> None:
        """Discard all rows after the first `length`, or all; see `KeyCache`."""
        length = length if self.reaches(length) else 0
        for part in self._parts.values():
            part.truncate(min(length, part.length))

    def commit(self, num_rows: int) -> None:
        """Make the rows that were stored last part of the cache; see `NativeCache`."""
        for part in self._parts.values():
            part.commit(num_rows)

    def address(self, num_new: int) -> int:
        """The address of both C structs; see `NativeCache`."""
        for number, part in self._parts.items():
            self._structs[number] = part.struct(num_new)
        return ctypes.addressof(self._structs)

    @property
    def kind(self) -> str:
        """What rows must have in common to be copied; see `KeyCache`."""
        return self._first.kind

    def copy(self, start: int, stop: int) -> list[Any]:
        """Rows for other caches; see `KeyCache`."""
        return list(zip(*(part.copy(start, stop) for part in self._parts.values()), strict=True))

    def append(self, rows: list[Any]) -> int:
        """Add rows of another cache; see `KeyCache`."""
        num = self._first.can_append([page[0] for page in rows])
        for number, part in enumerate(self._parts.values()):
            part.append([page[number] for page in rows[:num]])
        return num

    def free(self) -> None:
        """Discard all rows, and their memory."""
        for part in self._parts.values():
            part.free()

    def moved(self, by: np.ndarray) -> LayeredNativeCache:
        """UnsupportedError; see `refuse_to_move`."""
        refuse_to_move(self.config)
        raise AssertionError("a model of layers of two shapes has windows")
