"""Lines far above a gap that a reader of it would look up: what encloses it, and the imports of names near it.

Lines are read by their indentation and first words, without a parser: a text with a gap in it seldom parses. It knows
the definitions and imports of Python, JavaScript, TypeScript, Java, C, C++, C#, Go, Rust, Kotlin, PHP and Swift.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from daguerre.decoding.sides import line_ends
from daguerre.decoding.text_spans import CharSpan

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
    lines = [span for span in _lines(text) if _says_something(text[slice(*span)])]
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
    lines = _lines(text[:end])
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


def _lines(text: str) -> list[CharSpan]:
    ends = line_ends(text)
    return list(pairwise([0, *ends]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
