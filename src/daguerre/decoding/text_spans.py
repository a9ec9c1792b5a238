"""The parts of a text that are rewritten: templates; spans by characters, lines or pattern; and the difference made.

Offsets are in characters. Text outside the spans is never changed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from itertools import pairwise

from daguerre.errors import InputError, shown

CharSpan = tuple[int, int]
MARK = "<gap>"
"""What marks a gap of a template, unless another mark is given: no source text is likely to have it."""


def split_template(template: str, mark: str) -> tuple[str, ...]:
    """The texts around the gaps of a template, one more than it has marks. InputError when it has none."""
    pieces = tuple(template.split(mark))
    if len(pieces) == 1:
        other = 'mark="{}"' if "{}" in template else "another mark"
        raise InputError(f"the template has no gap: write {mark:.20} where one goes, or give {other}")
    return pieces


def split_at(text: str, spans: Sequence[CharSpan]) -> tuple[str, ...]:
    """The texts around `spans`, which are ascending and apart: one more than there are."""
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    return tuple(text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))


def find_spans(
    text: str,
    spans: Sequence[CharSpan] | None = None,
    lines: Sequence[CharSpan] | None = None,
    pattern: str | None = None,
) -> tuple[CharSpan, ...]:
    """Character spans [start, end), ascending, from the one of the three arguments that is given.

    lines    pairs (first, last), counted from 1, both included, without the last one's break
    pattern  a regular expression of Python's `re`; all its matches

    InputError when none or several are given, a span lies outside the text, two overlap, or nothing matches.
    """
    if sum(given is not None for given in (spans, lines, pattern)) != 1:
        raise InputError("say what to edit in one way: give spans, lines or a pattern")
    if pattern is not None:
        found = _matches(text, pattern)
    elif lines is not None:
        found = [_of_lines(text, *pair) for pair in lines]
    else:
        assert spans is not None
        found = [(start, end) for start, end in spans]
    if not found:
        empty = "spans is empty" if lines is None else "lines is empty"
        why = empty if pattern is None else "the pattern matches nowhere"
        raise InputError(f"there is nothing to edit: {why}")
    for start, end in found:
        if not 0 <= start <= end <= len(text):
            raise InputError(f"the span {shown((start, end))} is not within the text of {len(text)} characters")
    found = sorted(found)
    for (_, end), (start, _) in pairwise(found):
        if start < end:
            raise InputError(f"two spans overlap at character {start}: join them or move one")
    return tuple(found)


def _matches(text: str, pattern: str) -> list[CharSpan]:
    try:
        return [match.span() for match in re.finditer(pattern, text)]
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"the pattern {shown(pattern)} is not a regular expression: {error}") from None


def _of_lines(text: str, first: int, last: int) -> CharSpan:
    pieces = text.split("\n")
    if 1 <= last < first <= len(pieces):
        raise InputError(f"lines {first} to {last} end before they begin: the first comes first, {last} to {first}")
    if not 1 <= first <= last <= len(pieces):
        raise InputError(f"lines {shown(first)} to {shown(last)} are not in the text, which has {len(pieces)}")
    start = sum(len(piece) + 1 for piece in pieces[: first - 1])
    end = start + sum(len(piece) + 1 for piece in pieces[first - 1 : last]) - 1
    return start, end - int(last < len(pieces) and text[start:end].endswith("\r"))


def unified_diff(before: str, after: str, name: str | None = None) -> str:
    """The difference as `diff -u` shows it, without file names where none is given; empty when there is none."""
    hunks = list(difflib.unified_diff(_lines(before), _lines(after)))[2:]
    if name is not None and hunks:
        ends = "\t" if " " in name else ""  # after which neither git nor patch reads on
        hunks = [f"--- {name}{ends}\n", f"+++ {name}{ends}\n", *hunks]
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in hunks)


def _lines(text: str) -> list[str]:
    """Lines with their breaks, which are line feeds alone."""
    pieces = text.split("\n")
    return [piece + "\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
