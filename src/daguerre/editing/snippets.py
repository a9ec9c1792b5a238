"""Snippets that leave lines of a file out, merged by their text alone where it leaves no choice.

A snippet has `# ... existing code ...` for what stays. Each of its chunks begins and ends with a line of the file, or
at the file's own beginning or end, and replaces what is between these. A line that the file has more often is the one
behind which most of the chunk's lines follow. Where that leaves a choice, or the file has no such line, a model says
where a chunk goes (`daguerre.instructions`).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence

from daguerre.instructions import GAP, MARKER, bounds_of, labeled, lines_of, numbered, read_merge

MARK = "# ..."
LABEL = "a"
"""Of every line of an edit that no model writes."""
MOST_LINES = 20_000
"""Of a file that a snippet is merged into."""
MOST_PLACES, MOST_ALIKE = 200, 64
"""Lines of a file that are like one of a snippet, and lines behind each that are compared, at most."""


def marked(code: Sequence[str], snippet: Sequence[str]) -> list[str]:
    """A snippet with a marker before its first line, if that is one of the file but not its first, and the same behind
    the last: many leave them out, and mean that the rest of the file stays.
    """
    before = snippet[0] != code[0] and snippet[0].strip() and snippet[0] in code
    behind = snippet[-1] != code[-1] and snippet[-1].strip() and snippet[-1] in code
    return [*([MARK] if before else []), *snippet, *([MARK] if behind else [])]


def merged_by_lines(text: str, snippet: str) -> str | None:
    """The text with a snippet merged into it; None where its lines leave a choice, and where it has no marker and no
    line of the text at an end.
    """
    ends = "\r\n" if "\r\n" in text and text.count("\r\n") == text.count("\n") else "\n"
    code, new = (lines_of(one.replace("\r\n", "\n")) if ends == "\r\n" else lines_of(one) for one in (text, snippet))
    shown = marked(code, new)
    if len(code) > MOST_LINES or len(shown) > MOST_LINES or not any(map(MARKER.fullmatch, shown)):
        return None
    numbers = _certain(code, shown)
    if numbers is None:
        return None
    answer = "".join(
        GAP if MARKER.fullmatch(line) else labeled(LABEL, numbered(line, numbers[at]) if at in numbers else line)
        for at, line in enumerate(shown)
    )
    made = ends.join(read_merge(code, answer))
    return made + ends if text.endswith("\n") and made else made


def merged_exactly(text: str, snippet: str) -> str | None:
    """The text with a snippet, where no model is needed: by lines, or as the only definition of its name."""
    made = merged_by_lines(text, snippet)
    return replaced_definition(text, snippet) if made is None else made


def _certain(code: Sequence[str], snippet: Sequence[str]) -> dict[int, int] | None:
    """The number of the file's line that each first or last line of a chunk is; None where that is left open."""
    places, out, last = defaultdict[str, list[int]](list), dict[int, int](), 0
    for number, line in enumerate(code, 1):
        places[line].append(number)
    for at, (line, bound) in enumerate(zip(snippet, bounds_of(snippet), strict=True)):
        if not bound:
            continue
        step = -1 if at and not MARKER.fullmatch(snippet[at - 1]) else 1
        found = _place(code, snippet, at, step, places[line]) if line.strip() else None
        if found is None or found < last:
            return None
        out[at] = last = found
    same = [at for at in out if at + 1 in out and out[at] == out[at + 1] and snippet[at + 1] != snippet[at]]
    return None if same else out


def _place(code: Sequence[str], snippet: Sequence[str], at: int, step: int, numbers: Sequence[int]) -> int | None:
    """Which of these lines of the file the first line of a chunk is, or the last one (step -1): that behind which most
    of the chunk's lines follow in the file as well; None where several have as many.
    """
    if len(numbers) <= 1 or len(numbers) > MOST_PLACES:
        return numbers[0] if len(numbers) == 1 else None
    alike = [_num_alike(code, snippet, number - 1, at, step) for number in numbers]
    return numbers[alike.index(max(alike))] if alike.count(max(alike)) == 1 else None


def _num_alike(code: Sequence[str], snippet: Sequence[str], place: int, at: int, step: int) -> int:
    """How many lines from these two on, or back, are the same, at most MOST_ALIKE."""
    num = 0
    while num < MOST_ALIKE and 0 <= place < len(code) and 0 <= at < len(snippet) and code[place] == snippet[at]:
        place, at, num = place + step, at + step, num + 1
    return num


def replaced_definition(text: str, snippet: str) -> str | None:
    """A Python file with a function or class in place of that of the same name; None where the snippet is not one
    definition, or the file has none or several of that name at its top level.
    """
    try:
        new, old = ast.parse(snippet), ast.parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if len(new.body) != 1 or not isinstance(new.body[0], kinds) or any(map(MARKER.fullmatch, snippet.split("\n"))):
        return None
    found = [node for node in old.body if isinstance(node, kinds) and node.name == new.body[0].name]
    if len(found) != 1 or "\r" in text:
        return None
    first = min([found[0].lineno, *(one.lineno for one in found[0].decorator_list)])
    lines = text.split("\n")
    return "\n".join([*lines[: first - 1], *snippet.strip("\n").split("\n"), *lines[found[0].end_lineno or first :]])
