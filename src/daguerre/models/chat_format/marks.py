"""Marks in rendered texts: where they stand, and what two texts have in common without cutting one in two."""

from __future__ import annotations

import os
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
    length = len(os.path.commonprefix(list(texts)))
    return texts[0][: min(uncut(length, text) for text in texts)]


def common_end(texts: Sequence[str]) -> str:
    """What all texts end with, of whole marks."""
    length = len(os.path.commonprefix([text[::-1] for text in texts]))
    return texts[0][len(texts[0]) - min(len(text) - uncut_end(len(text) - length, text) for text in texts) :]


def after(text: str, what: str) -> str:
    """The text behind what it begins with."""
    return text.removeprefix(what)


def rests(one: str, other: str) -> bool:
    """Whether two texts differ in white space alone."""
    return one.split() == other.split()
