"""Keys and values of texts that were computed before, in pages, for requests that begin with the same text.

A page holds PAGE clean rows of all layers. It is found by a hash of everything that they were computed from: the
tokens, positions and runs of keys of these rows and of all rows before them, the noise level, and the kind of cache. So
what is found is exact. Its first rows, in steps of PART, are found by hashes of their own: a text that goes on
otherwise takes them, and a cache that adds rows to such a page copies it first. The last page of a text may have fewer
rows; it is found by these hashes alone, and its own is that of most rows. Pages are counted by references: one that a
running task reads is not dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Any

import numpy as np

from daguerre.models.core.parameters import ROUND
from daguerre.models.forward import KeyCache

PAGE = ROUND
"""Rows of a page."""
PART = 8
"""The first rows of a page are found in steps of so many."""


@dataclass(eq=False)
class CachedPage:
    """A page, whether all layers have its rows (`KeyCache.kept_from`), the hashes of its first rows, and how many tasks
    read it.
    """

    rows: Any
    whole: bool
    parts: list[bytes]
    references: int = 0


class Prefixes:
    """Pages by their hashes, in the order of their last use, each before the one that it continues.

    num_read  how many of them tasks read
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[bytes, CachedPage] = OrderedDict()
        self._parts = dict[bytes, bytes]()
        self.asked = self.found = self.num_read = 0

    def __len__(self) -> int:
        """Number of pages."""
        return len(self._pages)

    def fill(self, cache: KeyCache, rows: np.ndarray, kind: object) -> tuple[list[bytes], int]:
        """Put the stored rows that these, int64 (n, 4), begin with into an empty cache, as many as it can go on behind.
        Returns the hashes of the whole pages, to be released once the cache is not read any more, and the number of
        rows.

        kind: what else the rows depend on.
        """
        keys = list(takewhile(self._pages.__contains__, _keys(rows, kind)))
        parts = list(_parts(rows, len(keys) * PAGE, keys[-1] if keys else _beginning(kind)))
        num, last = next(((num, self._parts[key]) for num, key in reversed(parts) if key in self._parts), (0, None))
        added = self._append(cache, [*keys, *([] if last is None else [last])])
        if last is not None and added > len(keys):
            cache.truncate(len(keys) * PAGE + num)
            self._pages.move_to_end(last)
            if not cache.length:  # it has let go of what rows behind these see
                added = self._append(cache, keys)
        keys = keys[:added]
        self._use(keys)
        self.asked, self.found = self.asked + len(rows), self.found + cache.length
        return keys, cache.length

    def store(self, cache: KeyCache, rows: np.ndarray, kind: object, room: int) -> list[bytes]:
        """Keep the pages of a cache that holds these rows, at most `room` new ones; returns the hashes of the new whole
        ones, to be released once the cache is not read any more.
        """
        keys, new, before = list[bytes](), list[bytes](), _beginning(kind)
        for number, key in enumerate(_keys(rows, kind)):
            held = self._pages.get(key)
            if held is None:
                if room <= 0:
                    break
                self._put(key, cache, number, [part for _, part in _parts(rows, number * PAGE, before)])
                new.append(key)
                room -= 1
            elif number * PAGE >= cache.kept_from and not held.whole:
                held.rows, held.whole = cache.copy(number * PAGE, (number + 1) * PAGE), True
                self._find_parts(key)
            keys.append(key)
            before = key
        else:
            parts = [part for _, part in _parts(rows, len(keys) * PAGE, before)]
            found = self._parts.get(parts[-1]) if parts else None
            if room > 0 and parts and (found is None or not self._pages[found].whole):
                self._put(parts[-1], cache, len(keys), parts)
        self._use(keys)
        self.release([key for key in keys if key not in new])
        return new

    def _append(self, cache: KeyCache, keys: list[bytes]) -> int:
        """Put these pages into a cache; returns how many it takes."""
        return cache.append([row for key in keys for row in self._pages[key].rows])

    def _put(self, key: bytes, cache: KeyCache, number: int, parts: list[bytes]) -> None:
        whole = number * PAGE >= cache.kept_from
        self._pages[key] = CachedPage(cache.copy(number * PAGE, (number + 1) * PAGE), whole, parts)
        self._find_parts(key)

    def _find_parts(self, key: bytes) -> None:
        """Let a page's parts be found in it, but where another page has layers of them that it lacks. A page of fewer
        rows that is not found any more goes.
        """
        page = self._pages[key]
        for part in page.parts:
            other = self._parts.get(part)
            if other is None or page.whole or not self._pages[other].whole:
                self._parts[part] = key
        for part in page.parts:
            if self._parts[part] != part:
                self._pages.pop(part, None)

    def release(self, keys: Iterable[bytes]) -> None:
        """A task reads these pages no more."""
        for key in keys:
            self._pages[key].references -= 1
            self.num_read -= not self._pages[key].references

    def drop(self, num: int) -> None:
        """Drop `num` pages that no task reads, those first that were used the longest ago."""
        unread = (key for key, page in self._pages.items() if not page.references)
        for key in list(islice(unread, max(0, num))):
            for part in self._pages.pop(key).parts:
                if self._parts.get(part) == key:
                    del self._parts[part]

    def _use(self, keys: list[bytes]) -> None:
        for key in reversed(keys):
            self._pages.move_to_end(key)
            self.num_read += not self._pages[key].references
            self._pages[key].references += 1


def _keys(rows: np.ndarray, kind: object) -> Iterator[bytes]:
    """The hash of each whole page, as long as none of its rows sees a later page."""
    key = _beginning(kind)
    for start in range(0, len(rows) - PAGE + 1, PAGE):
        page = rows[start : start + PAGE]
        if page[:, 3].max() > start + PAGE:
            return
        key = _hash(key, page)
        yield key


def _parts(rows: np.ndarray, start: int, before: bytes) -> Iterator[tuple[int, bytes]]:
    """The number and the hash of first rows of the page from a row on, fewer than all, of which none sees a later one.

    before: the hash of the page before it
    """
    page = rows[start : start + PAGE]
    seen = np.maximum.accumulate(page[:, 3]) - start
    for num in range(PART, min(len(page) + 1, PAGE), PART):
        if seen[num - 1] <= num:
            yield num, _hash(before, page[:num])


def _beginning(kind: object) -> bytes:
    """The hash of no rows: of what all depend on."""
    return blake2b(repr(kind).encode(), digest_size=16).digest()


def _hash(before: bytes, rows: np.ndarray) -> bytes:
    """The hash of rows behind those of another hash."""
    return blake2b(before + np.ascontiguousarray(rows).tobytes(), digest_size=16).digest()
