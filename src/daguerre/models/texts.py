"""Many texts in one piece, as files list the tokens of a vocabulary: as objects 150,000 of them would take thirty
megabytes and a tenth of a second, and few of them are ever looked at.

A text is told from others by a number: the sum of its bytes times powers of an odd number, modulo 2**64. The number of
any part of a text follows from sums of its beginnings, so all that is asked of all texts is asked in NumPy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np

BASE = 0x9E3779B97F4A7C15
"""An odd number. Which one does not matter."""
HEAD = 8
"""The bytes before each text of a record."""
LIKELY = (24, 96)
"""Bytes that texts have on average, or fewer."""
AT_ONCE = 1 << 14
"""Texts whose numbers are made together."""
BITS = 21
"""Of a number, those by which most others are told from it."""
LOW = np.uint64((1 << BITS) - 1)


class Texts(Sequence[str]):
    """Texts by number, from 0: their UTF-8 together, and the ends of each (N + 1,), from 0. UnicodeDecodeError where
    one is not UTF-8.
    """

    def __init__(self, joined: bytes, ends: np.ndarray) -> None:
        self.joined, self.ends = joined, ends
        joined.decode()
        starts = ends[:-1][ends[:-1] < len(joined)]
        cut = starts[(self.bytes[starts] & 0xC0) == 0x80]
        if len(cut):
            raise UnicodeDecodeError("utf-8", joined, int(cut[0]), int(cut[0]) + 1, "a text begins within a character")

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Texts that are objects."""
        each = [text.encode() for text in texts]
        return cls(b"".join(each), np.cumsum([0, *map(len, each)]))

    @property
    def bytes(self) -> np.ndarray:
        """All bytes, uint8."""
        return np.frombuffer(self.joined, np.uint8)

    @property
    def sizes(self) -> np.ndarray:
        """The bytes of each, int64."""
        return np.diff(self.ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return self.joined[self.ends[index] : self.ends[index + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        joined, start = self.joined, 0
        for end in self.ends[1:].tolist():
            yield joined[start:end].decode()
            start = end

    def kept(self, those: np.ndarray) -> Texts:
        """As many texts, of which the others than those (N,) are empty."""
        if those.all():
            return self
        sizes = self.sizes
        joined = self.bytes[np.repeat(those, sizes)].tobytes()
        return Texts(joined, np.append(0, np.cumsum(np.where(those, sizes, 0))))

    def first(self, num: int) -> Texts:
        """The first `num` texts."""
        return self if num == len(self) else Texts(self.joined[: self.ends[num]], self.ends[: num + 1])

    def tolist(self) -> list[str]:
        """The texts as objects."""
        return list(self)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Texts | list | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def numbers(self) -> np.ndarray:
        """The number of each, uint64 (N,)."""
        return self.numbers_of(self.ends[:-1], self.ends[1:])

    def numbers_of(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The number of a part of each text, uint64 (N,): of `joined` from `starts` to `ends`, which are ascending."""
        out = np.empty(len(starts), np.uint64)
        for first in range(0, len(starts), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            begin = int(starts[first])
            sums = Sums(self.bytes[begin : int(ends[some][-1])])
            out[some] = sums.of(starts[some] - begin, ends[some] - begin)
        return out

    def find(self, *texts: str) -> dict[str, int]:
        """The places of those texts that are there, of equal ones the first."""
        found = among(self.numbers, Texts.of(texts).numbers)
        places = {self[index]: index for index in reversed(found.tolist())}
        return {text: places[text] for text in texts if text in places}

    @cached_property
    def twice(self) -> bool:
        """Whether two texts that are not empty are equal."""
        numbers = np.sort(self.numbers[self.sizes > 0])
        if (numbers[1:] != numbers[:-1]).all():
            return False
        each = [text for text in self if text]
        return len({*each}) < len(each)

    def within(self, text: str) -> np.ndarray:
        """The places of all texts that stand in `text` as a part, ascending, and perhaps of a few others."""
        return among(self.numbers, numbers_of_parts(text, self._lengths))

    @cached_property
    def _lengths(self) -> np.ndarray:
        return lengths(self.sizes)


def read_records(content: np.ndarray, num: int) -> tuple[Texts, int] | None:
    """The `num` texts at the beginning of bytes (uint8), each behind its number of bytes, a little-endian uint64; and
    how many bytes they take. None where they go on beyond the end. UnicodeDecodeError.
    """
    tried = (guessed_starts(content[: num * (HEAD + each)], num) for each in LIKELY)
    starts = next((found for found in tried if found is not None), None)
    if starts is None:
        starts = walked_starts(content, num)
    if starts is None:
        return None
    sizes, size = np.diff(starts) - HEAD, int(starts[-1])
    kept = np.ones(size, bool)
    kept[(starts[:-1, None] + np.arange(HEAD)).ravel()] = False
    return Texts(content[:size][kept].tobytes(), np.concatenate([[0], np.cumsum(sizes)])), size


def walked_starts(content: np.ndarray, num: int) -> np.ndarray | None:
    """Where records begin, and the end of the last (num + 1,); None where one goes on beyond the end."""
    starts, at, size, memory = [0], 0, len(content), content.data
    unpack = struct.Struct("<Q").unpack_from
    for _ in range(num):
        if at + HEAD > size:
            return None
        at += HEAD + unpack(memory, at)[0]
        if at > size:
            return None
        starts.append(at)
    return np.array(starts)


def guessed_starts(content: np.ndarray, num: int) -> np.ndarray | None:
    """`walked_starts` where texts are shorter than 2**16 bytes and neither empty nor with a zero, as in vocabularies: a
    number of bytes then ends where six zeros or more do. None where it is not so.
    """
    zeros = np.flatnonzero(content == 0)
    last = np.flatnonzero(np.diff(zeros, append=-1) != 1)
    last = last[last >= 5]
    starts = zeros[last[zeros[last] - zeros[last - 5] == 5]][:num] - (HEAD - 1)
    if len(starts) < max(num, 1) or starts[0] != 0:
        return None
    ends = starts + HEAD + content[starts] + 256 * content[starts + 1].astype(np.int64)
    right = (ends[:-1] == starts[1:]).all() and ends[-1] <= len(content)
    return np.append(starts, ends[-1]) if right else None


class Sums:
    """The sums of a text's beginnings, from which the number of each part follows."""

    def __init__(self, text: np.ndarray) -> None:
        self._sums = np.zeros(len(text) + 1, np.uint64)
        np.cumsum((text.astype(np.uint64) + np.uint64(1)) * powers(BASE, len(text)), out=self._sums[1:])

    def of(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The numbers of the parts from `starts` to `ends`."""
        inverse = powers(pow(BASE, -1, 1 << 64), len(self._sums))
        numbers: np.ndarray = (self._sums[ends] - self._sums[starts]) * inverse[starts]
        return numbers


def powers(base: int, num: int) -> np.ndarray:
    """The powers of a number from the 0th on, modulo 2**64, uint64 (num,)."""
    out = np.full(num, base, np.uint64)
    out[:1] = 1
    return np.cumprod(out, out=out)


def lengths(sizes: np.ndarray) -> np.ndarray:
    """Which sizes there are, ascending."""
    return np.flatnonzero(np.bincount(sizes))


def numbers_of_parts(text: str, sizes: np.ndarray) -> np.ndarray:
    """The numbers of all parts of a text that have so many bytes."""
    raw = np.frombuffer(text.encode(), np.uint8)
    sums, starts = Sums(raw), np.arange(len(raw) + 1)
    parts = [sums.of(starts[: len(raw) - n + 1], starts[n:]) for n in sizes[sizes <= len(raw)].tolist()]
    return np.concatenate([*parts, np.zeros(0, np.uint64)])


def joined_numbers(left: np.ndarray, sizes: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The numbers of texts that are joined of two, from those of both and the bytes of the first."""
    numbers: np.ndarray = left + powers(BASE, int(sizes.max(initial=0)) + 1)[sizes] * right
    return numbers


def all_likely_among(numbers: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether numbers are all among those that are wanted; of others one in two hundred is not noticed."""
    for shift in (np.uint64(64 - BITS), np.uint64(64 - 2 * BITS)):
        known = np.zeros(1 << BITS, bool)
        known[wanted >> shift & LOW] = True
        if not known[numbers >> shift & LOW].all():
            return False
    return True


def among(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where numbers are that are among those that are wanted, ascending."""
    shift, known = np.uint64(64 - BITS), np.zeros(1 << BITS, bool)
    known[wanted >> shift] = True
    places = np.flatnonzero(known[numbers >> shift])
    found, ordered = numbers[places], np.sort(wanted)
    return places[ordered[np.searchsorted(ordered, found).clip(max=len(ordered) - 1)] == found]
