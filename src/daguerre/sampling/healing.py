"""Token healing: the last tokens before a gap are taken back and drawn again, so that a text cut inside a word or
before an indentation continues as the vocabulary would have written it.

Only tokens that keep the text may be drawn: those that begin with the bytes taken back, or that are a proper beginning
of them (then the next token goes on with the remainder). The caller's bytes therefore stand whatever is drawn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.logits import Proposals

MAX_TAKEN_BACK = 4


class TokenBytes:
    """The bytes of every token, and the tokens in the order of their bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.of = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self._sorted = sorted((text, token) for token, text in enumerate(self.of) if text)
        self._keys = [text for text, _ in self._sorted]
        self._ids = dict(self._sorted)

    @staticmethod
    @lru_cache(maxsize=8)
    def make(tokenizer: Tokenizer) -> TokenBytes:
        """The same for equal vocabularies; they never change."""
        return TokenBytes(tokenizer)

    def beginning_with(self, text: bytes) -> list[int]:
        """Tokens whose bytes begin with `text`, itself included."""
        first = bisect_left(self._keys, text)
        out = []
        for key, token in self._sorted[first:]:
            if not key.startswith(text):
                break
            out.append(token)
        return out

    def proper_beginnings(self, text: bytes) -> list[int]:
        """Tokens whose bytes are a proper, nonempty beginning of `text`."""
        return [self._ids[text[:n]] for n in range(1, len(text)) if text[:n] in self._ids]

    def fewest(self, text: bytes) -> list[int]:
        """For each i, the fewest tokens that cover text[i:], the last of which may run past the end."""
        need = [0] * (len(text) + 1)
        for i in range(len(text) - 1, -1, -1):
            shorter = [need[i + len(self.of[t])] for t in self.proper_beginnings(text[i:])]
            need[i] = 1 if self.beginning_with(text[i:]) else 1 + min(shorter)
        return need


def num_to_take_back(tokens: Sequence[int], table: TokenBytes) -> int:
    """How many tokens at the end of a prefix to draw again: those of its last word, or as many as one longer token
    begins with; at most MAX_TAKEN_BACK, and none where nothing else could be drawn.
    """
    best = 0
    for count in range(1, min(MAX_TAKEN_BACK, len(tokens)) + 1):
        pieces = [table.of[t] for t in tokens[len(tokens) - count :]]
        if not pieces[0]:  # a special token
            break
        text = b"".join(pieces)
        longer = len(table.beginning_with(text)) > int(count == 1)
        one_word = all(_letter(a[-1]) and _letter(b[0]) for a, b in pairwise(pieces))
        if longer or (one_word and (count > 1 or _letter(text[-1]))):
            best = count
    return best


def _letter(byte: int) -> bool:
    return byte >= 0x80 or chr(byte).isalpha()


@dataclass(frozen=True)
class Healing:
    """A rule: the gap that begins at `start` begins with the bytes `text`, in at most `slots` tokens.

    There is one slot more than tokens were taken back where the canvas has room: "print" may become "pr", "inter".
    `limit` new tokens may follow; with `filler` (the null's id), what the gap then has to spare at its right end is
    closed as soon as the text is healed.
    """

    table: TokenBytes
    start: int
    text: bytes
    slots: int
    limit: int
    filler: int | None = None

    def where(self, canvas: Canvas) -> tuple[int, bytes, bool]:
        """The next position, the bytes that it has to begin with (b"" when healed), and whether the last healing
        token brought new text.
        """
        position, rest, brought = self.start, self.text, False
        while rest and position < len(canvas) and not canvas.open[position]:
            piece = self.table.of[canvas.tokens[position]]
            brought = len(piece) > len(rest)
            rest = rest[len(piece) :]
            position += 1
        return position, rest, brought

    def end(self, canvas: Canvas) -> int:
        """The position behind the last new token that the budget allows; `canvas` is healed."""
        position, _, brought = self.where(canvas)
        return position + self.limit - int(brought)

    def ban(self, canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> None:
        """At the next position, all tokens that do not keep the text, or would need too many to."""
        position, rest, _ = self.where(canvas)
        if not rest:
            return
        left = self.slots - (position - self.start) - 1
        need = self.table.fewest(rest)
        kept = self.table.beginning_with(rest)
        kept += [t for t in self.table.proper_beginnings(rest) if need[len(self.table.of[t])] <= left]
        banned = np.ones(logits.shape[1], dtype=bool)
        banned[kept] = False
        logits[np.ix_(positions == position, banned)] = -np.inf

    def eligible(self, canvas: Canvas, proposals: Proposals) -> np.ndarray:
        """Until the text is healed, only its next position."""
        position, rest, _ = self.where(canvas)
        return proposals.positions == position if rest else np.ones(len(proposals), dtype=bool)

    def complete(self, canvas: Canvas, decision: Decision) -> Decision:
        """Close what the gap has to spare when this decision heals the text."""
        after = canvas.apply(decision)
        if self.filler is None or not self.where(canvas)[1] or self.where(after)[1]:
            return decision
        end = self.end(after)
        gap_end = next(b for a, b in canvas.gaps if a == self.start)
        return decision.extended(np.arange(end, gap_end), self.filler, 0)
