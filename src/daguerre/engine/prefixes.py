"""Keys and values of texts that were computed before, in pages, for requests that begin with the same text.

A page holds PAGE clean rows of all layers. It is found by a hash of everything that they were computed from: the
tokens, positions and runs of keys of these rows and of all rows before them, the noise level, and the kind of cache. So
what is found is exact. Pages are counted by references: one that a running task reads is not dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Any

import numpy as np

from daguerre.models.core.cache import ROUND
from daguerre.models.forward import KeyCache

PAGE = ROUND
"""Rows of a page."""


@dataclass(eq=False)
class Stored:
    """A page, whether all layers have its rows (`KeyCache.kept_from`), and how many tasks read it."""

    rows: Any
    whole: bool
    references: int = 0


class Prefixes:
    """Pages by their hashes, in the order of their last use, each before the one that it continues.

    num_read  how many of them tasks read
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[bytes, Stored] = OrderedDict()
        self.asked = self.found = self.num_read = 0

    def __len__(self) -> int:
        """Number of pages."""
        return len(self._pages)

    def fill(self, cache: KeyCache, rows: np.ndarray, kind: object) -> list[bytes]:
        """Put the stored pages that these rows, int64 (n, 4), begin with into an empty cache; returns their hashes, to
        be released once the cache is not read any more. Only as many as the cache can go on behind.

        kind: what else the rows depend on.
        """
        keys = list(takewhile(self._pages.__contains__, _keys(rows, kind)))
        keys = keys[: cache.append([row for key in keys for row in self._pages[key].rows])]
        self._use(keys)
        self.asked, self.found = self.asked + len(rows), self.found + len(keys) * PAGE
        return keys

    def store(self, cache: KeyCache, rows: np.ndarray, kind: object, room: int) -> list[bytes]:
        """Keep the whole pages of a cache that holds these rows, at most `room` new ones; returns the hashes of these,
        to be released once the cache is not read any more.
        """
        keys, new, most = list[bytes](), list[bytes](), room + len(self._pages)
        for number, key in enumerate(_keys(rows, kind)):
            whole = number * PAGE >= cache.kept_from
            if key not in self._pages:
                if len(self._pages) >= most:
                    break
                self._pages[key] = Stored(cache.copy(number * PAGE, (number + 1) * PAGE), whole)
                new.append(key)
            elif whole and not self._pages[key].whole:
                self._pages[key].rows, self._pages[key].whole = cache.copy(number * PAGE, (number + 1) * PAGE), True
            keys.append(key)
        self._use(keys)
        self.release([key for key in keys if key not in new])
        return new

    def release(self, keys: Iterable[bytes]) -> None:
        """A task reads these pages no more."""
        for key in keys:
            self._pages[key].references -= 1
            self.num_read -= not self._pages[key].references

    def drop(self, num: int) -> None:
        """Drop `num` pages that no task reads, those first that were used the longest ago."""
        unread = (key for key, page in self._pages.items() if not page.references)
        for key in list(islice(unread, max(0, num))):
            del self._pages[key]

    def _use(self, keys: list[bytes]) -> None:
        for key in reversed(keys):
            self._pages.move_to_end(key)
            self.num_read += not self._pages[key].references
            self._pages[key].references += 1


def _keys(rows: np.ndarray, kind: object) -> Iterator[bytes]:
    """The hash of each whole page, as long as none of its rows sees a later page."""
    key = blake2b(repr(kind).encode(), digest_size=16).digest()
    for start in range(0, len(rows) - PAGE + 1, PAGE):
        page = rows[start : start + PAGE]
        if page[:, 3].max() > start + PAGE:
            return
        key = blake2b(key + np.ascontiguousarray(page).tobytes(), digest_size=16).digest()
        yield key
