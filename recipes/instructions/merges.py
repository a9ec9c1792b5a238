"""Mechanical merges: edits of a file's statements, the snippet that shows them, and a rule that merges it.

A snippet has chunks of new lines between lines of the file, with `# ... existing code ...` for what stays as it is. A
chunk begins and ends with lines that are in the file once, or at the file's own beginning or end, so that the merge is
the only one. Sometimes a chunk is preceded by the head of the function that it is in, as models write snippets.

People and models also write other snippets, whose right merge the rule often misses:

    repeated   a chunk begins or ends with lines that the file has more than once, but one after the other only here
    bare       a chunk begins or ends with a new line: a changed line, lines put at the end of the file or of the body
               whose head is shown, or next to the only line of the file that is shown

`touches` are for training alone: many short chunks, and so many numbers, often of lines that are much alike.

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

from pieces import ShortFile
from statements import Donors, Site, sites_of

from daguerre.evals.lines import parse
from daguerre.instructions import MARKER, lettered

EXISTING = "# ... existing code ..."
WORD = re.compile(r"[A-Za-z_]\w*|\d+")
MOST_CONTEXT = 6
"""Lines of the file that a chunk may have on either side."""


@dataclass(frozen=True)
class MergeHunk:
    """Lines [start, end) of a file become others."""

    start: int
    end: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class MergeChunk:
    """Lines of a snippet in place of lines [start, end) of a file. `bare` ends, the first and the last, are new lines
    that take no line's place.
    """

    start: int
    end: int
    lines: Sequence[str]
    bare: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Merge:
    """A snippet for a file, the file that it makes, and that as the edit that a model writes."""

    snippet: list[str]
    merged: list[str]
    answer: str
    kinds: tuple[str, ...]


# ---- edits ----------------------------------------------------------------------------------------------------------


def _delete(piece: ShortFile, site: Site, donors: Donors, rng: random.Random) -> MergeHunk | None:
    short = site.end - site.start <= 6 and not site.alone
    return MergeHunk(site.start, site.end, ()) if short else None


def _insert(piece: ShortFile, site: Site, donors: Donors, rng: random.Random) -> MergeHunk | None:
    at = rng.choice((site.start, site.end))
    return MergeHunk(at, at, tuple(donors.some(rng, site.indent)))


def _replace(piece: ShortFile, site: Site, donors: Donors, rng: random.Random) -> MergeHunk | None:
    if site.end - site.start > 6:
        return None
    return MergeHunk(site.start, site.end, tuple(donors.some(rng, site.indent)))


def _mutate(piece: ShortFile, site: Site, donors: Donors, rng: random.Random) -> MergeHunk | None:
    """A word of a statement's line becomes another one."""
    at = rng.randrange(site.start, min(site.end, site.start + 3))
    line = piece.lines[at]
    words = [m for m in WORD.finditer(line) if not keyword.iskeyword(m[0])]
    if not words:
        return None
    word = rng.choice(words)
    new = str(rng.randrange(100)) if word[0].isdigit() else rng.choice(donors.names)
    return MergeHunk(at, at + 1, (line[: word.start()] + new + line[word.end() :],))


