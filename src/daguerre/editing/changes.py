"""Changes of files as texts: unified diffs and search-and-replace blocks, applied exactly or refused.

A diff is what `git diff` and `diff -u` write. A block names its file in the line before it, or has none:

    src/app.py
    <<<<<<< SEARCH
    old lines
    =======
    new lines
    >>>>>>> REPLACE

Old lines must be there once; those of a diff at their number, or, where the file has moved on, once anywhere. All of
the changes of a file are made in the text that it had. All is linear in the texts, but for MOST_CHANGES searches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from daguerre.errors import InputError, shown

MOST_CHANGES = 2_000
"""Hunks or blocks of one text."""
NOWHERE = "/dev/null"
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*\Z")
_SEARCH, _DIVIDE, _REPLACE = (
    re.compile(r"<{5,9} SEARCH\s*\Z"),
    re.compile(r"={5,9}\s*\Z"),
    re.compile(r">{5,9} REPLACE\s*\Z"),
)
_UNREADABLE = ("rename ", "copy ", "Binary files ", "GIT binary patch", "old mode ", "new mode ")
_NO_END = "\\ No newline at end of file"


@dataclass(frozen=True)
class TextChange:
    """Lines of a file become others.

    path    the file; "" where it has no name
    old     the lines as they are, with their ends; empty only where they are `line`'s, or the file is new
    new     those in their place
    line    the number of the first of them, from 1; None: to be found
    """

    path: str
    old: str
    new: str
    line: int | None = None


@dataclass(frozen=True)
class FileChanges:
    """All changes of one file. created: it is new; deleted: nothing is left of it."""

    path: str
    changes: tuple[TextChange, ...]
    created: bool = False
    deleted: bool = False


def is_changes(text: str) -> bool:
    """Whether a text is a diff or has blocks, by its first telling line."""
    return any(_HUNK.match(line) or _SEARCH.match(line) for line in text.splitlines()[:10_000])


def read_changes(text: str) -> list[FileChanges]:
    """The changes of a diff or of blocks, by file, in order. InputError for what is neither, or damaged."""
    lines = text.split("\n")
    if any(_HUNK.match(line) for line in lines):
        return _merged(_read_diff(lines))
    return _merged(_read_blocks(lines))


def _merged(found: Iterable[FileChanges]) -> list[FileChanges]:
    by_path: dict[str, list[FileChanges]] = {}
    for one in found:
        by_path.setdefault(one.path, []).append(one)
    out = []
    for path, parts in by_path.items():
        changes = tuple(change for part in parts for change in part.changes)
        out.append(FileChanges(path, changes, any(p.created for p in parts), any(p.deleted for p in parts)))
    num = sum(len(one.changes) for one in out)
    if not num:
        raise InputError(
            "there is no change: give a unified diff, or blocks of <<<<<<< SEARCH, =======, >>>>>>> REPLACE"
        )
    if num > MOST_CHANGES:
        raise InputError(f"there are {num:,} changes, of at most {MOST_CHANGES:,}: apply them in parts")
    return out


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read_diff(lines: Sequence[str]) -> Iterator[FileChanges]:
    at, old_path, new_path = 0, "", ""
    while at < len(lines):
        line = lines[at]
        if line.startswith(_UNREADABLE):
            raise InputError(f"line {at + 1}: {shown(line)} is no change of lines: apply it with git")
        if line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            old_path, new_path = _path(line), _path(lines[at + 1])
            at += 2
            continue
        found = _HUNK.match(line)
        if found is None:
            at += 1
            continue
        path = _without_prefix(old_path, new_path)
        change, at = _read_hunk(lines, at, found, path)
        yield FileChanges(path, (change,), created=old_path == NOWHERE, deleted=new_path == NOWHERE)


def _read_hunk(lines: Sequence[str], at: int, head: re.Match[str], path: str) -> tuple[TextChange, int]:
    """A hunk, which begins with the line at this place, and the place behind it."""
    where, begin = f"line {at + 1}: the hunk {shown(lines[at])}", int(head[1])
    left = [int(head[number] or 1) if head[number] is not None else 1 for number in (2, 4)]
    num_old = left[0]
    sides: tuple[list[str], list[str]] = ([], [])
    at += 1
    while any(left):
        line = lines[at] if at < len(lines) else None
        if line is None or (line == "" and at == len(lines) - 1):
            raise InputError(f"{where} ends before it has the lines that it says: give all of it")
        sign = line[:1] or " "
        if sign == "\r":
            sign, line = " ", " \r"
        if sign not in " +-":
            raise InputError(f"{where} has {shown(line)}, which begins with none of ' ', '+', '-': correct it")
        for side, with_sign in ((0, " -"), (1, " +")):
            if sign in with_sign:
                sides[side].append(line[1:] + "\n")
                left[side] -= 1
        if min(left) < 0:
            raise InputError(f"{where} has more lines than it says: correct its numbers")
        at += 1
        if at < len(lines) and lines[at].startswith("\\"):
            for side, with_sign in ((0, " -"), (1, " +")):
                if sign in with_sign:
                    sides[side][-1] = sides[side][-1].removesuffix("\n")
            at += 1
    return TextChange(path, "".join(sides[0]), "".join(sides[1]), begin + (num_old == 0)), at


def _path(line: str) -> str:
    return line[4:].split("\t")[0].strip().strip('"')


def _without_prefix(old: str, new: str) -> str:
    """The name of a file by both of its names in a diff, of which git makes a/NAME and b/NAME."""
    named = old if new == NOWHERE else new
    if (old.startswith("a/") or old == NOWHERE) and (new.startswith("b/") or new == NOWHERE):
        named = named[2:]
    return named.removeprefix("./")


def _read_blocks(lines: Sequence[str]) -> Iterator[FileChanges]:
    at, path = 0, ""
    while at < len(lines):
        if not _SEARCH.match(lines[at]):
            at += 1
            continue
        begun = at
        path = _named_before(lines, at) or path
        divide = _next(lines, at + 1, _DIVIDE, begun)
        end = _next(lines, divide + 1, _REPLACE, begun)
        old, new = ("".join(line + "\n" for line in part) for part in (lines[at + 1 : divide], lines[divide + 1 : end]))
        yield FileChanges(path, (TextChange(path, old, new),), created=not old)
        at = end + 1


def _next(lines: Sequence[str], at: int, mark: re.Pattern[str], begun: int) -> int:
    while at < len(lines) and not mark.match(lines[at]):
        if _SEARCH.match(lines[at]):
            break
        at += 1
    if at == len(lines) or _SEARCH.match(lines[at]):
        raise InputError(f"line {begun + 1}: the block has no {'=======' if mark is _DIVIDE else '>>>>>>> REPLACE'}")
    return at


def _named_before(lines: Sequence[str], at: int) -> str:
    """The name in the line before a block, or before the fence that it is in."""
    for line in reversed(lines[max(0, at - 2) : at]):
        text = line.strip().strip("`*").rstrip(":").strip()
        if line.lstrip().startswith("```"):
            continue
        return text if re.fullmatch(r"[^\s<>|?*\"']{1,400}", text) and ("." in text or "/" in text) else ""
    return ""


# ---- applying --------------------------------------------------------------------------------------------------------


def applied(text: str, changes: Sequence[TextChange]) -> str:
    """A text with all changes made. InputError, naming the first, where one does not match or two overlap."""
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    found = sorted(_place(text, change, crlf) for change in changes)
    for (start, end, _), (other, *_) in pairwise(found):
        if other < end or (start == end == other):
            raise InputError(
                f"two changes are of the same lines, at line {text.count(chr(10), 0, other) + 1}: join them"
            )
    out, at = [], 0
    for start, end, new in found:
        out += [text[at:start], new]
        at = end
    return "".join([*out, text[at:]])


def _place(text: str, change: TextChange, crlf: bool) -> tuple[int, int, str]:
    """The characters that a change replaces, and what with."""
    old, new = change.old, change.new
    if crlf and "\r\n" not in old + new:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    if not old:
        at = 0 if change.line is None else _start_of(text, change.line)
        if at is None or (change.line is None and text):
            raise InputError(
                f"{_name(change)}: there is nothing to search for, and the file has text: say which lines change"
            )
        return at, at, new
    if change.line is not None:
        start = _start_of(text, change.line)
        if start is not None and _is_at(text, old, start):
            return start, start + len(old), new
    end = "\r\n" if crlf else "\n"
    for tried, made in ((old, new), (old.removesuffix(end), new.removesuffix(end))):  # the last line may not end
        if tried is not old and (not tried or not text.endswith(tried)):
            continue
        places = _occurrences(text, tried)
        if len(places) > 1:
            raise InputError(f"{_name(change)}: the lines {shown(old)} are there more than once: give more of them")
        if places:
            return places[0], places[0] + len(tried), made
    raise InputError(f"{_name(change)}: the lines {shown(old)} are not there as they are given: nothing is changed")


def _name(change: TextChange) -> str:
    return change.path or "the file"


def _start_of(text: str, line: int) -> int | None:
    """The character that a line, from 1, begins at; that behind the last one begins at the end."""
    at = 0
    for _ in range(line - 1):
        at = text.find("\n", at) + 1
        if not at:
            return None
    return at


def _is_at(text: str, old: str, start: int) -> bool:
    end = start + len(old)
    return text.startswith(old, start) and (old.endswith("\n") or end == len(text))


def _occurrences(text: str, old: str) -> list[int]:
    """The first two places where whole lines begin like this."""
    out: list[int] = []
    at = 0 if text.startswith(old) else text.find("\n" + old) + 1
    while (at or text.startswith(old)) and len(out) < 2:
        if at in out:
            break
        out.append(at)
        at = text.find("\n" + old, at) + 1
        if not at:
            break
    return [one for one in out if old.endswith("\n") or one + len(old) == len(text)]
