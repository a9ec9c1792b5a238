"""What a model is shown of a text that is longer than its context, and of the other files of a repository.

`choose` is for requests, with any number of gaps: whole lines next to the gaps, more before a gap than after it, the
gaps sharing the room fairly (`share`). A part of what is before a gap goes to lines far above it: the signatures of
what encloses it, and the imports of names that are used near it (`outline`), as far as they fit. What is left out is
left out in silence: the model reads the parts one after the other. What the result consists of is the whole text.

`window` is for editors, which send whole files. It chooses by four rules, each of which comes before those below it:

1. What is shown ends at the gap: the last lines before it and the first lines after it. Only where one of the two
   lines at the gap is too long alone is it cut, between two characters.
2. Text before the gap has three quarters of the room, text after it one quarter; what one side leaves goes to the
   other. A causal model writes from the text before; the text after says where to end, and little of it does.
3. No line is dropped for which there is room; but a text before the gap that is cut begins at the same line while the
   gap moves down a few lines (`aligned`), so that what was computed of it is kept.
4. Other texts (open files, snippets) get what is left where the text before is whole, the last one first, since editors
   send the latest last. They stand before everything else, in the order given; one that does not fit whole has its
   first lines.

Tokens are counted by encoding the texts that are shown, not by adding up pieces, so the budget holds exactly.

A model with tokens for it reads a repository's name and each file behind its name (Qwen2.5-Coder, arXiv 2409.12186).
The names of the repository and of the file at hand, which no request gives, are those of llama-server's /infill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Literal

from daguerre.decoding.text_spans import CharSpan, enclosing, imports, line_ends
from daguerre.errors import InputError
from daguerre.models.core.config import FimTokens, ModelConfig
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


Files = tuple[tuple[str, str], ...]
"""Names and texts of files."""
NAME, CURRENT = "myproject", "filename"
SNIPPET = "\n\n--- snippet ---\n\n"
"""What stands before a file where the model has no token for it."""
BETWEEN = "\n\n"
"""What ends each file before a text that is written on without such tokens."""


def read_files(fim: FimTokens, tokenizer: Tokenizer, files: Files) -> list[int]:
    """The token ids of the files, and of what names the file at hand."""

    def plain(text: str) -> list[int]:
        return tokenizer.encode_plain(text, begins=False)

    out = [] if fim.repository is None else [fim.repository, *plain(f"{NAME}\n")]
    for name, text in files:
        out += plain(SNIPPET) if fim.file is None else [fim.file, *plain(f"{name}\n")]
        out += plain(text)
    return out if fim.file is None else [*out, fim.file, *plain(f"{CURRENT}\n")]


def joined_files(texts: Sequence[str]) -> str:
    """The texts one after the other, with an empty line between; those that are empty are left out."""
    return "".join(text.rstrip("\n") + BETWEEN for text in texts if text)


def kept_files(tokenizer: Tokenizer, files: Files, room: int) -> Files:
    """The last files that have at most `room` tokens together; of the one before them, the first lines that fit."""
    kept: list[tuple[str, str]] = []
    for name, text in reversed(files):
        if len(text) > max(0, room) * TOKEN_LENGTH:
            text = text[: text.rfind("\n", 0, max(0, room) * TOKEN_LENGTH) + 1]
        while text and (used := len(tokenizer.encode_plain(f"{name}\n{text}"))) > room:
            shorter = text[: len(text) * room // used] if room > 0 else ""
            text = shorter[: shorter.rfind("\n") + 1]
        if text:
            room -= len(tokenizer.encode_plain(f"{name}\n{text}"))
            kept.append((name, text))
        if not text or room <= 0:
            break
    return tuple(reversed(kept))


Showing = Literal["auto", "whole"]
SHOWING = ("auto", "whole")
OUTLINE_SHARE = 0.125
"""Of the room before a gap, the most that lines far above it get, where the text before the gap is cut."""
Spans = tuple[CharSpan, ...]


@dataclass(frozen=True)
class Context:
    """What a model was shown of a request's text.

    texts      what it was shown of each text around the gaps, in order
    shown      of each the ranges of its characters that these are, ascending
    complete   whether that is everything
    lines      the lines of the whole text that were shown, all of each or a part: first and last, from 1
    num_lines  of the whole text
    """

    texts: tuple[str, ...] = field(repr=False)
    shown: tuple[Spans, ...] = field(repr=False)
    complete: bool
    lines: tuple[tuple[int, int], ...]
    num_lines: int

    def __str__(self) -> str:
        """Which lines were shown."""
        if self.complete:
            return f"all {self.num_lines:,} lines"
        noun = "line" if [first for first, last in self.lines] == [last for _, last in self.lines][:1] else "lines"
        ranges = [str(first) if first == last else f"{first}-{last}" for first, last in self.lines]
        *most, end = ranges or ["none"]
        return f"{noun} {', '.join(most)}{' and ' if most else ''}{end} of {self.num_lines:,}"


def choose(tokenizer: Tokenizer, texts: Sequence[str], between: Sequence[str], room: int) -> Context:
    """What is shown of `texts`, those around gaps, with `room` tokens for them all; 1 or more."""
    asked = room
    while True:
        parts = zip(texts, share(tokenizer, texts, asked), strict=True)
        out = context_of(texts, between, [tuple(_spans(tokenizer, text, part)) for text, part in parts])
        used = sum(len(tokenizer.encode(text, begins=not at)) for at, text in enumerate(out.texts))
        if used <= room or asked == 1:
            return out
        asked = max(1, asked - (used - room))  # parts side by side may have more tokens than each alone


def _spans(tokenizer: Tokenizer, text: str, part: Part) -> Iterator[CharSpan]:
    """The ranges of a text that are shown: its beginning, lines of its outline, and its end."""
    if part.beginning:
        yield 0, len(part.beginning)
    if not part.end:
        return
    start, first = len(text) - len(part.end), len(part.beginning)
    if start > first and part.before is not None:
        room = part.before.count(part.end)
        start = max(first, len(text) - len(part.before.most(room - int(room * OUTLINE_SHARE))))
        far = _outline(tokenizer, text, first, start, room - part.before.count(text[start:]))
        used = sum(len(tokenizer.encode(text[a:b])) for a, b in far)
        start = len(text) - len(max(text[start:], part.before.most(room - used), key=len))
        yield from (span for span in far if span[1] <= start)
    yield start, len(text)


def _outline(tokenizer: Tokenizer, text: str, first: int, start: int, room: int) -> list[CharSpan]:
    """Lines of `text` from `first` to `start` that are shown besides what is next to the gap: at most `room` tokens,
    signatures before imports, the innermost first.
    """
    out: list[CharSpan] = []
    for span in [*reversed(enclosing(text, start)), *imports(text, start)]:
        size = len(tokenizer.encode(text[span[0] : span[1]]))
        if span[0] >= first and size <= room:
            out.append(span)
            room -= size
    return sorted(out)


def context_of(texts: Sequence[str], between: Sequence[str], shown: Sequence[Spans] | None = None) -> Context:
    """The context in which these ranges of the texts are shown; None: everything. between: what stands in the gaps, or
    "" for each.
    """
    shown = [((0, len(text)),) if text else () for text in texts] if shown is None else shown
    pieces = tuple("".join(text[a:b] for a, b in spans) for text, spans in zip(texts, shown, strict=True))
    starts = [0, *accumulate(len(text) + len(old) for text, old in zip(texts, [*between, ""], strict=True))]
    joined = "".join(text + old for text, old in zip(texts, [*between, ""], strict=True))
    complete = all(len(piece) == len(text) for piece, text in zip(pieces, texts, strict=True))
    merged: list[tuple[int, int]] = []
    for begin, spans in zip(starts, shown, strict=False):
        for a, b in spans:
            lines = joined.count("\n", 0, begin + a) + 1, joined.count("\n", 0, begin + b - 1) + 1
            if merged and lines[0] <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], lines[1])
            else:
                merged.append(lines)
    num_lines = joined.count("\n") + bool(joined and not joined.endswith("\n"))
    return Context(pieces, tuple(shown), complete, tuple(merged), num_lines)


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
    shown, behind = aligned(before, left.end), right.beginning
    whole = len(shown) == len(before)
    chosen = _fill(tokenizer, extra, shown, room - right.num_tokens) if whole else ("",) * len(extra)
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


def aligned(text: str, end: str) -> str:
    """The end of a text without some of its first lines, at most an eighth, if the text is longer: the number of the
    line that it begins with is a multiple of a power of two.
    """
    dropped, lines = text.count("\n", 0, len(text) - len(end)), end.split("\n")
    step = 1 << max(0, (len(lines) // 8).bit_length() - 1)
    return "\n".join(lines[-dropped % step :])


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
