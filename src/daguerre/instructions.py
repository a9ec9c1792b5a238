"""Tasks on a file of code as texts, for a model that was trained on them (docs/instructions.md), and its answers read.

A file is shown with its lines numbered, and an answer names lines by their numbers. For a merge the numbers are at the
ends of lines, and the answer is an edit: the snippet, whose lines have letters, with the number that the first and the
last line of each of its chunks have in the file. What is not between two such lines stays as it is. The first or last
line of a chunk may also be new. Its number is then that of the line which it replaces, or with a plus that of the line
after which it is inserted, `#+0` at the beginning. What such a chunk may remove is bounded (`_fit`), so that a wrong
number loses few lines.

    #> file
    import os #1
    #2
    x = 1 #3
    print(x) #4
    #> apply
    ...
    a x = 1 #
    b y = 2
    c print(x)
    #> result
    ...
    a x = 1 #3
    b y = 2
    c print(x)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import pairwise, takewhile
from pathlib import Path
from string import ascii_letters

from daguerre.errors import InputError
from daguerre.models.json_files import read_json

TASKS = ("apply", "rename", "fix", "type", "call", "next_edit")
"""What a model may be trained to do; `sft.tasks` of a recipe names them; config.json keeps them (`extra.tasks`)."""
FILE, RESULT, GAP, NOTHING = "#> file\n", "#> result\n", "...\n", "None\n"
MARKER = re.compile(r"[ \t]*(#|//)[ \t]*\.{3}[ \t]*(existing code|rest of( the)? code)?[ \t]*(\.{3})?[ \t]*")
"""A line of a snippet that stands for lines of the file that stay as they are."""
SIMILAR = 0.75
"""How like a new line is, at least, to the line that it may replace: the ratio of `difflib.SequenceMatcher`."""
_LABEL = re.compile(r"\A(?:\d+|[A-Za-z])(?: |\Z)")
_NUMBER = re.compile(r" ?#(\+?)(\d{1,6})\Z")


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


def numbered(line: str, number: object) -> str:
    """A line with a number at its end."""
    return f"{line} #{number}" if line else f"#{number}"


def bounds_of(snippet: Sequence[str]) -> list[bool]:
    """Whether each line of a snippet is a marker's neighbor, and so the first or the last line of a chunk."""
    gaps = [MARKER.fullmatch(line) is not None for line in snippet]
    beside = [False, *gaps, False]
    return [not gap and (beside[i] or beside[i + 2]) for i, gap in enumerate(gaps)]


def lettered(snippet: Sequence[str], numbers: Sequence[object] | None = None) -> str:
    """The lines of a snippet with letters; markers as they are shown. The first and last lines of chunks end with their
    `numbers` in the file, or with the place of one. InputError for more lines than there are letters.
    """
    letters, out = iter(ascii_letters), ""
    numbers = [""] * len(snippet) if numbers is None else numbers
    for line, bound, number in zip(snippet, bounds_of(snippet), numbers, strict=True):
        if MARKER.fullmatch(line):
            out += GAP
        elif (letter := next(letters, None)) is None:
            raise InputError(f"a snippet may have {len(ascii_letters)} lines: send a shorter one")
        else:
            out += labeled(letter, numbered(line, number) if bound else line)
    return out


def apply_prompt(code: Sequence[str], snippet: Sequence[str]) -> str:
    """Merge a snippet into a file; the answer is an edit (`read_merge`)."""
    lines = "".join(numbered(line, number) + "\n" for number, line in enumerate(code, 1))
    return f"{FILE}{lines}#> apply\n{lettered(snippet)}{RESULT}"


def apply_pattern(code: Sequence[str], snippet: Sequence[str], equal: bool = True) -> str:
    """The regular expression of an edit of a file that has the lines of a snippet as they are. A first or last line of
    a chunk may have the number of any line that is `equal` to it. Where none is, it may be inserted after any line, or
    replace the one that it is most like (SIMILAR); a blank one is inserted. Where `equal` is false it may be anywhere.
    Numbers are in order: those that no edit has are left out.
    """
    places = _places(code, snippet, equal)
    out = ""
    for i, shown in enumerate(lines_of(lettered(snippet))):
        numbers = "|".join(f"{'' if first < last else '[+]'}{last}" for first, last in places.get(i, ()))
        out += re.escape(shown) + (f"({numbers})" if i in places else "") + "\n"
    return out


_Span = tuple[int, int]
"""Lines [first, last) of a file, from 0, that a line of a snippet replaces: one or none."""


def _places(code: Sequence[str], snippet: Sequence[str], equal: bool) -> dict[int, list[_Span]]:
    """What each first or last line of a chunk may replace, by its number in the snippet, in order."""
    inserted = [(i, i) for i in range(len(code) + 1)]
    out: dict[int, list[_Span]] = {}
    for i, (line, bound) in enumerate(zip(snippet, bounds_of(snippet), strict=True)):
        if not bound:
            continue
        if not equal:
            out[i] = [(n, n + 1) for n in range(len(code))] + inserted
        elif not line.strip():
            out[i] = inserted
        else:
            same = [(n, n + 1) for n, other in enumerate(code) if other == line]
            out[i] = same or [(n, n + 1) for n in _most_like(code, line)] + inserted
        if not any(map(MARKER.fullmatch, snippet[:i])):  # the chunk at the beginning of the file
            out[i] = [span for span in out[i] if _fit(code, snippet[: i + 1], (0, 0), span, (False, True))]
        if not any(map(MARKER.fullmatch, snippet[i:])):  # that at its end
            end = len(code), len(code)
            out[i] = [span for span in out[i] if _fit(code, snippet[i:], span, end, (True, False))]
    for one, other in pairwise(list(out)):
        out[other] = _agreeing(code, snippet[one : other + 1], out[other], out[one], before=True) or out[other]
    for other, one in pairwise(list(out)[::-1]):
        out[one] = _agreeing(code, snippet[one : other + 1], out[one], out[other], before=False) or out[one]
    return out


