"""Sort the suffixes of a text that begin at every STRIDE-th byte, by prefix doubling in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

STRIDE = 3
"""Bytes between two indexed suffixes."""
WORD = 8
"""Bytes compared at once. A text to sort or search has this many zero bytes behind its end."""
CHUNK = 1 << 22
"""Suffixes sorted at once, unless more of them begin with equal bytes."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Places = np.ndarray[Any, np.dtype[np.int64]]
Order = np.ndarray[Any, np.dtype[np.uint32]]


def words_of(text: Bytes) -> Words:
    """A view of the text: entry p holds the bytes p .. p + 7 as one big-endian number."""
    return np.ndarray((len(text) - WORD + 1,), ">u8", text, strides=(1,))


def num_suffixes(num_bytes: int) -> int:
    return -(-num_bytes // STRIDE)


def sort_suffixes(text: Bytes, report: Callable[[float], None] = lambda share: None) -> Order:
    """uint32 [num_suffixes]: the suffixes STRIDE * i of a text with WORD zero bytes behind it, in order of their bytes.

    A suffix that is the beginning of another comes first. `report` is told the share of suffixes with a final place.
    Prefix doubling (Manber and Myers 1990) on groups with equal beginnings, as in Larsson and Sadakane (2007): once all
    groups are equal in k bytes, the rank of the suffix k bytes later (rounded down to whole strides) orders a group.
    """
    count = num_suffixes(len(text) - WORD)
    order = np.empty(count, np.uint32)
    rank = np.empty(count, np.int32)
    begins = np.ones(count + 1, bool)
    for begin, suffixes, keys in _by_first_word(text, count):
        places = np.arange(begin, begin + len(suffixes))
        _place(order, rank, begins, places, suffixes, keys)
    known = WORD
    while (left := _refine(order, rank, begins, known // STRIDE)) > 0:
        report(1 - left / count)
        known += known // STRIDE * STRIDE
    report(1.0)
    return order


def _by_first_word(text: Bytes, count: int) -> Iterator[tuple[int, Places, Words]]:
    """(place of the first, suffixes, words that they begin with) of each run of suffixes whose first words are near."""
    words = words_of(text)[::STRIDE][:count]
    parts = min(255, count // (CHUNK // 2))
    sample = np.sort(words[:: max(1, count // 65536)].astype(np.uint64))
    cuts = np.unique(sample[np.arange(1, parts) * len(sample) // max(1, parts)])
    part = np.empty(count, np.uint8)
    for begin in range(0, count, CHUNK):
        block = words[begin : begin + CHUNK].astype(np.uint64)
        part[begin : begin + CHUNK] = np.searchsorted(cuts, block, side="right")
    place = 0
    for number in range(len(cuts) + 1):
        suffixes = np.flatnonzero(part == number)
        yield place, suffixes, words[suffixes].astype(np.uint64)
        place += len(suffixes)


def _refine(order: Order, rank: Any, begins: Any, step: int) -> int:
    """Sort within each group by the rank of the suffix `step` strides later; the number of suffixes still in groups."""
    count, begin, left = len(order), 0, 0
    while begin < count:
        end = min(begin + CHUNK, count)
        while not begins[end]:
            more = np.flatnonzero(begins[end : end + CHUNK])
            end = end + int(more[0]) if len(more) else min(end + CHUNK, count)
        places = begin + np.flatnonzero(~(begins[begin:end] & begins[begin + 1 : end + 1]))
        if len(places):
            suffixes = order[places].astype(np.int64)
            later = suffixes + step
            inside = later < count
            keys = np.cumsum(begins[places]).astype(np.uint64) << np.uint64(32)
            keys[inside] += (rank[later[inside]] + 1).astype(np.uint64)
            left += _place(order, rank, begins, places, suffixes, keys)
        begin = end
    return left


def _place(order: Order, rank: Any, begins: Any, places: Places, suffixes: Places, keys: Words) -> int:
    """Put suffixes at `places` in order of their keys; the number of them that share a key with another."""
    by_key = np.argsort(keys)
    suffixes, keys = suffixes[by_key], keys[by_key]
    order[places] = suffixes
    begins[places[1:]] = keys[1:] != keys[:-1]
    first = begins[places]
    rank[suffixes] = np.maximum.accumulate(np.where(first, places, 0))
    return int(len(places) - (first & begins[places + 1]).sum())
