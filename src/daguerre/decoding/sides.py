"""What is shown of the texts around gaps: whole lines next to each, as many as a number of tokens allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from daguerre.models.tokenizer import Tokenizer

BEFORE_SHARE = 0.75
"""Of the room of a gap, for the text before it where both sides are long."""
TOKEN_LENGTH = 32
"""Characters that a token has at most on average. Longer parts are not tried: encoding a line of a million characters
takes seconds.
"""


@dataclass
class Part:
    """What is shown of a text that stands before a gap, after one, or between two: its end, next to the gap behind it,
    and its beginning, next to the gap before it. A text that is shown whole is its `end`, or where there is no gap
    behind it its `beginning`.
    """

    after: Side | None
    before: Side | None
    beginning: str = ""
    end: str = ""

    @property
    def sides(self) -> list[Side]:
        """The side before a gap, which comes first where there is room, and the side after one."""
        return [side for side in (self.before, self.after) if side is not None]

    @property
    def weight(self) -> float:
        """Of the room of all texts."""
        return BEFORE_SHARE * (self.before is not None) + (1 - BEFORE_SHARE) * (self.after is not None)

    @property
    def num_tokens(self) -> int:
        """Those of the beginning and the end."""
        before = 0 if self.before is None else self.before.count(self.end)
        return before + (0 if self.after is None else self.after.count(self.beginning))

    def show_all(self) -> None:
        """Show the whole text."""
        if self.before is not None:
            self.beginning, self.end = "", self.before.text
        elif self.after is not None:
            self.beginning = self.after.text

    def show(self, room: int) -> None:
        """Show as much as `room` tokens allow, less than the whole."""
        if self.after is not None:
            self.beginning = self.after.most(room - int(room * BEFORE_SHARE) if self.before is not None else room)
        if self.before is not None:
            self.end = self.before.most(room - (0 if self.after is None else self.after.count(self.beginning)))
        self._join()

    def grow(self, left: int) -> int:
        """Show more, for which there are `left` tokens; returns those that are left then."""
        used = self.num_tokens
        if self.before is not None:
            self.end = max(self.end, self.before.most(self.before.count(self.end) + left), key=len)
        if self.after is not None:
            now = self.after.count(self.beginning) + left - (self.num_tokens - used)
            self.beginning = max(self.beginning, self.after.most(now), key=len)
        self._join()
        return left - (self.num_tokens - used)

    def _join(self) -> None:
        """A text whose beginning and end meet is shown whole."""
        if self.before is not None and len(self.beginning) + len(self.end) >= len(self.before.text):
            self.show_all()


def share(tokenizer: Tokenizer, texts: Sequence[str], room: int) -> list[Part]:
    """What is shown of the texts around gaps, one more than there are gaps: at most `room` tokens.

    Each gap has the same share of the room, three quarters of it for the text before the gap; what one text leaves goes
    to the others, in proportion, and no line is dropped for which there is room.
    """
    last_one = len(texts) - 1
    parts = [
        Part(
            Side(tokenizer, text, False, room) if number else None,
            Side(tokenizer, text, True, room) if number < last_one else None,
        )
        for number, text in enumerate(texts)
    ]
    needs = [part.sides[0].needs(room) for part in parts]
    cut, left = list(range(len(parts))), float(room)
    while cut:
        unit = left / sum(parts[number].weight for number in cut)
        whole = [number for number in cut if needs[number] <= unit * parts[number].weight]
        if not whole:
            break
        left -= sum(needs[number] for number in whole)
        cut = [number for number in cut if number not in whole]
        for number in whole:
            parts[number].show_all()
    for number in cut:
        parts[number].show(
            math.ceil(unit * parts[number].weight) if number == last_one else int(unit * parts[number].weight)
        )
    free = room - sum(part.num_tokens for part in parts)
    for number in cut:
        free = parts[number].grow(free)
    return parts


class Side:
    """The text on one side of the gap. `begins`: it is the text before, of which the end is shown."""

    def __init__(self, tokenizer: Tokenizer, text: str, begins: bool, room: int) -> None:
        self._tokenizer, self.text, self._begins = tokenizer, text, begins
        self._reach = room * TOKEN_LENGTH

    def count(self, text: str) -> int:
        """The tokens of a part of it."""
        return len(self._tokenizer.encode(text, begins=self._begins)) if text else 0

    def part(self, length: int) -> str:
        """The `length` characters next to the gap."""
        return self.text[len(self.text) - length :] if self._begins else self.text[:length]

    def needs(self, room: int) -> int:
        """The tokens of the whole text, or a number above `room` where it has more."""
        length = 4 * room
        while length < len(self.text):
            if not self.fits(length, room):
                return room + 1
            length *= 2
        return self.count(self.text)

    @cached_property
    def _lengths(self) -> list[int]:
        """The lengths of parts of whole lines, shortest first, from none to all that could fit. Where not even the line
        at the gap could, the part of it that could.
        """
        near = self.part(min(self._reach, len(self.text)))
        ends = line_ends(near)
        lengths = [0, *ends]
        if self._begins:
            lengths = [0, *(len(near) - start for start in reversed([0, *ends[:-1]]))] if ends else [0]
        whole = len(near) == len(self.text) or (
            self.text[-len(near) - 1] == "\n" if self._begins else near.endswith("\n")
        )
        return lengths if whole or len(lengths) <= 2 else lengths[:-1]

    def most(self, room: int) -> str:
        """The longest part of whole lines that has at most `room` tokens; of the line at the gap, where that alone has
        more, as many characters as do not.
        """
        lengths = self._lengths
        best = last(lambda at: self.fits(lengths[at], room), len(lengths) - 1, room // 12)
        if best or len(lengths) == 1:
            return self.part(lengths[best])
        return self.part(last(lambda length: self.fits(length, room), lengths[1], 3 * room))

    def fits(self, length: int, room: int) -> bool:
        return not length or (length <= room * TOKEN_LENGTH and self.count(self.part(length)) <= room)


def line_ends(text: str) -> list[int]:
    """Where each line ends, its line break included; the last line may have none."""
    ends, at = [], 0
    while at := text.find("\n", at) + 1:
        ends.append(at)
    if text and not text.endswith("\n"):
        ends.append(len(text))
    return ends


def last(fits: Callable[[int], bool], most: int, guess: int) -> int:
    """A number from 0 to `most` that fits while the next one does not, or `most`. 0 fits. Near a good guess it takes
    few looks, each of which may be slow, and none far above the guess where that does not fit.
    """
    low, high, step = 0, most + 1, 1
    at = min(max(guess, 1), most)
    while low < at < high:
        if fits(at):
            low, at = at, min(at + step, most)
        else:
            high, at = at, max(at - step, 0)
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
