"""The bytes of every token of a large vocabulary, in one piece: as objects they would take ten times the memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np


class TokenBytes(Sequence[bytes]):
    """Texts by id, from 0."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        joined, self._ends = bytearray(), array("I", [0])
        for text in texts:
            joined += text
            self._ends.append(len(joined))
        self._joined, self._num = bytes(joined), len(self._ends) - 1

    @classmethod
    def joined(cls, texts: bytes, sizes: np.ndarray) -> TokenBytes:
        """Texts that are joined, and the bytes of each."""
        other = cls.__new__(cls)
        ends = np.concatenate([np.zeros(1, np.uint32), np.cumsum(sizes, dtype=np.uint32)])
        other._joined, other._ends, other._num = texts, array("I", ends.tobytes()), len(sizes)
        return other

    def sized(self, ids: int) -> TokenBytes:
        """A view with so many ids, without a copy of the texts; ids beyond them have no text."""
        other = TokenBytes.__new__(TokenBytes)
        other._joined, other._ends, other._num = self._joined, self._ends, ids
        return other

    def empty(self) -> frozenset[int]:
        """The ids without a text."""
        within = np.flatnonzero(np.diff(np.frombuffer(self._ends, np.uint32)[: self._num + 1]) == 0)
        return frozenset([*within.tolist(), *range(len(self._ends) - 1, self._num)])

    def __len__(self) -> int:
        return self._num

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """The text of an id; b"" where it has none. IndexError for one that is not there."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._num))]
        if not 0 <= index < self._num:
            raise IndexError(index)
        ends = self._ends
        return self._joined[ends[index] : ends[index + 1]] if index + 1 < len(ends) else b""
