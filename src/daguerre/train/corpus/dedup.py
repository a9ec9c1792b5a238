"""Near duplicates by MinHash: files whose sets of five-word shingles have a Jaccard similarity of THRESHOLD or more."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np

from daguerre.errors import MissingExtra

NUM_PERM = 64
THRESHOLD = 0.75
SHINGLE = 5
SCHEME = "affine32"  # of datasketch 2.0 and later; named, so that signatures stay the same
_WORD = re.compile(r"\w+")
_ODD = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1], np.uint32)

Signature = np.ndarray[Any, np.dtype[np.uint32]]


def signature(text: str) -> Signature:
    """MinHash of a text: [NUM_PERM]; two signatures agree in about the Jaccard similarity's share of places."""
    minhash = _datasketch().MinHash(num_perm=NUM_PERM, scheme=SCHEME, hashfunc=int)
    minhash.update_batch(np.unique(_shingles(text)).tolist())
    return np.asarray(minhash.hashvalues, np.uint32)


def similarities(signatures: Signature, signature: Signature) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Estimated Jaccard similarities [n] of `signatures` [n, NUM_PERM] with one, with an error of about 0.05."""
    return np.count_nonzero(signatures == signature, axis=1) / NUM_PERM


class NearIndex:
    """Documents seen so far, found again by similarity: six in ten of those at 0.8, nineteen in twenty at 0.9."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold
        self._lsh = _datasketch().MinHashLSH(threshold=threshold, num_perm=NUM_PERM)
        self._signatures: list[Signature] = []

    def find(self, signature: Signature) -> int | None:
        """The index of an earlier document that is a near duplicate, or None."""
        candidates = sorted(self._lsh.query(self._minhash(signature)))
        if not candidates:
            return None
        near = similarities(np.stack([self._signatures[c] for c in candidates]), signature) >= self._threshold
        return candidates[int(near.argmax())] if near.any() else None

    def add(self, signature: Signature) -> int:
        """Remember a document; its index is how many came before it."""
        index = len(self._signatures)
        self._signatures.append(signature)
        self._lsh.insert(index, self._minhash(signature), check_duplication=False)
        return index

    @staticmethod
    def _minhash(signature: Signature) -> Any:
        return _datasketch().MinHash(num_perm=NUM_PERM, hashvalues=signature, scheme=SCHEME, hashfunc=int)


def _shingles(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """One 32-bit hash for each run of SHINGLE words (for the whole text if it has fewer)."""
    words = [zlib.crc32(word.encode("utf-8", errors="replace")) for word in _WORD.findall(text)]
    hashes = np.array(words + [0] * max(0, SHINGLE - len(words)), np.uint32)
    count = len(hashes) - SHINGLE + 1
    mixed = np.zeros(count, np.uint32)
    for i, odd in enumerate(_ODD):
        mixed = (mixed ^ (hashes[i : i + count] * odd)) * np.uint32(0x01000193)
        mixed ^= mixed >> np.uint32(15)
    return mixed


def _datasketch() -> Any:
    try:
        import datasketch
    except ImportError as error:
        raise MissingExtra("datasketch", "train") from error
    return datasketch
