"""What a model wrote in place of a region of a text: read strictly, or refused with the reason.

The answer is one fenced block. Its lines that are those of the region but for white space are the region's, byte for
byte; new ones get the region's indentation and ends of lines. The blank lines around the region, and whether its last
line ends, stay as they were. A text in Python, JSON or TOML that could be read before can be read after.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
import warnings
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from pathlib import PurePath
from typing import Any

from daguerre.errors import DaguerreError
from daguerre.instructions import MARKER

LANGUAGES = {
    "python": ("py", "pyi", "python3"),
    "javascript": ("js", "mjs", "cjs", "jsx"),
    "typescript": ("ts", "tsx"),
    "c": ("h",),
    "cpp": ("cc", "cxx", "hpp", "c++"),
    "csharp": ("cs",),
    "go": ("golang",),
    "rust": ("rs",),
    "java": (),
    "kotlin": ("kt",),
    "ruby": ("rb",),
    "php": (),
    "swift": (),
    "bash": ("sh", "shell"),
    "html": ("htm",),
    "css": (),
    "json": (),
    "toml": (),
    "yaml": ("yml",),
    "markdown": ("md",),
    "sql": (),
}
"""Languages by the names that fences have, with the endings of their files and other names."""
_NAMED = {other: name for name, others in LANGUAGES.items() for other in (name, *others)}
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`\n]*\Z")
SIMILAR_LINES = 4_000
"""Lines of a region up to which those that differ in white space alone are looked for."""

LOST_LINES = 8
"""Fewer lines than these may be left out at the end of a region by an answer that has less than half of its lines."""


class UnreadableAnswer(DaguerreError):
    """A model's answer that is no edit of the text, which stays as it is. `answer`: the raw text."""

    http_status = 502

    def __init__(self, reason: str, answer: str = "") -> None:
        super().__init__(reason)
        self.reason, self.answer = reason, answer


def language_of(name: str) -> str:
    """The language of a file by its name, as a fence names it; empty for an unknown one."""
    return _NAMED.get(PurePath(name).suffix.removeprefix(".").lower(), "")


def fence_for(*texts: str) -> str:
    """Backticks that no line of these texts begins with."""
    longest = max((len(found[1]) for text in texts for found in re.finditer(r"^ {0,3}(`{3,})", text, re.M)), default=2)
    return "`" * max(3, longest + 1)


def fenced(answer: str, language: str = "") -> str:
    """The only fenced block of an answer. UnreadableAnswer for none, several, one that does not end, and one that says
    to be of another language.
    """
    blocks: list[str] = []
    marks, named, inside = "", "", list[str]()
    for line in answer.split("\n"):
        found = _FENCE.match(line.rstrip("\r"))
        if marks and found and not found[2] and found[1][0] == marks[0] and len(found[1]) >= len(marks):
            blocks.append("".join(part + "\n" for part in inside))
            marks = ""
        elif marks:
            inside.append(line)
        elif found:
            marks, named, inside = found[1], found[2].lower(), []
    if marks:
        raise UnreadableAnswer("the code block does not end", answer)
    if len(blocks) != 1:
        raise UnreadableAnswer(f"the answer has {len(blocks) or 'no'} code blocks, and must have one", answer)
    said = _NAMED.get(named, "")
    if said and language and said != language:
        raise UnreadableAnswer(f"the code block is in {said}, and the file in {language}", answer)
    return blocks[0]


def read_region(answer: str, old: str, language: str = "") -> str:
    """The text that an answer puts in place of a region, `old`. UnreadableAnswer where that is not certain."""
    new = fenced(answer, language)
    if not new.strip() and old.strip():
        raise UnreadableAnswer("the code block is empty", answer)
    was, made = ([line.strip() for line in text.strip().split("\n")] for text in (old, new))
    have = set(made)
    lost = next((at for at, line in enumerate(reversed(was)) if line and line in have), 0)
    if lost >= LOST_LINES and len(was) > 2 * len(made):
        raise UnreadableAnswer(f"the answer leaves the last {lost} lines out: write all of them", answer)
    return _read(new, old, answer)


def read_parts(answer: str, old: str, language: str = "") -> str:
    """The text that an answer puts in place of parts of a file, `old`; it may be empty, and have fewer of them. Its
    indentation stays where it has strings of several lines.
    """
    new = fenced(answer, language)
    return _read(new, old, answer, indents=not re.search(r"\"{3}|'{3}", new))


def _read(new: str, old: str, answer: str, indents: bool = True) -> str:
    known = {line.strip() for line in old.split("\n")}
    for line in new.split("\n"):
        if MARKER.fullmatch(line.rstrip("\r")) and line.strip() not in known:
            raise UnreadableAnswer(
                f"the answer leaves lines out where it says {line.strip()!r}: write all of them", answer
            )
    return fitted(new, old, indents)


