"""Marks in rendered texts: where they stand, and what two texts have in common without cutting one in two."""

from __future__ import annotations

import re
from collections.abc import Sequence

MARK = re.compile(r"<\|(?:open|close)\|>[^<>\n]*<\|sep\|>|<[^<>\s][^<>\n]{0,60}>|\[/?[A-Z][A-Z_]*\]|\[e~\[|\]~b\]")
ENDING = re.compile(r"(?i)end|eo[stm]|stop|return|call")


def uncut(place: int, text: str) -> int:
    """The place, or that before the mark which it would cut."""
    for found in MARK.finditer(text, max(0, place - 64)):
        if found.start() >= place:
            break
        if place < found.end():
            return found.start()
    return place


def uncut_end(place: int, text: str) -> int:
    """The place, or that after the mark which it would cut."""
    return next((found.end() for found in MARK.finditer(text) if found.start() < place < found.end()), place)


def common_start(texts: Sequence[str]) -> str:
    """What all texts begin with, of whole marks."""
    length = _alike(texts)
    return texts[0][: min(uncut(length, text) for text in texts)]


def common_end(texts: Sequence[str]) -> str:
    """What all texts end with, of whole marks."""
    length = _alike([text[::-1] for text in texts])
    return texts[0][len(texts[0]) - min(len(text) - uncut_end(len(text) - length, text) for text in texts) :]


def _alike(texts: Sequence[str]) -> int:
    """How many characters all texts begin with."""
    shortest = min(map(len, texts))
    return next((n for n in range(shortest) if len({text[n] for text in texts}) > 1), shortest)
