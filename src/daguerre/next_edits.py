"""The next edit in a region of a file: what the edits before it have done elsewhere is done there, too.

The lines that changed say what was done last: a name became another one, or calls of a function got an argument. The
places of the region where the same may be due are shown as those of a rename are, with letters, and the model answers
with the letters of those that change (`daguerre.instructions`). Nothing follows from edits that do neither.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from keyword import iskeyword
from string import ascii_letters

from daguerre.instructions import NOTHING, choice_prompt, replaced

RECENT, LONGEST = 50, 1000
"""The most lines of the history, and characters of a line, that are looked at: the time of a request is bounded."""
_NAMES = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_GIVEN = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)")
_PART = re.compile(r"""\w+|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\w\s]""")


@dataclass(frozen=True)
class Change:
    """A name that became a text; or a function, whose calls got this text as their last argument."""

    word: str
    text: str
    argument: bool = False


@dataclass
class _Call:
    """A call that ends in its line: the function's name and column, and where the brackets and arguments are."""

    name: str
    column: int
    start: int
    end: int = 0
    commas: list[int] = field(default_factory=list)

    def arguments(self, line: str) -> list[str]:
        edges = [self.start - 1, *self.commas, self.end]
        parts = [line[a + 1 : b].strip() for a, b in zip(edges, edges[1:], strict=False)]
        return [part for part in parts if part]


def _calls(line: str) -> list[_Call]:
    """The calls of a line, but for what its definitions, texts and comments have."""
    found, open_ = list[_Call](), list[_Call]()
    before, last = "", None
    for part in _PART.finditer(line):
        text = part[0]
        if text in ("#", '"', "'"):  # a comment, or a text that goes on in the next line
            break
        if text in "([{":
            name, column = "", 0
            if text == "(" and last is not None and last.end() == part.start() and before not in ("def", "class"):
                name, column = last[0] if _is_name(last[0]) else "", last.start()
            open_.append(_Call(name, column, part.end()))
        elif text in ")]}" and open_:
            call = open_.pop()
            call.end = part.start()
            if call.name:
                found.append(call)
        elif text == "," and open_:
            open_[-1].commas.append(part.start())
        before, last = last[0] if last is not None else "", part
    return found


def _is_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text) and re.fullmatch(r"\w+", text) is not None


def last_change(history: Sequence[tuple[str, str]]) -> Change | None:
    """What was done last, of lines that changed, oldest first, each as it was and as it is. A line counts if one thing
    that was done to it, once or wherever it can be, makes it what it is. None where none of the RECENT lines counts.
    """
    for old, new in reversed(history[-RECENT:]):
        if old != new and max(len(old), len(new)) <= LONGEST:
            at = next((i for i, (x, y) in enumerate(zip(old, new, strict=False)) if x != y), min(len(old), len(new)))
            for change, column in (*_arguments(new, at), *_renames(old, new, at)):
                places = places_due([old], change, 1, 1)
                if [new] in (_made([old], change, places), _made([old], change, [(0, column)])):
                    return change
    return None


def _arguments(new: str, at: int) -> Iterator[tuple[Change, int]]:
    """Arguments that calls may have got, and the columns of these, where a line begins to be another."""
    for call in _calls(new):
        given = call.arguments(new)
        begin = call.commas[-1] if call.commas else call.start
        if given and abs(begin - at) <= 2 and not re.search(r"\bfor\b", given[-1]):
            yield Change(call.name, given[-1], argument=True), call.column


def _renames(old: str, new: str, at: int) -> Iterator[tuple[Change, int]]:
    """Names that may have become another, and their columns, where a line begins to be another."""
    for word in re.finditer(r"\w+", old):
        if word.start() <= at <= word.end() and _is_name(word[0]):
            for times in {1, len(re.findall(rf"\b{word[0]}\b", old))}:
                text = new[word.start() : word.end() + (len(new) - len(old)) // times]
                if _NAMES.fullmatch(text):
                    yield Change(word[0], text), word.start()


def places_due(code: Sequence[str], change: Change, first: int, last: int) -> list[tuple[int, int]]:
    """(line, column), from 0, of each place in lines `first` to `last`, from 1, where a change may be due: a name that
    is no part of its new text, or a call that ends in its line and may have the argument but has not. At most 52, since
    each has a letter; none in lines longer than LONGEST.
    """
    columns = _columns_of_calls if change.argument else _columns_of_names
    lines = (i for i in range(first - 1, last) if change.word in code[i] and len(code[i]) <= LONGEST)
    return list(islice(((i, column) for i in lines for column in columns(code[i], change)), len(ascii_letters)))


def _columns_of_names(line: str, change: Change) -> Iterator[int]:
    within = [part.start() for part in re.finditer(rf"\b{re.escape(change.word)}\b", change.text)]
    for found in re.finditer(rf"\b{re.escape(change.word)}\b", line):
        is_whole = unicodedata.combining(line[found.end() : found.end() + 1] or " ") == 0
        done = any(line.startswith(change.text, found.start() - start) for start in within if found.start() >= start)
        if is_whole and not done:
            yield found.start()


def _columns_of_calls(line: str, change: Change) -> Iterator[int]:
    named = _GIVEN.match(change.text)
    for call in sorted(_calls(line), key=lambda call: call.column):
        given = call.arguments(line)
        names = [found[1] for part in given if (found := _GIVEN.match(part))]
        has = change.text in given or (named is not None and named[1] in names)
        able = named is not None or change.text.startswith("*") or not (names or any(p.startswith("**") for p in given))
        if call.name == change.word and able and not has and not any(re.search(r"\bfor\b", part) for part in given):
            yield call.column


def next_edit_prompt(code: Sequence[str], change: Change, places: Sequence[tuple[int, int]]) -> str:
    """Ask which of these places change; `read_next_edit` reads the answer."""
    text = f"{change.word}({change.text})" if change.argument else change.text
    return choice_prompt(code, places, change.word, f"rename {change.word} to {text}")


def next_edit_pattern(num: int) -> str:
    """The regular expression of an answer: some letters of so many places, in order, or "None"."""
    rest = ""
    ways = [NOTHING]
    for letter in reversed(ascii_letters[:num]):
        ways.append(letter + rest + "\n")
        rest = f"( {letter})?{rest}"
    return "|".join(ways)


def read_next_edit(code: Sequence[str], change: Change, places: Sequence[tuple[int, int]], answer: str) -> list[str]:
    """The lines of the file with the change at the places that an answer names."""
    said = set(answer.split())
    return _made(code, change, [place for letter, place in zip(ascii_letters, places, strict=False) if letter in said])


def _made(code: Sequence[str], change: Change, places: Sequence[tuple[int, int]]) -> list[str]:
    """The lines with the change at these places of `places_due`."""
    if not change.argument:
        return replaced(code, places, change.word, [change.text] * len(places))
    out = list(code)
    for i in {line for line, _ in places}:
        line = code[i]
        calls = [call for call in _calls(line) if (i, call.column) in places]
        for call in sorted(calls, key=lambda call: -call.end):
            given = line[call.start : call.end].rstrip().removesuffix(",").rstrip()
            end = call.start + len(given)
            out[i] = out[i][:end] + (", " if given else "") + change.text + out[i][call.end :]
    return out
