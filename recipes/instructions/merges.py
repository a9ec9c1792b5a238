"""Mechanical merges: edits of a file's statements, the snippet that shows them, and a rule that merges it.

A snippet has chunks of new lines between lines of the file, with `# ... existing code ...` for what stays as it is. A
chunk begins and ends with lines that are in the file once, or at the file's own beginning or end, so that the merge is
the only one. Sometimes a chunk is preceded by the head of the function that it is in, as models write snippets.

The answer is the snippet, with the number that the first and the last line of each chunk have in the file
(`daguerre.instructions`).
"""

from __future__ import annotations

import ast
import keyword
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_letters

from pieces import Piece, parses
from statements import Donors, Site, sites_of

from daguerre.instructions import MARKER, lettered

EXISTING = "# ... existing code ..."
WORD = re.compile(r"[A-Za-z_]\w*|\d+")
MOST_CONTEXT = 6
"""Lines of the file that a chunk may have on either side."""


@dataclass(frozen=True)
class Hunk:
    """Lines [start, end) of a file become others."""

    start: int
    end: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Merge:
    """A snippet for a file, the file that it makes, and that as the edit that a model writes."""

    snippet: list[str]
    merged: list[str]
    answer: str
    kinds: tuple[str, ...]


# ---- edits ----------------------------------------------------------------------------------------------------------


def _delete(piece: Piece, site: Site, donors: Donors, rng: random.Random) -> Hunk | None:
    short = site.end - site.start <= 6 and not site.alone
    return Hunk(site.start, site.end, ()) if short else None


def _insert(piece: Piece, site: Site, donors: Donors, rng: random.Random) -> Hunk | None:
    at = rng.choice((site.start, site.end))
    return Hunk(at, at, tuple(donors.some(rng, site.indent)))


def _replace(piece: Piece, site: Site, donors: Donors, rng: random.Random) -> Hunk | None:
    if site.end - site.start > 6:
        return None
    return Hunk(site.start, site.end, tuple(donors.some(rng, site.indent)))


def _mutate(piece: Piece, site: Site, donors: Donors, rng: random.Random) -> Hunk | None:
    """A word of a statement's line becomes another one."""
    at = rng.randrange(site.start, min(site.end, site.start + 3))
    line = piece.lines[at]
    words = [m for m in WORD.finditer(line) if not keyword.iskeyword(m[0])]
    if not words:
        return None
    word = rng.choice(words)
    new = str(rng.randrange(100)) if word[0].isdigit() else rng.choice(donors.names)
    return Hunk(at, at + 1, (line[: word.start()] + new + line[word.end() :],))