def _most_like(code: Sequence[str], line: str) -> list[int]:
    """The numbers, from 0, of the lines that are most like this one, if they are SIMILAR."""
    ratios = [SequenceMatcher(None, line.strip(), other.strip(), autojunk=False).ratio() for other in code]
    return [n for n, ratio in enumerate(ratios) if ratio >= SIMILAR and ratio == max(ratios)]


def _agreeing(
    code: Sequence[str], shown: Sequence[str], spans: Sequence[_Span], near: Sequence[_Span], before: bool
) -> list[_Span]:
    """The spans of a bound that go with some of its neighbor, which stands `before` or behind it. The lines of the
    snippet from one to the other are `shown`: those of a chunk, or with a marker between two chunks.
    """
    if any(map(MARKER.fullmatch, shown)):
        nearest = min(last for _, last in near) if before else max(first for first, _ in near)
        return [span for span in spans if (nearest <= span[0] if before else span[1] <= nearest)]
    inserted = {span for span in near if span[0] == span[1]}  # two that are at one place agree
    return [
        span
        for span in spans
        if span in inserted or any(_fit(code, shown, *((other, span) if before else (span, other))) for other in near)
    ]


def _fit(
    code: Sequence[str],
    chunk: Sequence[str],
    first: _Span,
    last: _Span,
    bounds: tuple[bool, bool] = (True, True),
) -> bool:
    """Whether a chunk may begin and end here. Of its ends, those that are no `bounds` are the file's. Next to a bound
    that is inserted, the first line with text that the chunk removes is one that it has itself, and it has as many
    blank ones as it removes before that. With a bound that replaces another line than its own, the chunk removes no
    more lines than it has.
    """
    if first[0] > last[0] or first[1] > last[1]:
        return False
    removed = code[first[0] : last[1]]
    for bound, span, line, order in zip(bounds, (first, last), (chunk[0], chunk[-1]), (1, -1), strict=True):
        if bound and span[0] == span[1]:
            blank = list(takewhile(lambda other: not other.strip(), removed[::order]))
            nearest = removed[::order][len(blank) : len(blank) + 1]
            if not set(nearest) <= set(chunk) or len(blank) > sum(not other.strip() for other in chunk):
                return False
        elif bound and code[span[0]] != line and last[1] - first[0] > len(chunk):
            return False
    return True


def read_merge(code: Sequence[str], answer: str, ended: bool = True) -> list[str]:
    """The lines of the file that an edit makes; before it has `ended`, only those that are certain: its last line
    may have a number that is no part of it. InputError, in a few words, where the answer is no edit of the file.
    """
    parts: list[list[str]] = [[]]
    for line in lines_of(answer):
        if line + "\n" == GAP:
            parts.append([])
        else:
            parts[-1].append(_LABEL.sub("", line, count=1))
    out, at = list[str](), 0
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if not part:
            out += code[at:] if last and ended else []
            continue
        lines, first, end = list(part), (at, at), (len(code), len(code))
        if place:
            lines[0], first = _numbered(part[0])
        if not last:
            lines[-1], end = _numbered(part[-1])
        bounds = place > 0 and (ended or not last), not last
        if not (at <= first[0] and end[1] <= len(code) and _fit(code, lines, first, end, bounds)):
            raise InputError(f"lines {first[0] + 1} to {end[1]} are not there, or come twice")
        out += [*code[at : first[0]], *(lines if ended or not last else lines[:-1])]
        at = end[1]
    return out


def _numbered(line: str) -> tuple[str, _Span]:
    """A line and what the number at its end says that it replaces. InputError for none."""
    found = _NUMBER.search(line)
    if found is None:
        raise InputError(f"a line of the file is named without its number: {line!r}")
    number = int(found[2])
    return line[: found.start()], (number if found[1] else number - 1, number)


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
    return choice_prompt(code, places, old, f"rename {old} to {new}")


def choice_prompt(code: Sequence[str], places: Sequence[tuple[int, int]], old: str, title: str) -> str:
    """Ask at which of these places something is to be done to a word; the lines that have them are shown again, with a
    letter in place of each word.
    """
    lines = replaced(code, places, old, [f"${letter}" for letter, _ in zip(ascii_letters, places, strict=False)])
    shown = "".join(labeled(i + 1, lines[i]) for i in sorted({line for line, _ in places}))
    return f"{FILE}{listing(code)}#> {title}\n{shown}{RESULT}"


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


def tasks_in(folder: Path, adapter: Path | None = None) -> tuple[str, ...]:
    """What the model of a folder was trained to do, with an adapter; nothing where the files do not say."""
    path = folder / "config.json" if adapter is None else adapter / "training.json"
    if not path.is_file():
        return ()
    values = read_json(path)
    facts = values.get("extra") if adapter is None else values
    named = facts.get("tasks") if isinstance(facts, dict) else None
    return tuple(task for task in TASKS if isinstance(named, list) and task in named)