def fitted(new: str, old: str, indents: bool = True) -> str:
    """A text in the form of the one in whose place it comes: its white space around, if `indents` its indentation, its
    ends of lines; and of lines that differ in white space alone the old ones.
    """
    body, lead, tail = _without_edges(old)
    made = _without_edges(new)[0]
    if not body or not made:
        return lead + made + tail
    lines, was = [line.rstrip("\r") for line in made.split("\n")], body.split("\n")
    lines = _indented(lines, was) if indents else lines
    kept = _kept(lines, was)
    end = "\r" if sum(line.endswith("\r") for line in was) * 2 > len(was) - 1 else ""
    out = []
    for at, line in enumerate(lines):
        last = at == len(lines) - 1
        if at in kept and not last and kept[at] < len(was) - 1:
            out.append(was[kept[at]])
        elif at in kept:
            out.append(was[kept[at]].removesuffix("\r") + ("" if last else end))
        else:
            out.append(line + ("" if last else end))
    return lead + "\n".join(out) + tail


def _without_edges(text: str) -> tuple[str, str, str]:
    """A text without blank lines at its beginning and end, and these."""
    lead = re.match(r"(?:[ \t]*\r?\n)*", text)
    begin = lead.end() if lead else 0
    body = text[begin:].rstrip("\r\n") if text[begin:].strip() else ""
    while body and not body[body.rfind("\n") + 1 :].strip():
        body = body[: body.rfind("\n") + 1].rstrip("\r\n")
    return body, text[:begin], text[begin + len(body) :]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indented(lines: list[str], was: Sequence[str]) -> list[str]:
    """Lines that are indented as the old ones are: by tabs or spaces, and as deep where the whole answer is not."""
    tabs = [_indent(line)[:1] == "\t" for line in was if _indent(line) and line.strip()]
    own = [_indent(line) for line in lines if line.strip()]
    unit = min((len(one) for one in own if one and "\t" not in one), default=4)
    if tabs and all(tabs) and not any("\t" in one for one in own):
        lines = [
            _with_indent(line, "\t" * (len(_indent(line)) // unit) + " " * (len(_indent(line)) % unit))
            for line in lines
        ]
    elif not any(tabs) and any("\t" in one for one in own):
        unit = min((len(_indent(line)) for line in was if _indent(line) and line.strip()), default=4)
        lines = [_with_indent(line, _indent(line).replace("\t", " " * unit)) for line in lines]
    first, new = was[0], lines[0]
    deep, least = _indent(first), min((_indent(line) for line in lines if line.strip()), key=len)
    if len(_indent(new)) < len(deep) and len(least) == len(_indent(new)):  # the block was written at the margin
        more = deep[len(_indent(new)) :]
        return [more + line if line.strip() else line for line in lines]
    return lines


def _with_indent(line: str, indent: str) -> str:
    return indent + line.lstrip(" \t")


def _kept(lines: Sequence[str], was: Sequence[str]) -> dict[int, int]:
    """The old lines that new ones are but for white space at their ends, by the numbers of both."""
    if max(len(lines), len(was)) > SIMILAR_LINES:
        return {}
    one, other = [line.rstrip() for line in lines], [line.rstrip() for line in was]
    first = 0
    while first < min(len(one), len(other)) and one[first] == other[first]:
        first += 1
    last = 0
    while last < min(len(one), len(other)) - first and one[-1 - last] == other[-1 - last]:
        last += 1
    found = {at: at for at in range(first)}
    found |= {len(one) - 1 - at: len(other) - 1 - at for at in range(last)}
    middle = SequenceMatcher(None, one[first : len(one) - last], other[first : len(other) - last])
    for block in middle.get_matching_blocks():
        found |= {first + block.a + at: first + block.b + at for at in range(block.size)}
    return found


def _python(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


READERS: dict[str, Callable[[str], Any]] = {"python": _python, "json": json.loads, "toml": tomllib.loads}


def check_syntax(old: str, new: str, language: str, answer: str = "") -> None:
    """UnreadableAnswer where a text could be read as its language, and the one in its place cannot."""
    reader = READERS.get(language)
    if reader is None or _fault(reader, old) is not None:
        return
    fault = _fault(reader, new)
    if fault is not None:
        raise UnreadableAnswer(f"the file would be no {language} any more ({fault})", answer)


def _fault(reader: Callable[[str], Any], text: str) -> str | None:
    try:
        reader(text.replace("\r\n", "\n"))
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None
