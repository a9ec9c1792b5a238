"""Pins: tokens at given positions of a gap, and texts that occur somewhere in an interval of positions.

A pin at a position is part of the canvas, which nothing redraws. One in an interval is a constraint on the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

import numpy as np

from daguerre.canvas import Canvas, Decision, Span
from daguerre.errors import InputError, shown
from daguerre.kinds import check_unicode
from daguerre.models.tokenizer import Tokenizer

Interval = tuple[int, int | None]


@dataclass(frozen=True)
class Pin:
    """A text, or token ids, that a gap must have. Positions count the gap's tokens. InputError for what is not a pin.

    at   a position: 0 or more is that of the first token, from the left; a negative one that of the last token, from
    the
         right end of the gap's `max_tokens`, -1. Or an interval (start, end) in which the text occurs, as in a slice:
         negative numbers count from the right, and an end of None is that of the gap
    gap  which gap, from 0; None: every gap

    A text at a position has the tokens that it has alone; in an interval any tokens may write it.
    """

    text: str | Sequence[int]
    at: int | Interval
    gap: int | None = None

    def __post_init__(self) -> None:
        try:
            content = self.text if isinstance(self.text, str) else tuple(index(token) for token in self.text)
            place: int | Interval
            if isinstance(self.at, tuple | list):
                start, end = self.at
                place = index(start), None if end is None else index(end)
            else:
                place = index(self.at)
            gap = None if self.gap is None else index(self.gap)
        except (TypeError, ValueError):
            raise InputError(
                f"a pin is a text or token ids, and a position, at, or (start, end), not {shown(self.text)} at "
                f"{shown(self.at)} of gap {shown(self.gap)}"
            ) from None
        if isinstance(content, str):
            check_unicode(content, "the text of a pin")
        if not content or (gap is not None and gap < 0):
            raise InputError("a pin needs some text or tokens, and a gap counted from 0")
        for name, value in (("text", content), ("at", place), ("gap", gap)):
            object.__setattr__(self, name, value)

    @property
    def floats(self) -> bool:
        """True for a pin in an interval."""
        return isinstance(self.at, tuple)

    @classmethod
    def parse(cls, written: str) -> Pin:
        """AT=TEXT, where AT is a position, or START:END of which the end may be missing: "3=def", "-1=;", "0:9=x"."""
        check_unicode(written, "a written pin")
        place, _, text = written.partition("=")
        start, interval, end = place.partition(":")
        try:
            at = (int(start), int(end) if end else None) if interval else int(start)
        except ValueError:
            raise InputError(f"{shown(written)} is not a pin: write AT=TEXT, such as 3=def, -1=; or 0:9=x") from None
        return cls(text, at)

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        """The token ids. InputError for one that is not text."""
        return ordinary(self.text, tokenizer)

    def within(self, length: int, tokenizer: Tokenizer) -> tuple[str | tuple[int, ...], int, int]:
        """The text, or its tokens, and its interval in a gap of `length` tokens."""
        assert isinstance(self.at, tuple)
        start, end = self.at
        first = start if start >= 0 else length + start
        last = length if end is None else end if end >= 0 else length + end
        if not 0 <= first < last <= length:
            raise InputError(
                f"the pin {shown(self.text)} has the interval {self.at} in a gap of {length} tokens: move it"
            )
        return (self.text if isinstance(self.text, str) else tuple(self.tokens(tokenizer))), first, last


def ordinary(text: str | Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The token ids of a text. InputError for a special token, or one outside the vocabulary; UnsupportedError if
    tokens cannot be read as bytes.
    """
    tokenizer.require_bytes("a pin")
    ids = tokenizer.encode_plain(text, begins=False) if isinstance(text, str) else list(text)
    for token in ids:
        if not tokenizer.token_bytes(token):
            raise InputError(f"token {token} is special and cannot be pinned: pin text")
    return ids


def place(at: int, tokens: Sequence[int], gap: Span, what: object) -> np.ndarray:
    """The canvas positions, int64 (k,), of k tokens pinned `at` a position of `gap`; see `Pin`."""
    length = gap[1] - gap[0]
    first = at if at >= 0 else length + at + 1 - len(tokens)
    if not 0 <= first <= length - len(tokens):
        raise InputError(
            f"the pin {shown(what)} at {at} has {len(tokens)} tokens and its gap {length}: move it, or raise max_tokens"
        )
    return gap[0] + first + np.arange(len(tokens))


def pinned(canvas: Canvas, pins: Sequence[Pin], tokenizer: Tokenizer) -> Canvas:
    """The canvas with all pins at positions in place. InputError where two contradict each other."""
    held: dict[int, tuple[int, Pin]] = {}
    for pin in pins:
        if pin.gap is not None and pin.gap >= len(canvas.gaps):
            raise InputError(f"the pin {shown(pin.text)} is for gap {pin.gap} and there are {len(canvas.gaps)}, from 0")
        for number, gap in enumerate(canvas.gaps):
            if pin.floats or pin.gap not in (None, number):
                continue
            assert isinstance(pin.at, int)
            tokens = pin.tokens(tokenizer)
            for position, token in zip(place(pin.at, tokens, gap, pin.text).tolist(), tokens, strict=True):
                known, other = held.setdefault(position, (token, pin))
                if known != token:
                    raise InputError(
                        f"the pins {shown(other.text)} at {other.at} and {shown(pin.text)} at {pin.at} contradict each "
                        f"other at position {position - gap[0]} of the gap: move one"
                    )
    positions = sorted(held)
    return canvas.apply(pinning(canvas, np.array(positions, dtype=np.int64), [held[p][0] for p in positions]))


def pinning(canvas: Canvas, positions: np.ndarray, tokens: Sequence[int]) -> Decision:
    """The decision that pins tokens (k,) at positions (k,), in place of what was drawn there. InputError where
    something is pinned already.
    """
    taken = np.intersect1d(positions, canvas.pins)
    if taken.size:
        raise InputError(f"position {int(taken[0])} of the canvas is pinned already: unpin it first")
    sure, drawn = np.ones(len(positions)), positions[~canvas.open[positions]]
    return Decision(positions, np.array(tokens, dtype=np.int64), sure, sure, replace=drawn, pin=positions)
