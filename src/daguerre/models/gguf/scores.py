"""Merges of a vocabulary with scores (kind `llama`), for the library `tokenizers`, which has a rank for each pair.

llama.cpp, like SentencePiece, joins the two neighbors whose joined text is the token of the highest score; of equal
scores the leftmost. Here every way to cut a token into two is listed, by the score of the token. That is exact: what is
joined within a token that comes about does not depend on its surroundings, so one cut of each token is ever used,
whatever ranks the others have. Tokens of equal scores are another matter: their pairs get ranks, and the lowest comes
first, wherever it stands. Runs of one character up to a power of two of them, such as the spaces of Llama 2, end up
alike if halves come first; of other ties it is only said that they may not (`Merges.exact`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AnySet
from dataclasses import dataclass
from itertools import groupby

Pair = tuple[str, str]
LONGEST = 1 << 10
"""Characters of a token that is made of others."""


@dataclass(frozen=True)
class Merges:
    """Pairs of tokens in the order of their ranks; `exact`: the library's ids are those of llama.cpp."""

    pairs: list[tuple[str, str]]
    exact: bool


def scored_merges(scores: Mapping[str, float], letters: set[str]) -> Merges:
    """The merges that make the tokens of `scores`, from each other and from tokens of one character, `letters`."""
    parts = scores.keys() | letters
    pairs, ties = list[Pair](), list[list[Pair]]()
    for _, texts in groupby(sorted(scores, key=lambda text: (-scores[text], len(text))), key=scores.__getitem__):
        cuts = [cut for text in texts for cut in _cuts(text, parts)]
        if len(_made(cuts)) > 1:
            cuts.sort(key=lambda cut: cut[0] != cut[1])
            ties.append(cuts)
        pairs += cuts
    known = letters.issuperset("".join(scores))
    return Merges(pairs, known and all(_is_kept(_made(tie), pairs) for tie in ties))


def _cuts(text: str, parts: AnySet[str]) -> list[Pair]:
    """The ways to cut a token into two of `parts`."""
    return [
        (left, right)
        for place in range(1, len(text))
        if (left := text[:place]) in parts and (right := text[place:]) in parts
    ]


def _made(pairs: Iterable[Pair]) -> set[str]:
    return {left + right for left, right in pairs}


def _is_kept(tied: set[str], pairs: Iterable[Pair]) -> bool:
    """Whether tokens of one score come about as in llama.cpp: runs that are parts of no other token."""
    most = max(map(len, tied))
    runs = len({*"".join(tied)}) == 1 and len(tied) == most - 1 and most & (most - 1) == 0
    return runs and not any(tied & {left, right} and left + right not in tied for left, right in pairs)
