"""The cache of one request in the packed layout of `native/attention.h`.

Letters: K key-value heads, H head width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daguerre.errors import InputError
from daguerre.models.backends import library as interface
from daguerre.models.backends.panels import COLUMNS, QUARTER, WORDS
from daguerre.models.bits import LINE, TYPES, NumberType, aligned, converted, floats
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.frequencies import refuse_to_move, rotary_tables
from daguerre.models.model_weights import tensor_of


@dataclass(eq=False, slots=True)
class Page:
    """COLUMNS rows of all layers, which several caches may read. One that is `shared` is never written again."""

    memory: np.ndarray
    shared: bool = False


class NativeCache:
    """Keys and values of one request, packed for multiplication, in pages of COLUMNS rows."""

    shares = True

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        numbers: NumberType,
        int8: bool = False,
        layers: Sequence[int] | None = None,
        window: int | None = None,
    ) -> None:
        """layers: the layers whose rows it holds, all of one shape; None: all. window: how many keys, its own included,
        a row sees at most; what no row will see is let go. None: all.
        """
        held = range(config.num_layers) if layers is None else layers
        ((self._num_kv, self._head),) = {config.key_shapes[number] for number in held}
        self.config, self.capacity, self.numbers, self.int8 = config, capacity, numbers, int8
        itemsize = TYPES[numbers].itemsize
        self.length, self.kept_from, self._window = 0, 0, window
        self._per = 4 // itemsize  # numbers in a word
        self._words = -(-self._head // (self._per * WORDS)) * WORDS
        self._wide = -(-self._head // COLUMNS) * COLUMNS
        self._heads = len(held) * self._num_kv
        size = 1 if int8 else itemsize
        self._sizes = [self._heads * n * COLUMNS * size for n in (self._words * self._per, self._wide)]
        self._sizes += [self._heads * COLUMNS * 2 * 4] if int8 else []
        self._pages: list[Page | None] = []  # None: let go
        self._table = (ctypes.c_void_p * -(-capacity // COLUMNS))()
        self.struct = interface.CacheStruct(ctypes.addressof(self._table), None, len(held), int(int8))
        self._address = ctypes.addressof(self.struct)

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
        if num_rows and self._window is not None:
            kept = self._first_seen(self.length - COLUMNS)
            for number in range(self.kept_from // COLUMNS, kept // COLUMNS):
                self._pages[number] = self._table[number] = None
            self.kept_from = max(self.kept_from, kept)
        self.length += num_rows

    def address(self, num_new: int) -> int:
        """The address of the C `struct`, with memory for `num_new` more rows. InputError beyond the capacity."""
        need = self.length + num_new
        if need > self.capacity:
            raise InputError(f"the cache holds {self.capacity} rows and {need} are needed: ask for fewer tokens")
        for number in range(self.length // COLUMNS, -(-need // COLUMNS)):
            if number == len(self._pages):
                held, size = np.zeros(sum(self._sizes) + LINE, np.uint8), sum(self._sizes)
                start = -held.ctypes.data % LINE
                self._pages.append(new := Page(held[start : start + size]))
                self._table[number] = new.memory.ctypes.data
            elif (page := self._pages[number]) is not None and page.shared:
                self._put(number, Page(_copied(page.memory)))
        return self._address

    def _put(self, number: int, page: Page | None) -> None:
        self._pages[number:] = [page, *self._pages[number + 1 :]]
        self._table[number] = None if page is None else page.memory.ctypes.data

    @property
    def kind(self) -> str:
        """What rows must have in common to be copied; see `KeyCache`."""
        return f"native {self.numbers} {self.int8}"

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

    def _held(self, part: int, *shape: int) -> np.ndarray:
        """Keys, values or scales of all pages, (layers * K, pages, *shape); 0 of what was let go."""
        start, size = sum(self._sizes[:part]), self._sizes[part]
        kind = np.dtype(np.float32) if part == 2 else np.dtype(np.int8) if self.int8 else TYPES[self.numbers]
        out = np.zeros((self._heads, len(self._pages), *shape), kind)
        for number, page in enumerate(self._pages):
            if page is not None:
                out[:, number] = page.memory[start : start + size].view(kind).reshape(self._heads, *shape)
        return out

    def read(self, layer: int) -> tuple[Any, Any]:
        """Keys and values of one layer, tensors (1, K, length, H) as of `Cache.read`; 0 of what was let go."""
        heads = slice(layer * self._num_kv, (layer + 1) * self._num_kv)
        keys, values = self._plain_keys()[heads], self._plain_values()[heads]
        if self.int8:
            scales = floats(converted(self._held(2, COLUMNS, 2)[heads].reshape(self._num_kv, -1, 2), self.numbers))
            keys, values = (
                converted(x * scales[..., place : place + 1], self.numbers) for place, x in enumerate((keys, values))
            )
        return tensor_of(keys[None, :, : self.length]), tensor_of(values[None, :, : self.length])

    def _plain_keys(self) -> np.ndarray:
        """(layers * K, room, H)."""
        packed = self._held(0, 4, self._words, QUARTER, self._per)
        return packed.swapaxes(-3, -2).reshape(self._heads, -1, self._words * self._per)[..., : self._head]

    def _plain_values(self) -> np.ndarray:
        shape = (self._wide // COLUMNS, 4, COLUMNS // self._per, QUARTER, self._per)
        packed = self._held(1, *shape)  # (layers * K, pages, parts of H, 4, words, 16, numbers in a word)
        rows = packed.transpose(0, 1, 4, 6, 2, 3, 5).reshape(self._heads, -1, self._wide)
        return rows[..., : self._head]

    def moved(self, by: np.ndarray) -> NativeCache:
        """A copy whose rows are moved right by `by`, int64 (length,), positions; see `KeyCache`."""
        refuse_to_move(self.config)
        assert not self.int8
        out = NativeCache(self.config, self.capacity, self.numbers)
        if not self.length:
            return out
        pages = [page for page in self._pages if page is not None]  # all: only windows let go of any
        out.append([Page(_copied(page.memory)) for page in pages])
        out.length = self.length
        plain = np.zeros((self._heads, len(pages) * COLUMNS, self._words * self._per), TYPES[self.numbers])
        keys = _shifted(self.config, floats(self._plain_keys()[:, : self.length]), by)
        plain[:, : self.length, : self._head] = converted(keys, self.numbers)
        packed = plain.reshape(self._heads, -1, 4, QUARTER, self._words, self._per).swapaxes(-3, -2)
        packed = packed.reshape(self._heads, len(pages), -1)
        for number, page in enumerate(out._pages):
            assert page is not None
            page.memory[: self._sizes[0]] = np.ascontiguousarray(packed[:, number]).reshape(-1).view(np.uint8)
        return out


def _copied(memory: np.ndarray) -> np.ndarray:
    out = aligned(len(memory), np.uint8)
    out[:] = memory
    return out


def _shifted(config: ModelConfig, keys: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Keys (..., rows, H) after their rows are moved right by `by`, int64 (rows,), positions: rotated further."""
    if not (config.rotary_width and len(by)):
        return keys
    cos, sin = rotary_tables(config, by)
    scale = np.hypot(cos[0, 0], sin[0, 0])  # the keys are already scaled
    cos, sin = cos / scale, sin / scale
    width = cos.shape[-1]
    a, b = keys[..., :width], keys[..., width : 2 * width]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, keys[..., 2 * width :]], axis=-1)


class LayeredNativeCache:
    """A cache of a model with windows: a `NativeCache` of its sliding layers, and one of all others.

    After a forward the first lets go of pages that no row behind the cache's length before that forward, less a page,
    sees: whatever a forward added can be taken back, a rejected draft of any length included. A stored page that has
    lost its sliding layers is taken only where the whole window before the end of what is taken is there.
    """

    shares = True

    def __init__(self, config: ModelConfig, capacity: int, numbers: NumberType, int8: bool = False) -> None:
        self.config = config
        kinds = config.layers_by_kind
        assert config.windows is not None
        self._structs = (interface.CacheStruct * len(kinds))()
        self._parts = {
            number: NativeCache(config, capacity, numbers, int8, layers, window)
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
            part.address(num_new)
            self._structs[number] = part.struct
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
