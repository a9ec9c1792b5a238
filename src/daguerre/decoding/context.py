"""What a model is shown of a text that is longer than its context, for any number of gaps.

Whole lines next to the gaps, more before a gap than after it, the gaps sharing the room fairly (`sides.share`). A part
of what is before a gap goes to lines far above it: the signatures of what encloses it, and the imports of names that
are used near it (`outline`), as far as they fit. What is left out is left out in silence: the model reads the parts one
after the other. What the result consists of is the whole text all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from daguerre.decoding.outline import enclosing, imports
from daguerre.decoding.sides import Part, share
from daguerre.decoding.text_spans import CharSpan
from daguerre.models.tokenizer import Tokenizer

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


def whole(texts: Sequence[str], between: Sequence[str]) -> Context:
    """The context in which everything is shown. between: what stands in the gaps, or "" for each."""
    return _made(texts, between, [((0, len(text)),) if text else () for text in texts])


def choose(tokenizer: Tokenizer, texts: Sequence[str], between: Sequence[str], room: int) -> Context:
    """What is shown of `texts`, those around gaps, with `room` tokens for them all; 1 or more."""
    asked = room
    while True:
        parts = zip(texts, share(tokenizer, texts, asked), strict=True)
        out = _made(texts, between, [tuple(_spans(tokenizer, text, part)) for text, part in parts])
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


def _made(texts: Sequence[str], between: Sequence[str], shown: Sequence[Spans]) -> Context:
    pieces = tuple("".join(text[a:b] for a, b in spans) for text, spans in zip(texts, shown, strict=True))
    starts = [0, *accumulate(len(text) + len(old) for text, old in zip(texts, [*between, ""], strict=True))]
    joined = "".join(text + old for text, old in zip(texts, [*between, ""], strict=True))
    complete = all(len(piece) == len(text) for piece, text in zip(pieces, texts, strict=True))
    merged: list[tuple[int, int]] = []
    for begin, spans in zip(starts, shown, strict=False):
        for a, b in spans:
            lines = _line_of(joined, begin + a), _line_of(joined, begin + b - 1)
            if merged and lines[0] <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], lines[1])
            else:
                merged.append(lines)
    num_lines = joined.count("\n") + bool(joined and not joined.endswith("\n"))
    return Context(pieces, tuple(shown), complete, tuple(merged), num_lines)


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
