"""The likelihood of a text by line, and the lines that surprise the model.

A token counts for the line in which it begins, so the lines' bits sum to those of the text. A line of n bytes has an
excess over n times the median bits per byte of the text's lines; divided by the root of n, excesses of short and long
lines compare. A line is surprising if that is more than SPREADS robust standard deviations (1.4826 times the median
absolute deviation) above the median, and the excess is MIN_BITS or more.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import TokenScores

SPREADS, MIN_BITS = 3.0, 8.0
NORMAL = 1.4826
"""A normal distribution's standard deviation in median absolute deviations."""


@dataclass(frozen=True)
class ScoredToken:
    """A token: its text, which may be part of a character, and its bits."""

    text: str
    bits: float


@dataclass(frozen=True)
class LineScore:
    """A line: its number from 1, its text without the break, its UTF-8 bytes with it, the bits of the tokens that begin
    in it, and how far they are above what is usual, in robust standard deviations.
    """

    number: int
    text: str
    num_bytes: int
    bits: float
    surprise: float
    tokens: tuple[ScoredToken, ...]

    @property
    def surprising(self) -> bool:
        """Whether the line has surprisingly many bits."""
        return self.surprise > SPREADS

    @property
    def worst(self) -> ScoredToken | None:
        """The token with the most bits."""
        return max(self.tokens, key=lambda token: token.bits, default=None)


def by_line(tokenizer: Tokenizer, text: str, scores: TokenScores) -> list[LineScore]:
    """The lines of a text that `scores` are of. Tokens at its beginning that were not scored have no bits.
    UnsupportedError for a tokenizer that does not keep every byte of the text.
    """
    if not text:
        raise InputError("the text is empty: there is nothing to score")
    ids, content = tokenizer.encode(text), text.encode("utf-8")
    pieces = [tokenizer.token_bytes(token) for token in ids]
    if b"".join(pieces) != content:
        raise UnsupportedError(
            "this model's tokenizer changes the text, so its tokens have no lines: score it with nll"
        )
    bits = np.concatenate([np.zeros(len(ids) - scores.num_tokens), scores.by_token]) / np.log(2)
    lines = content.removesuffix(b"\n").split(b"\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines[:-1])]
    tokens: list[list[ScoredToken]] = [[] for _ in lines]
    for piece, offset, value in zip(pieces, accumulate(map(len, pieces), initial=0), bits.tolist(), strict=False):
        where = bisect_right(starts, offset) - 1
        tokens[where].append(ScoredToken(piece.decode("utf-8", errors="replace"), value))
    sizes = np.diff([*starts, len(content)])
    sums = np.array([sum(token.bits for token in each) for each in tokens])
    surprises = _surprises(sums, sizes)
    return [
        LineScore(number, line.decode("utf-8").rstrip("\r"), int(size), float(total), float(surprise), tuple(each))
        for number, (line, size, total, surprise, each) in enumerate(
            zip(lines, sizes, sums, surprises, tokens, strict=True), 1
        )
    ]


def _surprises(bits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How surprising lines are, in robust standard deviations of this text; of lines without MIN_BITS at most 0."""
    long = sizes > 1
    usual = float(np.median(bits[long] / sizes[long])) if long.any() else 0.0
    excess = (bits - usual * sizes) / np.sqrt(sizes)  # sums of n like parts spread with the root of n
    middle = float(np.median(excess))
    spread = NORMAL * float(np.median(np.abs(excess - middle)))
    out = (excess - middle) / max(spread, 1e-9)
    return np.where(bits - usual * sizes >= MIN_BITS, out, np.minimum(out, 0.0))
