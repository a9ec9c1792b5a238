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

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from daguerre.decoding.repository import joined_files
from daguerre.decoding.sides import TOKEN_LENGTH, last, line_ends, share
from daguerre.errors import InputError
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer

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
        return joined_files(self.extra) + self.before


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
    left, right = share(tokenizer, [before, after], room)
    shown, behind = left.end, right.beginning
    chosen = _fill(tokenizer, extra, shown, room - right.num_tokens)
    num_tokens = len(tokenizer.encode(joined_files(chosen) + shown)) + right.num_tokens
    return Window(
        shown,
        behind,
        chosen,
        num_tokens,
        Shown.of(shown, before),
        Shown.of(behind, after),
        tuple(Shown.of(part, text) for part, text in zip(chosen, extra, strict=True)),
    )


def _fill(tokenizer: Tokenizer, extra: Sequence[str], before: str, room: int) -> tuple[str, ...]:
    """As much of the other texts as fits beside `before`."""
    chosen = [""] * len(extra)

    def fits(number: int, part: str) -> bool:
        tried = joined_files([*chosen[:number], part, *chosen[number + 1 :]]) + before
        return len(tried) <= room * TOKEN_LENGTH and len(tokenizer.encode(tried)) <= room

    for number in reversed(range(len(extra))):
        text = extra[number]
        ends = [0, *line_ends(text)]
        if len(ends) > 1:
            best = last(lambda at, n=number, t=text, e=ends: fits(n, t[: e[at]]), len(ends) - 1, 0)  # type: ignore[misc]
            chosen[number] = text[: ends[best]]
        if chosen[number] != text:
            break
    return tuple(chosen)
