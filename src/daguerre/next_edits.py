"""The next edit in a region of a file: what the edits before it have done elsewhere is done there, too.

The lines that changed say what was done last: a word became another text, or a call got an argument. The places of the
region where the same may be due are shown as those of a rename are, with letters, and the model answers with the
letters of those that change (`daguerre.instructions`). Of edits that do neither nothing follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from keyword import iskeyword
from string import ascii_letters

from daguerre.instructions import NOTHING, choice_prompt, replaced

RECENT, LONGEST = 50, 1000
"""Lines of the history that are looked at; characters of a line that is. Both bound the time of a request."""
_WORD = re.compile(r"\w+")
_PIECE = re.compile(r"\w+|\s+|[^\w\s]")
_DEFINED = re.compile(r"\b(?:def|class)\s+\Z")
_OPEN, _CLOSE, _QUOTES = "([{", ")]}", "\"'"


@dataclass(frozen=True)
class Change:
    """A name that became a text; or a function, whose calls got this text as their last argument."""

    word: str
    text: str
    argument: bool = False


def last_change(history: Sequence[tuple[str, str]]) -> Change | None:
    """What was done last, of lines that changed, oldest first, each as it was and as it is; empty where there was none,
    or is none. A line counts where one thing was done to it, once or more often. None where none of RECENT does.
    """
    for old, new in reversed(history[-RECENT:]):
        able = old and new and max(len(old), len(new)) <= LONGEST
        found = {_change(*parts) for parts in _differences(old, new)} if able else set()
        if len(found) == 1 and (change := found.pop()) is not None:
            return change
    return None


def _differences(old: str, new: str) -> Iterator[tuple[str, str, str, str]]:
    """What is before a place of a line, removed there, added there, and behind it."""
    was, now = _PIECE.findall(old), _PIECE.findall(new)
    for tag, i, j, k, n in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if tag != "equal":
            yield "".join(was[:i]), "".join(was[i:j]), "".join(now[k:n]), "".join(was[j:])


def _change(before: str, removed: str, added: str, behind: str) -> Change | None:
    if removed:
        return Change(removed, added) if _is_name(removed) and added and not re.search(r"\s", added) else None
    name = _function_called(before)
    if name is not None and behind.startswith(")") and (before.endswith("(") or added.lstrip().startswith(",")):
        return Change(name, added.strip(", "), argument=True)
    word = _WORD.match(behind)
    if word is not None and _is_name(word[0]) and added.endswith("."):  # `x` became `self.x`
        return Change(word[0], added + word[0])
    word = re.search(r"\w+\Z", before)
    if word is not None and _is_name(word[0]) and added.startswith("."):  # `x` became `x.value`
        return Change(word[0], word[0] + added)
    return None


def _is_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


def _function_called(before: str) -> str | None:
    """The function of the innermost call that is open at the end of a text; not one that is defined there."""
    depth = 0
    for i in range(len(before) - 1, -1, -1):
        depth += (before[i] in _CLOSE) - (before[i] in _OPEN)
        if depth < 0:
            name = re.search(r"\w+\Z", before[:i]) if before[i] == "(" else None
            return name[0] if name is not None and not _DEFINED.search(before[: name.start()]) else None
    return None


def _end_of_call(line: str, start: int) -> int | None:
    """Where the bracket is that closes the one before `start`; None where the line has none. Brackets in texts do not
    count.
    """
    depth, quote, i = 0, "", start
    while i < len(line):
        char = line[i]
        if quote:
            i += char == "\\"
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        else:
            if char in _CLOSE and depth == 0:
                return i
            depth += (char in _OPEN) - (char in _CLOSE)
        i += 1
    return None


def places_due(code: Sequence[str], change: Change, first: int, last: int) -> list[tuple[int, int]]:
    """(line, column), from 0, of each place in lines `first` to `last`, from 1, where a change may be due: a word that
    is no part of its new text, or a call that ends in its line and does not have the argument. At most 52, which have
    letters; none in lines longer than LONGEST.
    """
    word = re.compile(rf"\b{re.escape(change.word)}\b" + (r"(?=\()" if change.argument else ""))
    lacks = _lacks_argument if change.argument else _lacks_text
    found = (
        (i, one.start())
        for i in range(first - 1, last)
        if len(code[i]) <= LONGEST
        for one in word.finditer(code[i])
        if lacks(code[i], one.start(), change)
    )
    return list(islice(found, len(ascii_letters)))


def _lacks_text(line: str, column: int, change: Change) -> bool:
    start = column - max(0, change.text.find(change.word))
    return start < 0 or line[start : start + len(change.text)] != change.text


def _lacks_argument(line: str, column: int, change: Change) -> bool:
    start = column + len(change.word) + 1
    end = _end_of_call(line, start)
    return end is not None and not _DEFINED.search(line[:column]) and change.text not in line[start:end]


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
    chosen = [place for letter, place in zip(ascii_letters, places, strict=False) if letter in said]
    if not change.argument:
        return replaced(code, chosen, change.word, [change.text] * len(chosen))
    out = list(code)
    for line, column in reversed(chosen):  # of a call in a call the inner one comes first
        start = column + len(change.word) + 1
        end = _end_of_call(out[line], start)
        assert end is not None
        given = out[line][start:end].rstrip(", ")
        out[line] = out[line][:start] + given + (", " if given else "") + change.text + out[line][end:]
    return out
