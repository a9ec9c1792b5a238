"""What a model is shown of a text that is longer than its context: whole lines around a gap.

Editors send whole files. `window` chooses by four rules, each of which comes before those below it:

1. What is shown ends at the gap: the last lines before it and the first lines after it. Only where one of the two
   lines at the gap is too long alone is it cut, between two characters.
2. Text before the gap has three quarters of the room, text after it one quarter; what one side leaves goes to the
   other. A causal model writes from the text before; the text after says where to end, and little of it does.
3. No line is dropped for which there is room.
4. Other texts (open files, snippets) get what is left then, the last one first, since editors send the latest last.
   They stand before everything else, in the order given; one that does not fit whole has its first lines.

Tokens are counted by encoding the texts that are shown, not by adding up pieces, so the budget holds exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from daguerre.errors import InputError
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer

BEFORE_SHARE = 0.75
"""Of the room, for the text before the gap where both sides are long."""
BETWEEN = "\n\n"
"""What ends each of the other texts."""
TOKEN_LENGTH = 32
"""Characters that a token has at most on average. Longer parts are not tried: encoding a line of a million characters
takes seconds.
"""
HEALED = 1
"""Positions that are left for healing the last word before the gap."""


@dataclass(frozen=True)
class Shown:
    """How much of a text is shown. characters, lines: of the part that is shown; complete: nothing is missing."""

    characters: int
    lines: int
    complete: bool

    @classmethod
    def of(cls, part: str, whole: str) -> Shown:
        """The facts of a part."""
        return cls(len(part), part.count("\n") + bool(part and not part.endswith("\n")), len(part) == len(whole))


@dataclass(frozen=True)
class Window:
    """What is shown: `prefix`, which is `extra` and then `before`; and `suffix`, the text after the gap.

    num_tokens of both; extra has one text for each that was given, empty where nothing of it is shown
    """

    before: str
    suffix: str
    extra: tuple[str, ...]
    num_tokens: int
    shown_before: Shown
    shown_after: Shown
    shown_extra: tuple[Shown, ...] = field(default=())

    @cached_property
    def prefix(self) -> str:
        """The text before the gap, the other texts first."""
        return joined_extra(self.extra) + self.before


def room_for(config: ModelConfig, max_tokens: int) -> int:
    """The tokens that texts around a gap of `max_tokens` can have. InputError where there is no room for any."""
    room = config.max_positions - len(config.first) - max_tokens - HEALED
    if room < 1:
        raise InputError(
            f"max_tokens={max_tokens} leaves no room for the text around it: the model has {config.max_positions} "
            "positions; ask for fewer tokens"
        )
    return room


def window(tokenizer: Tokenizer, before: str, after: str, room: int, extra: Sequence[str] = ()) -> Window:
    """The part of `before` and `after` around a gap, and of `extra` texts, that has at most `room` tokens."""
    if room < 1:
        raise InputError(f"there is room for {room} tokens of text: it must be one or more")
    left, right = _Side(tokenizer, before, True, room), _Side(tokenizer, after, False, room)
    share = max(room - int(room * BEFORE_SHARE), room - left.needs(room))
    behind = right.most(share)
    shown = left.most(room - right.count(behind))
    behind = max(behind, right.most(room - left.count(shown)), key=len)
    chosen = _fill(tokenizer, extra, shown, room - right.count(behind))
    num_tokens = left.count(joined_extra(chosen) + shown) + right.count(behind)
    return Window(
        shown,
        behind,
        chosen,
        num_tokens,
        Shown.of(shown, before),
        Shown.of(behind, after),
        tuple(Shown.of(part, text) for part, text in zip(chosen, extra, strict=True)),
    )


def joined_extra(extra: Sequence[str]) -> str:
    """The other texts as they are shown, one after the other with an empty line between."""
    return "".join(part.rstrip("\n") + BETWEEN for part in extra if part)


def _fill(tokenizer: Tokenizer, extra: Sequence[str], before: str, room: int) -> tuple[str, ...]:
    """As much of the other texts as fits beside `before`."""
    chosen = [""] * len(extra)

    def fits(number: int, part: str) -> bool:
        tried = joined_extra([*chosen[:number], part, *chosen[number + 1 :]]) + before
        return len(tried) <= room * TOKEN_LENGTH and len(tokenizer.encode(tried)) <= room

    for number in reversed(range(len(extra))):
        text = extra[number]
        ends = [0, *_line_ends(text)]
        if len(ends) > 1:
            best = _last(lambda at, n=number, t=text, e=ends: fits(n, t[: e[at]]), len(ends) - 1, 0)  # type: ignore[misc]
            chosen[number] = text[: ends[best]]
        if chosen[number] != text:
            break
    return tuple(chosen)


class _Side:
    """The text on one side of the gap. `begins`: it is the text before, of which the end is shown."""

    def __init__(self, tokenizer: Tokenizer, text: str, begins: bool, room: int) -> None:
        self._tokenizer, self._text, self._begins = tokenizer, text, begins
        self._reach = room * TOKEN_LENGTH

    def count(self, text: str) -> int:
        """The tokens of a part of it."""
        return len(self._tokenizer.encode(text, begins=self._begins)) if text else 0

    def part(self, length: int) -> str:
        """The `length` characters next to the gap."""
        return self._text[len(self._text) - length :] if self._begins else self._text[:length]

    def needs(self, room: int) -> int:
        """The tokens of the whole text, or a number above `room` where it has more."""
        length = 4 * room
        while length < len(self._text):
            if not self._fits(length, room):
                return room + 1
            length *= 2
        return self.count(self._text)

    @cached_property
    def _lengths(self) -> list[int]:
        """The lengths of parts of whole lines, shortest first, from none to all that could fit. Where not even the line
        at the gap could, the part of it that could.
        """
        near = self.part(min(self._reach, len(self._text)))
        ends = _line_ends(near)
        lengths = [0, *ends]
        if self._begins:
            lengths = [0, *(len(near) - start for start in reversed([0, *ends[:-1]]))] if ends else [0]
        whole = len(near) == len(self._text) or (
            self._text[-len(near) - 1] == "\n" if self._begins else near.endswith("\n")
        )
        return lengths if whole or len(lengths) <= 2 else lengths[:-1]

    def most(self, room: int) -> str:
        """The longest part of whole lines that has at most `room` tokens; of the line at the gap, where that alone has
        more, as many characters as do not.
        """
        lengths = self._lengths
        best = _last(lambda at: self._fits(lengths[at], room), len(lengths) - 1, room // 12)
        if best or len(lengths) == 1:
            return self.part(lengths[best])
        return self.part(_last(lambda length: self._fits(length, room), lengths[1], 3 * room))

    def _fits(self, length: int, room: int) -> bool:
        return not length or (length <= room * TOKEN_LENGTH and self.count(self.part(length)) <= room)


def _line_ends(text: str) -> list[int]:
    """Where each line ends, its line break included; the last line may have none."""
    ends, at = [], 0
    while at := text.find("\n", at) + 1:
        ends.append(at)
    if text and not text.endswith("\n"):
        ends.append(len(text))
    return ends


def _last(fits: Callable[[int], bool], most: int, guess: int) -> int:
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
