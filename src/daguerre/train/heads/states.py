"""The hidden states of windows, computed once by the frozen model and kept on the disk in 16 bits.

The backend that will decode computes them, in the type of weights in which it will. A window that is whole in the file
is not computed again.

Letters: T tokens, W windows, D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from daguerre.errors import DataError
from daguerre.model import Model
from daguerre.models.forward import Forward, Hidden, Layout
from daguerre.train.heads.windows import ChosenWindows

FILE = "states.f16"
AT_ONCE = 2048
"""Rows that the backend computes together, at most."""


class WindowStates:
    """The states of windows in a folder. DataError for a file that is longer than theirs."""

    def __init__(self, folder: Path, windows: ChosenWindows, width: int) -> None:
        self.path, self.windows, self.width = folder / FILE, windows, width
        folder.mkdir(parents=True, exist_ok=True)
        self._ends = np.cumsum(windows.sizes, dtype=np.int64)
        rows = self.path.stat().st_size // (2 * width) if self.path.exists() else 0
        if rows > self._ends[-1]:
            raise DataError(f"{self.path} has states of other text: remove {folder}")
        self.done = int(np.searchsorted(self._ends, rows, side="right"))
        with self.path.open("ab") as file:
            file.truncate(2 * width * self.rows)

    @property
    def rows(self) -> int:
        """Rows that are there."""
        return int(self._ends[self.done - 1]) if self.done else 0

    @property
    def is_whole(self) -> bool:
        """Whether all windows are there."""
        return self.done == len(self._ends)

    def add(self, model: Model) -> int:
        """Compute the states of the next windows, and keep them; returns how many rows these have."""
        last = max(self.done + 1, int(np.searchsorted(self._ends, self.rows + AT_ONCE, side="right")))
        found = [states_of(model, self.windows, number) for number in range(self.done, min(last, len(self._ends)))]
        with self.path.open("ab") as file:
            file.write(np.concatenate(found).tobytes())
        self.done += len(found)
        return sum(map(len, found))

    def compute(self, model: Model, told: Callable[[int, int, float], bool]) -> None:
        """Compute all that is not there. told: called with the rows that are done, all, and rows a second; where it
        says no, the rest is left for another time.
        """
        began, made = time.monotonic(), 0
        while not self.is_whole:
            made += self.add(model)
            if not told(self.rows, int(self._ends[-1]), made / (time.monotonic() - began)):
                return

    @cached_property
    def all(self) -> np.memmap[tuple[int, ...], np.dtype[np.float16]]:
        """All of them, float16 (T, D)."""
        return np.memmap(self.path, np.float16, "r", shape=(self.rows, self.width))


def states_of(model: Model, windows: ChosenWindows, number: int) -> np.ndarray:
    """The states of a window's rows, float16 (T', D)."""
    start, first = windows.starts[number], model.config.first
    ids = np.array([*first, *windows.tokens[start : start + windows.sizes[number]]], np.int64)
    places, backend = np.arange(len(ids)), model.denoiser.backend
    layout = Layout(places, (places + 1).astype(np.int32), len(ids))
    forward = Forward(ids, layout, None, places[len(first) :].astype(np.int32), Hidden())
    (answer,) = backend.forward([forward])
    assert answer.hidden is not None
    return answer.hidden.clip(-65504, 65504).astype(np.float16)
