"""Spans of characters in a text: gaps and edited parts, the difference made, and lines above a gap that explain it.

Offsets are in characters. Text outside the spans is never changed. `enclosing` and `imports` find what a reader of a
gap would look up: the signatures of what encloses it, and the imports of names near it. Lines are read by their
indentation and first words, without a parser: a text with a gap in it seldom parses. They know the definitions and
imports of Python, JavaScript, TypeScript, Java, C, C++, C#, Go, Rust, Kotlin, PHP and Swift.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
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


def line_ends(text: str) -> list[int]:
    """Where each line ends, its line break included; the last line may have none."""
    ends, at = [], 0
    while at := text.find("\n", at) + 1:
        ends.append(at)
    if text and not text.endswith("\n"):
        ends.append(len(text))
    return ends


DEFINES = re.compile(
    r"\s*(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub(?:\([a-z]+\))?|open"
    r"|override|unsafe|extern|sealed|data|partial)\s+)*"
    r"(?:def|class|function|func|fun|fn|interface|struct|enum|trait|impl|mod|module|namespace|type|object|protocol"
    r"|extension)\b"
)
"""The first line of a definition that a word of its language announces."""
TYPED = re.compile(
    r"\s*(?!(?:if|else|elseif|elif|for|foreach|while|until|unless|switch|match|when|select|guard|catch|with|using|lock|fixed"
    r"|synchronized|do|try|return|throw|raise|case|new|delete|await|yield|assert|defer|go|and|or|not|in)\b)"
    r"(?:[\w:.<>,*&?\[\]@]+\s+[*&]*)*(?:\w+::)*~?\w+\s*\("
)
"""The first line of what may be a definition that begins with a type or its name, as in C and Java: a body follows."""
BODY = re.compile(r"\{\s*(?://.*|/\*.*\*/\s*)?$")
IMPORTS = re.compile(r"(?:import|from|use|using|#\s*include|package|(?:const|let|var)\s[^=\n]*=\s*require\b)")
"""The first line of an import: it is not indented."""
COMMENT = re.compile(r"\s*(?:#(?!\s*include)|//|/?\*)")
OPENS = ("(", "{", "[")
CLOSES = (")", "}", "]")
SIGNATURE_LINES = 12
"""A definition's first line and those that end its parameters: no more than so many."""
NEAR = 2000
"""Characters before the gap whose names are looked up among the imports."""


def enclosing(text: str, end: int) -> list[CharSpan]:
    """The signatures of the definitions that enclose the end of `text` and end before `end`: their characters, the
    outermost first.
    """
    lines = [span for span in _line_spans(text) if _says_something(text[slice(*span)])]
    found: list[CharSpan] = []
    depth = _indent(text[slice(*lines[-1])]) if lines else 0
    for at in range(len(lines) - 2, -1, -1):
        if depth == 0:
            break
        line = text[slice(*lines[at])]
        indent = _indent(line)
        if indent >= depth:
            continue
        # What closes parameters, and a body's brace in a line of its own: the first line is indented as much.
        depth = indent + line.lstrip().startswith((*CLOSES, "{"))
        if DEFINES.match(line):
            found.append((lines[at][0], _signature_end(text, lines, at)))
        elif TYPED.match(line) and (stop := _typed_end(text, lines, at)) is not None:
            found.append((lines[at][0], stop))
    return [(start, stop) for start, stop in reversed(found) if stop <= end]


def _says_something(line: str) -> bool:
    """Whether a line is neither empty nor a comment: those may be indented in any way."""
    return bool(line.strip()) and not COMMENT.match(line)


def imports(text: str, end: int) -> list[CharSpan]:
    """The imports before `end` of names that stand after it, near the end of `text`: their characters, in order."""
    names = set(re.findall(r"\w+", text[max(end, len(text) - NEAR) :]))
    return [span for span in _imports(text, end) if names & _bound(text[slice(*span)])]


def _bound(line: str) -> set[str]:
    """The names that an import makes known, and others of its line."""
    return set(re.findall(r"\w+", line.split("import", 1)[-1])) - {"as", "from", "const", "let", "var"}


def _imports(text: str, end: int) -> Iterator[CharSpan]:
    """All of them. One that opens a bracket and does not close it goes on to the line that does."""
    lines = _line_spans(text[:end])
    at = 0
    while at < len(lines):
        start, stop = lines[at]
        at += 1
        if not IMPORTS.match(text, start):
            continue
        while at < len(lines) and _is_open(text[start:stop]) and lines[at][1] - start <= NEAR:
            stop = lines[at][1]
            at += 1
        yield start, stop


def _is_open(text: str) -> bool:
    """Whether more brackets are opened than closed, or a line is continued."""
    opened = sum(text.count(mark) for mark in OPENS) - sum(text.count(mark) for mark in CLOSES)
    return opened > 0 or text.rstrip("\r\n").endswith("\\")


def _signature_end(text: str, lines: list[CharSpan], at: int) -> int:
    """Where the signature ends that begins in a line: with the line that closes its parameters."""
    start = lines[at][0]
    for _, stop in lines[at : at + SIGNATURE_LINES]:
        signature = text[start:stop]
        if signature.count("(") <= signature.count(")"):
            return stop
    return lines[at][1]


def _typed_end(text: str, lines: list[CharSpan], at: int) -> int | None:
    """Where the signature ends whose body's brace follows its parameters; None where no body follows."""
    start, before = lines[at]
    for first, stop in lines[at : at + SIGNATURE_LINES]:
        signature = text[start:stop].rstrip()
        if signature.count("(") == signature.count(")"):
            if BODY.search(signature):
                return before if text[first:stop].lstrip().startswith("{") else stop
            if signature.endswith((";", "}", ":")):
                return None
        before = stop
    return None


def _line_spans(text: str) -> list[CharSpan]:
    ends = line_ends(text)
    return list(pairwise([0, *ends]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
