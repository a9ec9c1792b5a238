"""Repetition: penalties and bans as transformers defines them, and where a text begins to loop.

`Repetition` is a scorer (`models.wrappers.guidance.Scorer`), so it is computed for each row from the canvas that the
row sees: verified drafts included, which keeps self-speculation lossless.

    penalty    Keskar et al. 2019 (arXiv 1909.05858, section 4.1): logits of tokens that the text has, the prompt
               included, are divided by the penalty where positive and multiplied by it where negative
    n-grams    a token that would complete n tokens in a row that the text has already, the prompt included, is banned

Letters: A positions, V vocabulary, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daguerre.canvas import Canvas

BAN = np.float32(-1e9)
"""What is added to the logit of a banned token. It is finite: where a constraint or the healing of a word allows no
other token, a banned one is taken."""
COPIES, LOOPING = 3, 48
"""A text loops where it ends with this many copies of something, of this many tokens in all or more."""
LONGEST_UNIT = 128
"""Tokens of the longest text whose copies are looked for."""


@dataclass(frozen=True)
class Repetition:
    """What is added to logits for a repetition penalty (1: none) and for n-grams of `ngram_size` (0: none)."""

    penalty: float = 1.0
    ngram_size: int = 0

    def __call__(self, canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Float32 (A, V). Committed tokens count wherever they stand; n-grams are those that a token would complete
        with committed ones on either side.
        """
        out = np.zeros_like(logits)
        if self.penalty != 1:
            seen = np.unique(canvas.tokens[~canvas.open])
            values = np.where(np.isfinite(logits[:, seen]), logits[:, seen], np.float32(0))
            scale = np.where(values > 0, np.float32(1 / self.penalty), np.float32(self.penalty))
            out[:, seen] = values * (scale - 1)
        if self.ngram_size:
            tokens = np.where(canvas.open, -1, canvas.tokens)
            for row, position in zip(out, positions.tolist(), strict=True):
                row[_completing(tokens, position, self.ngram_size)] = BAN
        return out


def _completing(tokens: np.ndarray, position: int, size: int) -> np.ndarray:
    """The tokens, int64, that at an open `position` of `tokens` (L,), -1 where open, would complete `size` tokens in a
    row that stand elsewhere.
    """
    if len(tokens) < size:
        return np.zeros(0, dtype=np.int64)
    rows = np.lib.stride_tricks.sliding_window_view(tokens, size)
    rows = rows[(rows >= 0).all(axis=1)]
    found = []
    for place in range(size):  # of the token among the n
        start = position - place
        around = np.delete(tokens[max(start, 0) : start + size], place if start >= 0 else position)
        if start < 0 or len(around) < size - 1 or (around < 0).any():
            continue
        same = (np.delete(rows, place, axis=1) == around).all(axis=1)
        found.append(rows[same, place])
    return np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)


def loops(tokens: np.ndarray) -> bool:
    """Whether `tokens` (L,) end with a loop."""
    num = len(tokens)
    if num < LOOPING:
        return False
    tail = tokens[max(0, num - 1 - LONGEST_UNIT) : -1]
    units = len(tail) - np.flatnonzero(tail == tokens[-1])
    content, width = tokens.tobytes(), tokens.itemsize
    for unit in units.tolist():
        needed = _repeated(unit)
        if unit + needed <= num and content[-needed * width :] == content[-(needed + unit) * width : -unit * width]:
            return True
    return False


def _repeated(unit: int) -> int:
    """How many tokens must equal those `unit` before them."""
    return max((COPIES - 1) * unit, LOOPING - unit)
