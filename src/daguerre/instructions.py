"""Tasks on a file of code as texts, for a model that was trained on them (docs/instructions.md), and its answers read.

A file is shown with its lines numbered, a snippet with its lines lettered, and an answer begins each line with the
label of the line that it copies. Labels say which of two equal lines is meant, so a copy does not lose its place.

    #> file
    1 import os
    2
    3 x = 1
    #> apply
    ...
    a x = 1
    b y = 2
    #> result
    1 import os
    2
    3 x = 1
    b y = 2
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import ascii_letters

from daguerre.errors import InputError
from daguerre.models.json_files import read_json

TASKS = ("apply", "rename", "fix", "type", "call", "next_edit")
"""What a model may be trained to do; `sft.tasks` of a recipe names them; config.json keeps them (`extra.tasks`)."""
FILE, RESULT, GAP, NOTHING = "#> file\n", "#> result\n", "...\n", "None\n"
MARKER = re.compile(r"[ \t]*(#|//)[ \t]*\.{3}[ \t]*(existing code|rest of( the)? code)?[ \t]*(\.{3})?[ \t]*")
"""A line of a snippet that stands for lines of the file that stay as they are."""
_LABEL = re.compile(r"\A(?:\d+|[A-Za-z])(?: |\Z)")


def lines_of(text: str) -> list[str]:
    """The lines of a text; an end of line at its end begins no new one."""
    return text.removesuffix("\n").split("\n")


def labeled(label: object, line: str) -> str:
    """A line of a listing."""
    return f"{label} {line}\n" if line else f"{label}\n"


def listing(lines: Sequence[str], first: int = 1) -> str:
    """Lines with their numbers."""
    return "".join(labeled(first + i, line) for i, line in enumerate(lines))


def read_listing(text: str) -> str:
    """A listing without its labels; empty for an empty one."""
    return "".join(_LABEL.sub("", line, count=1) + "\n" for line in lines_of(text)) if text else ""


def changes(old: Sequence[str], new: Sequence[str], first: int = 1) -> str:
    """A listing of the lines that differ between as many lines each, with their numbers; "None" where none does."""
    pairs = enumerate(zip(old, new, strict=True), first)
    return "".join(labeled(number, line) for number, (was, line) in pairs if line != was) or NOTHING


def changed(lines: Sequence[str], answer: str, first: int = 1) -> list[str]:
    """Lines with those of a listing in place of the ones of the same number; numbers of no line are left out."""
    out = list(lines)
    for line in lines_of(answer):
        number, _, text = line.partition(" ")
        if number.isdecimal() and 0 <= int(number) - first < len(out):
            out[int(number) - first] = text
    return out


def lettered(snippet: Sequence[str]) -> str:
    """The lines of a snippet with letters; markers as they are shown. InputError for more than there are letters."""
    letters, out = iter(ascii_letters), ""
    for line in snippet:
        if MARKER.fullmatch(line):
            out += GAP
        elif (letter := next(letters, None)) is None:
            raise InputError(f"a snippet may have {len(ascii_letters)} lines: send a shorter one")
        else:
            out += labeled(letter, line)
    return out


def apply_prompt(code: Sequence[str], snippet: Sequence[str]) -> str:
    """Merge a snippet into a file; the answer is a listing of the whole file."""
    return f"{FILE}{listing(code)}#> apply\n{lettered(snippet)}{RESULT}"


def places_of(code: Sequence[str], name: str, first: int = 1, last: int | None = None) -> list[tuple[int, int]]:
    """(line, column), from 0, of each place in lines `first` to `last`, from 1, that has a name as a word."""
    last = len(code) if last is None else last
    word = re.compile(rf"\b{re.escape(name)}\b")
    return [(i, found.start()) for i in range(first - 1, last) for found in word.finditer(code[i])]


def replaced(code: Sequence[str], places: Iterable[tuple[int, int]], old: str, texts: Iterable[str]) -> list[str]:
    """Lines with a text in place of a name at each of these places, which are in order."""
    out = list(code)
    for (line, column), text in reversed(list(zip(places, texts, strict=True))):
        out[line] = out[line][:column] + text + out[line][column + len(old) :]
    return out


def rename_prompt(code: Sequence[str], old: str, new: str, first: int = 1, last: int | None = None) -> str:
    """Rename a name in lines `first` to `last`, from 1 (None: to the end). The lines there that have it as a word are
    shown again, with a letter for each such place; the answer has the letters of those that change (`read_rename`).
    InputError for more places than there are letters.
    """
    places = places_of(code, old, first, last)
    if len(places) > len(ascii_letters):
        raise InputError(
            f"{old} is there {len(places)} times, and {len(ascii_letters)} places can be shown: name fewer lines"
        )
    lines = replaced(code, places, old, [f"${letter}" for letter, _ in zip(ascii_letters, places, strict=False)])
    shown = "".join(labeled(i + 1, lines[i]) for i in sorted({line for line, _ in places}))
    return f"{FILE}{listing(code)}#> rename {old} to {new}\n{shown}{RESULT}"


def read_rename(
    code: Sequence[str], old: str, new: str, answer: str, first: int = 1, last: int | None = None
) -> list[str]:
    """The lines with the name changed at the places that an answer names."""
    said, places = set(answer.split()), places_of(code, old, first, last)
    chosen = [place for letter, place in zip(ascii_letters, places, strict=False) if letter in said]
    return replaced(code, chosen, old, [new] * len(chosen))


def fix_prompt(code: Sequence[str], line: int) -> str:
    """Write the line of this number, from 1, as it should be; the answer is a listing of it."""
    return f"{FILE}{listing(code)}#> fix\n{labeled(line, code[line - 1])}{RESULT}"


def type_prompt(code: Sequence[str], what: str) -> str:
    """The type of a parameter, "x of f", or of a result, "f"; the answer is the annotation alone."""
    return f"{FILE}{listing(code)}#> type {what}\n{RESULT}"


def call_prompt(code: Sequence[str], function: str, values: str) -> str:
    """Write the call of a function with these values, "x=1, y=2"; the answer is the call alone."""
    return f"{FILE}{listing(code)}#> call {function} with {values}\n{RESULT}"


def next_edit_prompt(code: Sequence[str], history: Sequence[tuple[str, str]], first: int, last: int) -> str:
    """Predict the next edit in lines `first` to `last`, from 1. history: lines that changed, oldest first, each as it
    was and as it is, empty where there was none, or is none. The answer has the lines that change (`changes`).
    """
    edits = "".join("".join(f"{s}{line}\n" for s, line in zip("-+", edit, strict=True) if line) for edit in history)
    return f"{FILE}{listing(code)}#> edits\n{edits}#> next {first} to {last}\n{RESULT}"


def tasks_in(folder: Path, adapter: Path | None = None) -> tuple[str, ...]:
    """What the model of a folder was trained to do, with an adapter; nothing where the files do not say."""
    path = folder / "config.json" if adapter is None else adapter / "training.json"
    if not path.is_file():
        return ()
    values = read_json(path)
    facts = values.get("extra") if adapter is None else values
    named = facts.get("tasks") if isinstance(facts, dict) else None
    return tuple(task for task in TASKS if isinstance(named, list) and task in named)
