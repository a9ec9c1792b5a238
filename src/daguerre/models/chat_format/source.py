"""A text that comes in pieces, and literals in it whose white space may differ from what a template writes.

Reading is done by generators: each `yield` waits for more of the text. So what is decided never depends on where the
text was cut.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from enum import Enum
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""What gives a T once enough of the text is there."""
MARKED = "\udfff"
"""Stands before a mark that a special token has written: half of a surrogate pair, which no bytes are decoded to."""


class Fit(Enum):
    """Whether a literal stands somewhere: it does, it does not, or more text would tell."""

    YES, NO, OPEN = range(3)


@lru_cache(maxsize=4096)
def _words(literal: str) -> tuple[str, ...]:
    """A literal's words and the white space between them, which is told by its first character."""
    return tuple(re.findall(r"\s+|\S+", literal))


class IncomingText:
    """A text so far. at: what is read of it; closed: nothing follows."""

    def __init__(self) -> None:
        self.text, self.at, self.closed = "", 0, False

    @property
    def rest(self) -> str:
        """What is not read yet."""
        return self.text[self.at :]

    def need(self, number: int = 1) -> Steps[bool]:
        """Wait for so many characters; False: the text ends before."""
        while len(self.text) - self.at < number and not self.closed:
            yield
        return len(self.text) - self.at >= number

    def take(self, end: int) -> str:
        """The text up to a place, which is read then."""
        text, self.at = self.text[self.at : end], end
        return text

    def blank(self) -> Steps[str]:
        """Read white space, all there is."""
        end = self.at
        while True:
            while end < len(self.text) and self.text[end].isspace():
                end += 1
            if end < len(self.text) or self.closed:
                return self.take(end)
            yield

    def fits(self, literal: str, at: int) -> tuple[Fit, int]:
        """Whether a literal stands at a place, and its end. White space in it stands for any."""
        for word in _words(literal):
            if word[0].isspace():
                while at < len(self.text) and self.text[at].isspace():
                    at += 1
            elif self.text.startswith(word, at):
                at += len(word)
            elif word.startswith(self.text[at : at + len(word)]) and len(self.text) - at < len(word):
                return (Fit.NO if self.closed else Fit.OPEN), at
            else:
                return Fit.NO, at
        open_end = literal[-1:].isspace() and at == len(self.text) and not self.closed
        return (Fit.OPEN if open_end else Fit.YES), at

    def choice(self, literals: Sequence[str], at: int) -> tuple[Fit, int, int]:
        """The first of some literals that stands at a place: (whether one does, which, its end)."""
        for number, literal in enumerate(literals):
            fit, end = self.fits(literal, at)
            if fit is not Fit.NO:
                return fit, number, end
        return Fit.NO, -1, at

    def choose(self, literals: Sequence[str]) -> Steps[int]:
        """Read the first of some literals that stands here, and say which; -1: none does, and nothing is read."""
        while True:
            fit, number, end = self.choice(literals, self.at)
            if fit is Fit.YES:
                self.at = end
                return number
            if fit is Fit.NO:
                return -1
            yield

    def match(self, pattern: re.Pattern[str]) -> Steps[re.Match[str] | None]:
        """Read what a pattern matches here, which must not end with the text so far."""
        while True:
            found = pattern.match(self.text, self.at)
            if found is None or found.end() < len(self.text) or self.closed:
                if found is not None:
                    self.at = found.end()
                return found
            yield