def _parameter(piece: ShortFile, site: Site, donors: Donors, rng: random.Random) -> MergeHunk | None:
    """A function gets a parameter more."""
    if not isinstance(site.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    at = site.node.lineno - 1
    found = re.fullmatch(r"(.*\bdef \w+\()(.*)(\)( ->.*)?:)", piece.lines[at])
    if found is None or "**" in found[2]:
        return None
    new = rng.choice(donors.names) + rng.choice(("=None", "=False", "=0", "=()", "=True"))
    return MergeHunk(at, at + 1, (f"{found[1]}{found[2]}{', ' if found[2].strip() else ''}{new}{found[3]}",))


def _wrap(piece: ShortFile, site: Site, donors: Donors, rng: random.Random) -> MergeHunk | None:
    """A statement goes below an `if` or a `with`."""
    if site.end - site.start > 4 or isinstance(site.node, ast.FunctionDef | ast.ClassDef):
        return None
    name = rng.choice(donors.names)
    head = rng.choice((f"if {name}:", f"if not {name}:", f"if {name} is not None:", f"with {name}:"))
    inside = ["    " + line if line else line for line in piece.lines[site.start : site.end]]
    return MergeHunk(site.start, site.end, (site.indent + head, *inside))


def _function(piece: ShortFile, site: Site, donors: Donors, rng: random.Random) -> MergeHunk | None:
    """A new function, before another one or a class."""
    if not isinstance(site.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return None
    blank = [""] * (1 if site.indent else 2)
    return MergeHunk(site.start, site.start, (*donors.some(rng, site.indent, function=True), *blank))


EDITS: dict[str, tuple[float, Callable[[ShortFile, Site, Donors, random.Random], MergeHunk | None]]] = {
    "insert": (3, _insert),
    "replace": (2.5, _replace),
    "mutate": (2.5, _mutate),
    "delete": (1.5, _delete),
    "parameter": (1, _parameter),
    "wrap": (1, _wrap),
    "function": (1, _function),
}
"""Edits, and how often each is tried."""


def merge_of(piece: ShortFile, donors: Donors, rng: random.Random, repeated: bool = False) -> Merge | None:
    """A merge of one to three edits; None where what was drawn does not fit. repeated: some lines around its chunks are
    in the file more than once.
    """
    sites = sites_of(piece)
    if not sites:
        return None
    hunks, kinds = list[MergeHunk](), list[str]()
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
    if not merged or parse("\n".join(merged) + "\n") is None:
        return None
    return _shown(piece, hunks, merged, tuple(kinds), rng, repeated)


def _merged(lines: Sequence[str], hunks: Sequence[MergeHunk]) -> list[str]:
    out, at = list[str](), 0
    for hunk in hunks:
        out += [*lines[at : hunk.start], *hunk.lines]
        at = hunk.end
    return [*out, *lines[at:]]


# ---- snippets -------------------------------------------------------------------------------------------------------


def _shown(
    piece: ShortFile,
    hunks: list[MergeHunk],
    merged: list[str],
    kinds: tuple[str, ...],
    rng: random.Random,
    repeated: bool,
) -> Merge | None:
    lines, counts = piece.lines, Counter(piece.lines)
    new = {line for hunk in hunks for line in hunk.lines}

    def once(at: int) -> bool:
        return bool(lines[at].strip()) and counts[lines[at]] == 1 and lines[at] not in new

    chunks: list[tuple[int, int, list[str]]] = []
    for hunk in hunks:
        start, end = max(0, hunk.start - rng.randint(1, 3)), min(len(lines), hunk.end + rng.randint(1, 3))
        while start > 0 and not (once(start) or (repeated and _is_only(lines, start, hunk.start))):
            start -= 1
        while end < len(lines) and not (once(end - 1) or (repeated and _is_only(lines, hunk.end, end))):
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
    shown, at = list[MergeChunk](), 0
    for start, end, made in chunks:
        if (head := _head(piece, start)) is not None and head >= at and start - head > 1 and rng.random() < 0.4:
            shown.append(MergeChunk(head, head + 1, [lines[head]]))
        shown.append(MergeChunk(start, end, made))
        at = end
    merge = _assembled(lines, shown, kinds)
    if merge is None or merge.merged != merged or len(merge.snippet) >= len(merged):
        return None
    kept = Counter(merge.snippet)
    anchors = {made[0] for start, _, made in chunks if start} | {
        made[-1] for _, end, made in chunks if end < len(lines)
    }
    if repeated:
        return merge if any(counts[line] > 1 for line in anchors) else None
    return merge if all(kept[line] == 1 for line in anchors) else None


def _marker(line: str) -> str:
    return line[: len(line) - len(line.lstrip())] + EXISTING


def _head(piece: ShortFile, at: int) -> int | None:
    """The line of the head of the innermost function around a line, if the file has that line once."""
    inside = [
        node.lineno - 1
        for node in ast.walk(piece.tree)
        if isinstance(node, ast.FunctionDef) and node.lineno - 1 < at < (node.end_lineno or 0)
    ]
    if not inside or piece.lines.count(piece.lines[max(inside)]) != 1:
        return None
    return max(inside)


def _is_only(lines: Sequence[str], start: int, end: int) -> bool:
    """Whether lines [start, end) begin and end with text, and follow one another nowhere else."""
    run = lines[start:end]
    others = (lines[at : at + len(run)] for at in range(len(lines)) if at != start)
    return bool(run) and bool(run[0].strip() and run[-1].strip()) and all(other != run for other in others)


def _assembled(lines: Sequence[str], chunks: Sequence[MergeChunk], kinds: tuple[str, ...]) -> Merge | None:
    """A merge of these chunks, which are in order; None for too many lines, and where nothing is left out."""
    snippet, numbers, out, at = list[str](), list[object](), list[str](), 0
    for chunk in chunks:
        first, last = (f"+{chunk.start}" if chunk.bare[0] else chunk.start + 1), chunk.end
        if opened := chunk.start > at:
            snippet.append(_marker(chunk.lines[0]))
            numbers.append("")
        snippet += chunk.lines
        ends: list[object] = [f"+{last}" if chunk.bare[1] else last] * len(chunk.lines)
        numbers += [first, *ends[1:]] if opened else ends
        out += [*lines[at : chunk.start], *chunk.lines]
        at = chunk.end
    if at < len(lines):
        snippet.append(_marker(lines[at]))
        numbers.append("")
    shown = [line for line in snippet if not MARKER.fullmatch(line)]
    if len(shown) > len(ascii_letters) or any(map(MARKER.fullmatch, lines)) or len(snippet) == len(shown):
        return None
    return Merge(snippet, [*out, *lines[at:]], lettered(snippet, numbers), kinds)


# ---- chunks that begin or end with new lines ------------------------------------------------------------------------


def bare_of(piece: ShortFile, donors: Donors, rng: random.Random) -> Merge | None:
    """A merge of a chunk that begins or ends with a new line; None where what was drawn does not fit."""
    made = rng.choice((_appended, _in_body, _beside, _changed))(piece, donors, rng)
    return made if made is not None and parse("\n".join(made.merged) + "\n") is not None else None


def _appended(piece: ShortFile, donors: Donors, rng: random.Random) -> Merge | None:
    """A function behind the last line of the file, or statements before the first one."""
    lines, end = piece.lines, len(piece.lines)
    if rng.random() < 0.3:
        new = [line for _ in range(rng.randint(1, 3)) for line in donors.some(rng, "")]
        return _assembled(lines, [MergeChunk(0, 0, new, (True, True))], ("prepended",))
    last = piece.tree.body[-1]
    inside = isinstance(last, ast.ClassDef) and rng.random() < 0.7
    indent = " " * last.body[0].col_offset if isinstance(last, ast.ClassDef) and inside else ""
    blank = [""] * rng.choice((0, 1) if inside else (0, 1, 2))
    new = [*blank, *donors.some(rng, indent, function=True)]
    return _assembled(lines, [MergeChunk(end, end, new, (True, True))], ("appended",))


def _in_body(piece: ShortFile, donors: Donors, rng: random.Random) -> Merge | None:
    """Statements at the end of a function or of a class, whose head is shown."""
    lines, heads = piece.lines, Counter(piece.lines)
    able = [
        node
        for node in ast.walk(piece.tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and heads[lines[node.lineno - 1]] == 1
        and lines[node.lineno - 1].endswith(":")
        and node.body[0].lineno > node.lineno
    ]
    if not able:
        return None
    node = rng.choice(able)
    end, indent = node.end_lineno or 0, " " * node.body[0].col_offset
    is_class = isinstance(node, ast.ClassDef)
    new = [*([""] if is_class and rng.random() < 0.5 else []), *donors.some(rng, indent, function=is_class)]
    head = MergeChunk(node.lineno - 1, node.lineno, [lines[node.lineno - 1]])
    return _assembled(lines, [head, MergeChunk(end, end, new, (True, True))], ("body",))


def _beside(piece: ShortFile, donors: Donors, rng: random.Random) -> Merge | None:
    """New lines before or behind a line that the file has once, and that is all of the file that is shown."""
    lines, counts = piece.lines, Counter(piece.lines)
    site = rng.choice(sites_of(piece))
    new = donors.some(rng, site.indent, function=rng.random() < 0.3)
    before = rng.random() < 0.5
    at = site.start if before else site.end - 1
    if counts[lines[at]] != 1 or lines[at] in new:
        return None
    if before:
        chunk = MergeChunk(at, at + 1, [*new, lines[at]], (True, False))
    else:
        chunk = MergeChunk(at, at + 1, [lines[at], *new], (False, True))
    return _assembled(lines, [chunk], ("beside",))


def _changed(piece: ShortFile, donors: Donors, rng: random.Random) -> Merge | None:
    """Changed lines alone, in place of what they were."""
    chunks = list[MergeChunk]()
    for site in rng.sample(sites := sites_of(piece), min(len(sites), rng.randint(1, 3))):
        hunk = rng.choice((_mutate, _mutate, _parameter))(piece, site, donors, rng)
        if hunk is not None and all(hunk.start > one.end or hunk.end < one.start for one in chunks):
            if not set(hunk.lines) & set(piece.lines):
                chunks.append(MergeChunk(hunk.start, hunk.end, hunk.lines))
    return _assembled(piece.lines, sorted(chunks, key=lambda one: one.start), ("changed",)) if chunks else None


# ---- many numbers ---------------------------------------------------------------------------------------------------

FEWEST_TOUCHED, MOST_TOUCHED = 5, 18
ALIKE = 8.0
"""How much likelier a line is shown that ends or begins as another one does."""


def touches_of(piece: ShortFile, donors: Donors, rng: random.Random) -> Merge | None:
    """A merge of many chunks, each a line of the file, or two with another one between them or in place of some."""
    lines, counts = piece.lines, Counter(piece.lines)
    once = [i for i, line in enumerate(lines) if line.strip() and counts[line] == 1]
    ends = Counter(end for line in set(lines) if line.strip() for end in _ends(line))
    weights = {i: ALIKE if any(ends[end] > 1 for end in _ends(lines[i])) else 1.0 for i in once}
    chosen = sorted(once, key=lambda i: rng.random() ** (1 / weights[i]))[-rng.randint(FEWEST_TOUCHED, MOST_TOUCHED) :]
    chunks, at = list[MergeChunk](), 0
    for i in sorted(chosen):
        others = [j for j in once if i < j <= i + 4]
        if i < at or (i == at and chunks):  # a chunk that meets the last one
            continue
        if others and rng.random() < 0.2:
            end = rng.choice(others) + 1
            indent = lines[i][: len(lines[i]) - len(lines[i].lstrip())]
            chunks.append(MergeChunk(i, end, [lines[i], *donors.some(rng, indent)[:2], lines[end - 1]]))
        else:
            chunks.append(MergeChunk(i, i + 1, [lines[i]]))
        at = chunks[-1].end
    return _assembled(lines, chunks, ("touches",)) if len(chunks) > 2 else None


def _ends(line: str) -> tuple[str, str]:
    """The beginning and the end of a line, a third of it each."""
    text = line.strip()
    return "<" + text[: 1 + len(text) // 3], text[-1 - len(text) // 3 :] + ">"


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
