"""Search of one sorted text: maximal matches with a query, and all occurrences of a passage.

Only every third suffix is sorted. A passage of three bytes or more that stands at byte p of the text covers a sorted
suffix at p + d, where d is 0, 1 or 2. So it is found as the passage without its first d bytes, among the suffixes with
those d bytes before them. Nothing is lost by that: results are what a search over all suffixes would give.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from daguerre.overlap.suffixes import STRIDE, WORD, Bytes, Order, Words

GAP = 64
"""Suffixes between two whose first words are kept apart, in order."""
MANY = 1024
"""Suffixes that begin alike of which each is looked at."""
NEAR = 8
"""How many suffixes are read one by one; and the length of the first of the growing runs that follow."""
WIDEST = 1 << 16
"""The longest of these runs."""

Places = np.ndarray[Any, np.dtype[np.int64]]


class Segment:
    """Documents, each followed by a byte 0xFF, and the order of their suffixes.

    text: uint8, with WORD zero bytes behind it. order: uint32, `sort_suffixes` of it. tops: uint64, the first word of
    every GAP-th suffix in that order. starts: int64 [documents + 1], the byte at which each document begins.
    """

    def __init__(self, text: Bytes, order: Order, tops: Words, starts: Places) -> None:
        self.text, self.order, self.starts = text, order, starts
        # for one number or slice at a time these are several times faster than arrays
        self.bytes, self.ranked, self.tops = text.data, order.data, tops.data

    def begin(self, rank: int) -> int:
        """The byte of the text at which the suffix of a rank begins."""
        return STRIDE * self.ranked[rank]

    def maximal(self, query: bytes, least: int) -> Iterator[tuple[int, int]]:
        """(begin, end) of each match of `least` bytes or more, 3 at least, that no longer one contains, in order.

        A match that ends at `bound` or later covers every place from its beginning to there. So if query[place:bound]
        occurs nowhere, none begins at `place` or before, and all of these are skipped.
        """
        begin, bound = 0, least  # the next match begins at `begin` or later, and ends at `bound` or later
        while bound <= len(query):
            place = bound - max(STRIDE, (bound - begin) * 2 // 3)
            start, place = self._earliest(query, begin, place, bound)
            if start == begin:
                end = begin + self.longest(query, begin)
                yield begin, end
                begin, bound = begin + 1, end + 1
            else:
                begin = place + 1 if start is None else start
            bound = max(bound, begin + least)

    def longest(self, query: bytes, place: int) -> int:
        """The length of the longest match that begins at a place; 0 for none of 3 bytes."""
        best = 0
        for before in range(min(STRIDE, len(query) - place)):
            rank = self._insertion(query, place + before)
            common = before + max(self._common(query, place + before, one) for one in (rank - 1, rank))
            if common > best:
                best = self._extended(query, place, before, rank, best) if before else common
        return best if best >= STRIDE else 0

    def occurrences(self, passage: bytes) -> Places:
        """The bytes of the text at which a passage of 3 bytes or more stands, in ascending order."""
        found = []
        for before in range(STRIDE):
            first, last = self._run(passage[before:])
            begins = self.order[first:last].astype(np.int64) * STRIDE
            found.append(begins[self._preceded(begins, passage[:before])] - before)
        return np.sort(np.concatenate(found))

    def _earliest(self, query: bytes, begin: int, place: int, bound: int) -> tuple[int | None, int]:
        """(the first place from `begin` to `place` at which a match up to `bound` begins, or None; `place`).

        `place` is lowered, but not below `begin`, where query[place:bound] occurs too often to look at each.
        """
        runs = [self._run(query[place + before : bound]) for before in range(STRIDE)]
        if place > begin and sum(last - first for first, last in runs) > MANY:
            return self._earliest(query, begin, (begin + place) // 2, bound)
        starts = [
            place + before - self._most_before(first, last, query[begin : place + before])
            for before, (first, last) in enumerate(runs)
            if first < last
        ]
        return min((one for one in starts if one <= place), default=None), place

    def _run(self, target: bytes) -> tuple[int, int]:
        """The ranks [first, last) of the suffixes that begin with `target`."""
        first = self._below(target, 0, len(self.order))
        return first, self._behind(target, first)

    def _most_before(self, first: int, last: int, wanted: bytes) -> int:
        """How many of the last bytes of `wanted` stand before a suffix of the ranks [first, last) at most."""
        if last - first > NEAR:
            return self._most_before_many(first, last, wanted)
        most = 0
        for rank in range(first, last):
            begin = self.begin(rank)
            ours = wanted[max(0, len(wanted) - begin) :]
            theirs = bytes(self.bytes[begin - len(ours) : begin])
            differ = int.from_bytes(ours, "big") ^ int.from_bytes(theirs, "big")
            most = max(most, ((differ & -differ).bit_length() - 1) // 8 if differ else len(ours))
        return most

    def _most_before_many(self, first: int, last: int, wanted: bytes) -> int:
        most = 0
        for one in range(first, last, WIDEST):
            begins = self.order[one : min(one + WIDEST, last)].astype(np.int64) * STRIDE
            for length in range(1, len(wanted) + 1):
                begins = begins[begins >= length]
                begins = begins[self.text[begins - length] == wanted[-length]]
                if not len(begins):
                    break
                most = max(most, length)
            if most == len(wanted):
                break
        return most

    def _insertion(self, query: bytes, place: int) -> int:
        """How many sorted suffixes are below query[place:]."""
        length, low, high = 64, 0, len(self.order)
        while True:
            target = query[place : place + length]
            low = self._below(target, low, high)
            high = self._behind(target, low)
            if place + length >= len(query) or low == high:
                return low
            length *= 4

    def _begins_with(self, rank: int, target: bytes) -> bool:
        begin = self.begin(rank)
        return self.bytes[begin : begin + len(target)] == target

    def _below(self, target: bytes, low: int, high: int) -> int:
        """How many sorted suffixes are below `target`; known to be from `low` to `high`."""
        word = target[:WORD]
        first = bisect_left(self.tops, int.from_bytes(word.ljust(WORD, b"\0"), "big"))
        last = bisect_right(self.tops, int.from_bytes(word.ljust(WORD, b"\xff"), "big"), first)
        low, high = max(low, (first - 1) * GAP), min(high, last * GAP)
        return bisect_left(range(high), target, low, high, key=self._beginning(len(target)))

    def _behind(self, target: bytes, first: int) -> int:
        """The rank behind the suffixes that begin with `target`; `first` is the first of them, if there is one."""
        width, count = 0, len(self.order)
        while first + width < count and self._begins_with(first + width, target):
            width = max(1, 4 * width)
        high = min(first + width, count)
        return bisect_right(range(high), target, first, high, key=self._beginning(len(target)))

    def _beginning(self, length: int) -> Callable[[int], bytes]:
        """What gives the first bytes of the suffix of a rank."""
        text, ranked = self.bytes, self.ranked

        def beginning(rank: int) -> bytes:
            begin = STRIDE * ranked[rank]
            return bytes(text[begin : begin + length])

        return beginning

    def _common(self, query: bytes, place: int, rank: int) -> int:
        """Bytes that query[place:] and the suffix of a rank have in common, from their beginnings on."""
        if not 0 <= rank < len(self.order):
            return 0
        begin, done, length = self.begin(rank), 0, 64
        while place + done < len(query):
            ours = query[place + done : place + done + length]
            theirs = self.bytes[begin + done : begin + done + len(ours)]
            if ours != theirs:
                differ = int.from_bytes(ours, "big") ^ int.from_bytes(bytes(theirs).ljust(len(ours), b"\xff"), "big")
                return done + len(ours) - (differ.bit_length() + 7) // 8
            done, length = done + len(ours), 4 * length
        return done

    def _extended(self, query: bytes, place: int, before: int, rank: int, floor: int) -> int:
        """The longest match from `place` on with a text whose sorted suffix is `before` bytes later, if it is longer
        than `floor`, else `floor`. rank: the insertion of query[place + before :].

        The nearest suffixes on both sides of it have most in common with it, so the first on each side with the right
        bytes before it is the best there.
        """
        wanted = query[place : place + before]
        for side in (self._downward(rank), self._upward(rank)):
            for ranks in side:
                fits = self._preceded(self.order[ranks].astype(np.int64) * STRIDE, wanted)
                hit = bool(fits.any())
                best_rank = ranks[fits.argmax()] if hit else ranks[-1]
                length = before + self._common(query, place + before, int(best_rank))
                if hit:
                    floor = max(floor, length)
                if hit or length <= floor:
                    break
        return floor

    def _downward(self, rank: int) -> Iterator[Places]:
        """The ranks below `rank`, the next ones first, in growing runs."""
        width = NEAR
        while rank > 0:
            yield np.arange(rank - 1, max(0, rank - width) - 1, -1)
            rank, width = rank - width, min(8 * width, WIDEST)

    def _upward(self, rank: int) -> Iterator[Places]:
        """`rank` and the ranks above it, in growing runs."""
        width = NEAR
        while rank < len(self.order):
            yield np.arange(rank, min(len(self.order), rank + width))
            rank, width = rank + width, min(8 * width, WIDEST)

    def _preceded(self, begins: Places, wanted: bytes) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """bool: whether the bytes before each place of the text are `wanted`."""
        fits = begins >= len(wanted)
        for step, byte in enumerate(reversed(wanted), start=1):
            fits[fits] = self.text[begins[fits] - step] == byte
        return fits
