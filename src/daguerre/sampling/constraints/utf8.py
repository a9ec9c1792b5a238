"""Sets of characters as ranges of code points, and their UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

Range = tuple[int, int]
"""First and last code point."""
Ranges = tuple[Range, ...]
"""Ascending, disjoint, not adjacent, without the surrogates, which UTF-8 cannot hold."""

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)


def ranges_of(parts: Iterable[Range]) -> Ranges:
    """Any ranges put in order."""
    out: list[Range] = []
    for low, high in sorted(_without_surrogates(parts)):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def outside(ranges: Ranges) -> Ranges:
    """All other characters."""
    edges = [(-1, -1), *ranges, (LAST + 1, LAST + 1)]
    return ranges_of((left[1] + 1, right[0] - 1) for left, right in pairwise(edges) if left[1] + 1 < right[0])


def _without_surrogates(parts: Iterable[Range]) -> Iterator[Range]:
    first, last = SURROGATES
    for low, high in parts:
        if low < first:
            yield low, min(high, first - 1)
        if high > last:
            yield max(low, last + 1), high


ANY = ranges_of([(0, LAST)])


def byte_sequences(ranges: Ranges) -> list[tuple[Range, ...]]:
    """Sequences of one to four ranges of bytes; together they match the UTF-8 of these characters and nothing else."""
    return [sequence for low, high in ranges for sequence in _split(low, high)]


def _split(low: int, high: int) -> Iterator[tuple[Range, ...]]:
    for edge in (0x7F, 0x7FF, 0xFFFF):
        if low <= edge < high:
            yield from _split(low, edge)
            yield from _split(edge + 1, high)
            return
    for bits in (6, 12, 18) if high > 0x7F else ():
        tail = (1 << bits) - 1
        if low >> bits == high >> bits:
            break
        if low & tail:
            yield from _split(low, low | tail)
            yield from _split((low | tail) + 1, high)
            return
        if high & tail != tail:
            yield from _split(low, (high & ~tail) - 1)
            yield from _split(high & ~tail, high)
            return
    yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))
