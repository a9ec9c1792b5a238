"""Texts in which the names of special tokens are hidden, so that they are the user's text."""

from __future__ import annotations

from collections.abc import Sequence

HIDDEN = "\ue000"
"""A private character, of which no special token is made: it stands for each one of a text that is not to be read."""


def hidden(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """A text whose characters in these spans are private ones."""
    letters = list(text)
    for start, end in spans:
        letters[start:end] = HIDDEN * (end - start)
    return "".join(letters)