def _parameter(piece: Piece, site: Site, donors: Donors, rng: random.Random) -> Hunk | None:
    """A function gets a parameter more."""
    if not isinstance(site.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    at = site.node.lineno - 1
    found = re.fullmatch(r"(.*\bdef \w+\()(.*)(\)( ->.*)?:)", piece.lines[at])
    if found is None or "**" in found[2]:
        return None
    new = rng.choice(donors.names) + rng.choice(("=None", "=False", "=0", "=()", "=True"))
    return Hunk(at, at + 1, (f"{found[1]}{found[2]}{', ' if found[2].strip() else ''}{new}{found[3]}",))


def _wrap(piece: Piece, site: Site, donors: Donors, rng: random.Random) -> Hunk | None:
    """A statement goes below an `if` or a `with`."""
    if site.end - site.start > 4 or isinstance(site.node, ast.FunctionDef | ast.ClassDef):
        return None
    name = rng.choice(donors.names)
    head = rng.choice((f"if {name}:", f"if not {name}:", f"if {name} is not None:", f"with {name}:"))
    inside = ["    " + line if line else line for line in piece.lines[site.start : site.end]]
    return Hunk(site.start, site.end, (site.indent + head, *inside))


def _function(piece: Piece, site: Site, donors: Donors, rng: random.Random) -> Hunk | None:
    """A new function, before another one or a class."""
    if not isinstance(site.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return None
    blank = [""] * (1 if site.indent else 2)
    return Hunk(site.start, site.start, (*donors.some(rng, site.indent, function=True), *blank))


EDITS: dict[str, tuple[float, Callable[[Piece, Site, Donors, random.Random], Hunk | None]]] = {
    "insert": (3, _insert),
    "replace": (2.5, _replace),
    "mutate": (2.5, _mutate),
    "delete": (1.5, _delete),
    "parameter": (1, _parameter),
    "wrap": (1, _wrap),
    "function": (1, _function),
}
"""Edits, and how often each is tried."""


def merge_of(piece: Piece, donors: Donors, rng: random.Random) -> Merge | None:
    """A merge of one to three edits; None where what was drawn does not fit."""
    sites = sites_of(piece)
    if not sites:
        return None
    hunks, kinds = list[Hunk](), list[str]()
    for _ in range(rng.choices((1, 2, 3), (5, 3, 2))[0]):
        kind = rng.choices(list(EDITS), [weight for weight, _ in EDITS.values()])[0]
        hunk = EDITS[kind][1](piece, rng.choice(sites), donors, rng)
        apart = hunk is not None and all(hunk.start > o.end + 1 or hunk.end + 1 < o.start for o in hunks)
        if hunk is not None and apart and tuple(piece.lines[hunk.start : hunk.end]) != hunk.lines:
            hunks.append(hunk)
            kinds.append(kind)
    hunks.sort(key=lambda hunk: hunk.start)
    if not hunks:
        return None
    merged = _merged(piece.lines, hunks)
    if not merged or not parses("\n".join(merged) + "\n"):
        return None
    return _shown(piece, hunks, merged, tuple(kinds), rng)


def _merged(lines: Sequence[str], hunks: Sequence[Hunk]) -> list[str]:
    out, at = list[str](), 0
    for hunk in hunks:
        out += [*lines[at : hunk.start], *hunk.lines]
        at = hunk.end
    return [*out, *lines[at:]]


# ---- snippets -------------------------------------------------------------------------------------------------------


def _shown(
    piece: Piece, hunks: list[Hunk], merged: list[str], kinds: tuple[str, ...], rng: random.Random
) -> Merge | None:
    lines, counts = piece.lines, Counter(piece.lines)
    new = {line for hunk in hunks for line in hunk.lines}

    def once(at: int) -> bool:
        return bool(lines[at].strip()) and counts[lines[at]] == 1 and lines[at] not in new

    chunks: list[tuple[int, int, list[str]]] = []
    for hunk in hunks:
        start, end = max(0, hunk.start - rng.randint(1, 3)), min(len(lines), hunk.end + rng.randint(1, 3))
        while start > 0 and not once(start):
            start -= 1
        while end < len(lines) and not once(end - 1):
            end += 1
        if hunk.start - start > MOST_CONTEXT or end - hunk.end > MOST_CONTEXT:
            return None
        if chunks and start <= chunks[-1][1] + 1:  # chunks that meet are one
            first, last, made = chunks.pop()
            made = (
                made[: len(made) - max(0, last - hunk.start)] if last > hunk.start else made + lines[last : hunk.start]
            )
            chunks.append((first, end, [*made, *hunk.lines, *lines[hunk.end : end]]))
        else:
            chunks.append((start, end, [*lines[start : hunk.start], *hunk.lines, *lines[hunk.end : end]]))
    snippet, numbers, at = list[str](), list[int](), 0  # of first and last lines of chunks: their numbers in the file
    for start, end, made in chunks:
        if start > at:
            snippet.append(_marker(made[0]))
            numbers.append(0)
        if (head := _head(piece, start)) is not None and head >= at and start - head > 1 and rng.random() < 0.4:
            indented = lines[head][: len(lines[head]) - len(lines[head].lstrip())]
            if head == at:
                snippet.pop()
                numbers.pop()
            elif len(indented) != len(made[0]) - len(made[0].lstrip()):
                snippet[-1] = indented + EXISTING
            snippet += [lines[head], _marker(made[0])]
            numbers += [head + 1, 0]
        snippet += made
        numbers += [end] * len(made) if start == 0 else [start + 1, *[end] * (len(made) - 1)]
        at = end
    if at < len(lines):
        snippet.append(_marker(lines[at]))
        numbers.append(0)
    if sum(not MARKER.fullmatch(line) for line in snippet) > len(ascii_letters):
        return None
    kept = Counter(snippet)
    anchors = {made[0] for start, _, made in chunks if start} | {
        made[-1] for _, end, made in chunks if end < len(lines)
    }
    if any(kept[line] != 1 for line in anchors) or any(MARKER.fullmatch(line) for line in lines):
        return None
    if len(snippet) >= len(merged) or not any(MARKER.fullmatch(line) for line in snippet):
        return None
    return Merge(snippet, merged, lettered(snippet, numbers), kinds)


def _marker(line: str) -> str:
    return line[: len(line) - len(line.lstrip())] + EXISTING


def _head(piece: Piece, at: int) -> int | None:
    """The line of the head of the innermost function around a line, if the file has that line once."""
    inside = [
        node.lineno - 1
        for node in ast.walk(piece.tree)
        if isinstance(node, ast.FunctionDef) and node.lineno - 1 < at < (node.end_lineno or 0)
    ]
    if not inside or piece.lines.count(piece.lines[max(inside)]) != 1:
        return None
    return max(inside)


# ---- the rule -------------------------------------------------------------------------------------------------------


def merge_by_rule(code: Sequence[str], snippet: Sequence[str]) -> list[str] | None:
    """The merge by a rule: what is between markers replaces the lines of the file from the first that is equal to its
    first one, to the next that is equal to its last one. None where one of them is not there.
    """
    chunks: list[list[str]] = [[]]
    for line in snippet:
        if MARKER.fullmatch(line):
            chunks.append([])
        else:
            chunks[-1].append(line)
    code, out, at = list(code), list[str](), 0
    for number, chunk in enumerate(chunks):
        if not chunk:
            continue
        is_first, is_last = number == 0, number == len(chunks) - 1
        start = 0 if is_first else _find(code, chunk[0], at)
        if start is None:
            return None
        end = len(code) if is_last else _find(code, chunk[-1], start if len(chunk) == 1 or is_first else start + 1)
        if end is None:
            return None
        out += [*code[at:start], *chunk]
        at = end if is_last else end + 1
    return [*out, *code[at:]]


def _find(code: list[str], line: str, start: int) -> int | None:
    return code.index(line, start) if line in code[start:] else None
