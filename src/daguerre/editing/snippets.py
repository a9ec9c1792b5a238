"""Snippets that leave lines of a file out, merged by their text alone where it leaves no choice.

A snippet has `# ... existing code ...` for what stays. Each of its chunks begins and ends with a line of the file, or
at the file's own beginning or end, and replaces what is between these. That is certain where the file has those lines
once. Where it has them more often, or not at all, a model says where a chunk goes (`daguerre.instructions`).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from daguerre.instructions import GAP, MARKER, bounds_of, labeled, lines_of, numbered, read_merge

MARK = "# ..."
LABEL = "a"
"""Of every line of an edit that no model writes."""
MOST_LINES = 20_000
"""Of a file that a snippet is merged into."""


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
    """The number of the file's line that each first or last line of a chunk is; None where one is not there once."""
    once = {line: number for number, line in enumerate(code, 1)}
    for line in _repeated(code):
        once.pop(line)
    out, last = dict[int, int](), 0
    for at, (line, bound) in enumerate(zip(snippet, bounds_of(snippet), strict=True)):
        if not bound:
            continue
        number = once.get(line)
        if number is None or not line.strip() or number < last:
            return None
        out[at] = last = number
    same = [at for at in out if at + 1 in out and out[at] == out[at + 1] and snippet[at + 1] != snippet[at]]
    return None if same else out


def _repeated(code: Sequence[str]) -> set[str]:
    seen, out = set[str](), set[str]()
    for line in code:
        (out if line in seen else seen).add(line)
    return out


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
