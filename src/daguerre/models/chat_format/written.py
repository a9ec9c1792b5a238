"""Texts in which special tokens are written out, so that they are told from ordinary tokens that spell the same.

Before a special token's text is WRITTEN, a private character. Where an ordinary token has that one, ORDINARY follows
it, a code point that no text may have (a noncharacter of Unicode). So no text of a user or a model is read as a mark.
"""

from __future__ import annotations

import re
from bisect import bisect_left

from daguerre.models.chat_format.source import MARKED

WRITTEN, ORDINARY = "\ue001", "\ufdd0"
SIGN = re.compile(f"{WRITTEN}({ORDINARY})?")


def special(text: str) -> str:
    """The text of a special token as it is written out."""
    return WRITTEN + text


def ordinary(text: str) -> str:
    """A text of ordinary tokens as it is written out."""
    return text.replace(WRITTEN, WRITTEN + ORDINARY)


def plain(text: str) -> str:
    """What a text says in which special tokens are written out."""
    return SIGN.sub(lambda found: WRITTEN if found[1] else "", text)


class Marks:
    """Turns such a text, as it comes, into one for readers, in which MARKED stands before special tokens and nowhere
    else.
    """

    def __init__(self) -> None:
        self._held, self._num, self._shorter = "", 0, list[int]()

    def feed(self, text: str, last: bool) -> str:
        """What a further piece of the text brings; a sign that may be cut is held back."""
        text = self._held + text
        self._held = WRITTEN if text.endswith(WRITTEN) and not last else ""
        out, end = list[str](), 0
        for found in SIGN.finditer(text, 0, len(text) - len(self._held)):
            out += [text[end : found.start()], WRITTEN if found[1] else MARKED]
            end = found.end()
            if found[1]:
                self._shorter.append(self._num + sum(map(len, out)))
        out.append(text[end : len(text) - len(self._held)])
        self._num += sum(map(len, out))
        return "".join(out)

    def place(self, end: int) -> int:
        """The place in the text as it is written of one in the text for readers."""
        return end + bisect_left(self._shorter, end + 1)
