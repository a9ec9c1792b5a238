"""Token healing: the last tokens before a gap are taken back and drawn again, so that a text that was cut inside a word
or before an indentation continues in the tokens of the whole word.

Only tokens that keep the text may be drawn: those that begin with the bytes taken back, or that are a proper beginning
of them (then the next token continues with the remainder). The caller's bytes therefore come back whatever is drawn.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.logits import Proposals
from daguerre.sampling.rules import Forbidden, Rule

MAX_TAKEN_BACK = 4
LETTERS = frozenset(byte for byte in range(256) if byte >= 0x80 or chr(byte).isalpha())
"""The bytes of words."""


class Vocabulary:
    """The bytes of every token, and the tokens in the order of their bytes; of equal ones the spare comes first.

    `exact`: they are bytes; of a tokenizer that cannot be read, they are texts such as its tokens add.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.of = tokenizer.bytes_of_tokens
        self.exact, self._spare = tokenizer.unreadable is None, tokenizer.spare_byte_ids

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.of))

    @cached_property
    def _tokens(self) -> list[int]:
        tokens = [*sorted(self._spare), *(token for token in range(len(self.of)) if token not in self._spare)]
        return sorted((token for token in tokens if self.of[token]), key=self.of.__getitem__)

    @cached_property
    def _keys(self) -> list[bytes]:
        return [self.of[token] for token in self._tokens]

    def bytes_of(self, tokens: np.ndarray) -> bytes:
        """The text of int64 tokens."""
        return b"".join(map(self.of.__getitem__, tokens.tolist()))

    @staticmethod
    @lru_cache(maxsize=8)
    def make(tokenizer: Tokenizer) -> Vocabulary:
        """One object for equal vocabularies; they never change."""
        return Vocabulary(tokenizer)

    def beginning_with(self, text: bytes) -> list[int]:
        """Tokens whose bytes begin with `text`, itself included."""
        first = bisect_left(self._keys, text)
        return self._tokens[first : bisect_right(self._keys, text, lo=first, key=lambda key: key[: len(text)])]

    def written(self, text: bytes) -> list[int]:
        """Tokens whose bytes are `text`, of which the last one is not spare if another has the same."""
        first = bisect_left(self._keys, text)
        return self._tokens[first : bisect_right(self._keys, text, lo=first)]

    def proper_beginnings(self, text: bytes) -> list[int]:
        """Tokens whose bytes are a proper, nonempty beginning of `text`, the shortest first."""
        return [token for n in range(1, len(text)) for token in self.written(text[:n])]

    def fewest(self, text: bytes) -> list[int]:
        """For each i, the fewest tokens that cover text[i:], the last of which may run past the end; more than
        len(text) where none can, since a byte may have no token of its own.
        """
        need = [0] * (len(text) + 1)
        for i in range(len(text) - 1, -1, -1):
            shorter = [need[i + len(self.of[t])] for t in self.proper_beginnings(text[i:])]
            need[i] = 1 if self.beginning_with(text[i:]) else 1 + min(shorter, default=len(text))
        return need


@lru_cache(maxsize=64)
def keeping(vocabulary: Vocabulary, rest: bytes, num_left: int) -> tuple[int, ...]:
    """Tokens that begin with the bytes `rest`, or are a beginning of them, if `num_left` more tokens can write what is
    left.
    """
    need, begun = vocabulary.fewest(rest), vocabulary.proper_beginnings(rest)
    kept = [token for token in begun if need[len(vocabulary.of[token])] <= num_left]
    return (*vocabulary.beginning_with(rest), *kept)


def num_to_take_back(tokens: Sequence[int], vocabulary: Vocabulary) -> int:
    """How many tokens at the end of a prefix to draw again: those of its last word, or those that a longer token begins
    with; at most MAX_TAKEN_BACK, and none where no other token could be drawn, or tokens cannot be read as bytes.
    """
    best = 0
    for count in range(1, min(MAX_TAKEN_BACK, len(tokens)) + 1 if vocabulary.exact else 1):
        pieces = [vocabulary.of[t] for t in tokens[len(tokens) - count :]]
        if not pieces[0]:  # a special token
            break
        text = b"".join(pieces)
        longer = len(vocabulary.beginning_with(text)) > int(count == 1)
        one_word = all(a[-1] in LETTERS and b[0] in LETTERS for a, b in pairwise(pieces))
        if longer or (one_word and (count > 1 or text[-1] in LETTERS)):
            best = count
    return best


@dataclass(frozen=True)
class Healing(Rule):
    """A rule: the gap at `start` begins with the bytes `text`, in at most `num_tokens` tokens.

    That is one token more than were taken back where the canvas has room: "print" may become "pr", "inter". `limit` new
    tokens may follow. With `filler` (the gap filler's id), positions beyond the budget are filled as soon as the text
    is healed.
    """

    vocabulary: Vocabulary
    start: int
    text: bytes
    num_tokens: int
    limit: int
    filler: int | None = None
    holds_back = True

    def where(self, canvas: Canvas) -> tuple[int, bytes, bool]:
        """The next position, the bytes that it must begin with (b"" when healed), and whether the last healing token
        brought new text.
        """
        position, rest, brought = self.start, self.text, False
        while rest and position < len(canvas.tokens) and not canvas.open[position]:
            piece = self.vocabulary.of[canvas.tokens[position]]
            brought = len(piece) > len(rest)
            rest = rest[len(piece) :]
            position += 1
        return position, rest, brought

    def end(self, canvas: Canvas) -> int:
        """The position after the last new token that the budget allows; `canvas` is healed."""
        position, _, brought = self.where(canvas)
        return position + self.limit - int(brought)

    def forbids(self, canvas: Canvas) -> Forbidden:
        """At the next position, all tokens that do not keep the text, or after which too many would be needed."""
        position, rest, _ = self.where(canvas)
        if not rest:
            return Forbidden()
        num_left = self.start + self.num_tokens - position - 1
        return Forbidden(only_at=position, only=keeping(self.vocabulary, rest, num_left))

    def eligible(self, canvas: Canvas, proposals: Proposals) -> np.ndarray:
        """Until the text is healed, its next position alone."""
        position, rest, _ = self.where(canvas)
        return proposals.positions == position if rest else np.ones(len(proposals), dtype=bool)

    def complete(self, canvas: Canvas, decision: Decision) -> Decision:
        """Fill the positions beyond the budget when this decision heals the text."""
        if self.filler is None:
            return decision
        after = canvas.apply(decision)
        if not self.where(canvas)[1] or self.where(after)[1]:
            return decision
        end = self.end(after)
        gap_end = next(b for a, b in canvas.gaps if a == self.start)
        return decision.extended(np.arange(end, gap_end), self.filler, 0)
