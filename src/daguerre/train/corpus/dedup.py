"""Near duplicates by MinHash: files whose sets of five-word shingles have a Jaccard similarity of THRESHOLD or more.

A signature holds the smallest value of the shingles' hashes under each of NUM_PERM bijections, h -> a * h + b modulo
2**32. The index finds signatures that agree in all rows of at least one band (locality-sensitive hashing; Leskovec,
Rajaraman and Ullman, Mining of Massive Datasets, chapter 3), then compares them whole.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import Any

import numpy as np

NUM_PERM = 64
THRESHOLD = 0.75
SHINGLE = 5
CHUNK = 4096  # shingles at a time: their hashes fit in a core's cache
_WORD = re.compile(r"\w+")
_ODD = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1], np.uint32)

Hashes = np.ndarray[Any, np.dtype[np.uint32]]
Signature = np.ndarray[Any, np.dtype[np.uint32]]


def signature(text: str) -> Signature:
    """MinHash of a text: [NUM_PERM]; two signatures agree in about the Jaccard similarity's share of places."""
    factors, offsets = _permutations()
    hashes = _mix(_shingles(text))
    smallest = np.full(NUM_PERM, 0xFFFFFFFF, np.uint32)
    for start in range(0, len(hashes), CHUNK):
        permuted = factors[:, None] * hashes[start : start + CHUNK] + offsets[:, None]
        np.minimum(smallest, permuted.min(axis=1), out=smallest)
    return smallest


def similarities(signatures: Signature, signature: Signature) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Estimated Jaccard similarities [n] of `signatures` [n, NUM_PERM] with one, with an error of about 0.05."""
    return np.count_nonzero(signatures == signature, axis=1) / NUM_PERM


class NearIndex:
    """Documents seen so far, found again by similarity: six in ten of those at 0.8, nineteen in twenty at 0.9."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold
        bands, rows = best_bands(threshold)
        self._bands = [slice(band * rows, (band + 1) * rows) for band in range(bands)]
        self._tables: list[dict[bytes, list[int]]] = [{} for _ in self._bands]
        self._signatures: list[Signature] = []

    def find(self, signature: Signature) -> int | None:
        """The index of an earlier document that is a near duplicate, or None."""
        tables = zip(self._tables, self._keys(signature), strict=True)
        candidates = sorted({index for table, key in tables for index in table.get(key, ())})
        if not candidates:
            return None
        near = similarities(np.stack([self._signatures[c] for c in candidates]), signature) >= self._threshold
        return candidates[int(near.argmax())] if near.any() else None

    def add(self, signature: Signature) -> int:
        """Remember a document; its index is how many came before it."""
        index = len(self._signatures)
        self._signatures.append(signature)
        for table, key in zip(self._tables, self._keys(signature), strict=True):
            table.setdefault(key, []).append(index)
        return index

    def _keys(self, signature: Signature) -> list[bytes]:
        return [signature[band].tobytes() for band in self._bands]


@lru_cache(maxsize=8)
def best_bands(threshold: float) -> tuple[int, int]:
    """(bands, rows in each) with the fewest errors: pairs below the threshold with a common band, pairs above without.

    A pair of similarity s shares none with probability (1 - s**rows)**bands; s counts as uniform in [0, 1].
    """
    s = (np.arange(1000) + 0.5) / 1000

    def error(shape: tuple[int, int]) -> float:
        bands, rows = shape
        missed = (1 - s**rows) ** bands
        return float(np.where(s < threshold, 1 - missed, missed).sum())

    return min(((b, r) for b in range(1, NUM_PERM + 1) for r in range(1, NUM_PERM // b + 1)), key=error)


@lru_cache(maxsize=1)
def _permutations() -> tuple[Hashes, Hashes]:
    """The odd factors and the offsets. RandomState: its numbers are the same in every version of NumPy."""
    generator = np.random.RandomState(1)
    factors = generator.randint(0, 1 << 31, NUM_PERM, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return factors, generator.randint(0, 1 << 32, NUM_PERM, dtype=np.uint32)


def _mix(hashes: Hashes) -> Hashes:
    """The finalizer of MurmurHash3, a bijection: the permutations above need well-spread values."""
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _shingles(text: str) -> Hashes:
    """One 32-bit hash for each run of SHINGLE words (for the whole text if it has fewer)."""
    words = [zlib.crc32(word.encode("utf-8", errors="replace")) for word in _WORD.findall(text)]
    hashes = np.array(words + [0] * max(0, SHINGLE - len(words)), np.uint32)
    count = len(hashes) - SHINGLE + 1
    mixed = np.zeros(count, np.uint32)
    for i, odd in enumerate(_ODD):
        mixed = (mixed ^ (hashes[i : i + count] * odd)) * np.uint32(0x01000193)
        mixed ^= mixed >> np.uint32(15)
    return mixed
