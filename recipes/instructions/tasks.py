"""Tasks that the syntax tree makes of a piece of code, each with its one right answer.

rename      identifiers of one function ("here"), or all of a file ("everywhere"); strings and comments stay; the
            places that have the name as a word are shown with letters, and the answer has those that change
fix         a line has a planted error; the answer is that line as it was
type        an annotation was taken away; the answer is that annotation
call        values for parameters, in any order; the answer is the call: parameters without a default by position, the
            others by name, in the order of the definition
next_edit   a change that some lines have seen is due in others; the places of a region where it may be due are shown
            with letters, and the answer has those that change
"""

from __future__ import annotations

import ast
import io
import keyword
import random
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from string import ascii_letters
from typing import Any

from merges import WORD, Merge, bare_of, merge_of, touches_of
from pieces import ShortFile
from statements import Donors, sites_of

from daguerre.evals.lines import parse
from daguerre.instructions import (
    NOTHING,
    apply_prompt,
    call_prompt,
    fix_prompt,
    labeled,
    places_of,
    rename_prompt,
    replaced,
    type_prompt,
)
from daguerre.next_edits import Change, last_change, next_edit_prompt, places_due, read_next_edit

MOST_NAMED = 26
"""Places of a name to be renamed."""


@dataclass(frozen=True)
class TaskRow:
    """A task: what the model is shown, what it should write, its kind, and what a check or a rule needs."""

    task: str
    kind: str
    prompt: str
    completion: str
    facts: dict[str, Any] = field(default_factory=dict)


MERGES: dict[str, Callable[[ShortFile, Donors, random.Random], Merge | None]] = {
    "apply": merge_of,
    "repeated": partial(merge_of, repeated=True),
    "bare": bare_of,
    "touches": touches_of,
}
"""Merges: of chunks that begin and end with lines that the file has once, with lines that it has more often, with new
lines; and of many chunks.
"""


def merge_row(task: str, piece: ShortFile, donors: Donors, rng: random.Random) -> TaskRow | None:
    """A merge of one of MERGES."""
    made = MERGES[task](piece, donors, rng)
    if made is None:
        return None
    facts = {"code": piece.lines, "snippet": made.snippet, "merged": made.merged}
    return TaskRow(task, "+".join(sorted(set(made.kinds))), apply_prompt(piece.lines, made.snippet), made.answer, facts)


# ---- names ----------------------------------------------------------------------------------------------------------


def identifiers(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, line, column) of each identifier, from 0."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            yield token.string, token.start[0] - 1, token.start[1]


def in_strings(piece: ShortFile) -> set[str]:
    """Names that formatted strings use."""
    strings = (node for node in ast.walk(piece.tree) if isinstance(node, ast.JoinedStr))
    inner = [node for one in strings for node in ast.walk(one)]
    return {node.id for node in inner if isinstance(node, ast.Name)} | {
        node.attr for node in inner if isinstance(node, ast.Attribute)
    }


def fresh_name(piece: ShortFile, donors: Donors, rng: random.Random) -> str | None:
    """A name of another file that this one does not have."""
    name = rng.choice(donors.names)
    return None if re.search(rf"\b{re.escape(name)}\b", piece.text) or keyword.iskeyword(name) else name


def rename_row(piece: ShortFile, donors: Donors, rng: random.Random) -> TaskRow | None:
    """A name becomes another, in one function or everywhere."""
    new = fresh_name(piece, donors, rng)
    if new is None:
        return None
    found = _here(piece, rng) if rng.random() < 0.7 else _everywhere(piece, rng)
    if found is None:
        return None
    old, sites, function = found
    if old in in_strings(piece):
        return None
    kind, region = "everywhere", (1, len(piece.lines))
    if function is not None:
        kind, region = "here", (function.lineno, function.end_lineno or function.lineno)
    places, due = places_of(piece.lines, old, *region), set(sites)
    if len(places) > MOST_NAMED or not due <= set(places):
        return None
    made = renamed(piece.lines, sites, old, new)
    answer = " ".join(letter for letter, place in zip(ascii_letters, places, strict=False) if place in due) + "\n"
    facts = {"code": piece.lines, "result": made, "names": [old, new], "region": region}
    return TaskRow("rename", kind, rename_prompt(piece.lines, old, new, *region), answer, facts)


def renamed(lines: Sequence[str], sites: Sequence[tuple[int, int]], old: str, new: str) -> list[str]:
    """Lines with a name at these places (line, column) replaced."""
    places = sorted(set(sites))
    assert all(lines[line][column:].startswith(old) for line, column in places)
    return replaced(lines, places, old, [new] * len(places))


def _everywhere(piece: ShortFile, rng: random.Random) -> tuple[str, list[tuple[int, int]], None] | None:
    places: dict[str, list[tuple[int, int]]] = {}
    for name, line, column in identifiers(piece.text):
        places.setdefault(name, []).append((line, column))
    able = [name for name, sites in places.items() if len(sites) > 1 and name != "self" and len(name) > 1]
    if not able:
        return None
    old = rng.choice(able)
    return old, places[old], None


def _here(piece: ShortFile, rng: random.Random) -> tuple[str, list[tuple[int, int]], ast.FunctionDef] | None:
    functions = [node for node in ast.walk(piece.tree) if isinstance(node, ast.FunctionDef)]
    names = [node.name for node in functions]
    functions = [node for node in functions if names.count(node.name) == 1]
    if not functions:
        return None
    function = rng.choice(functions)
    bound = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)} - {"self", "cls"}
    if any(isinstance(node, ast.Global | ast.Nonlocal) for node in ast.walk(function)) or not bound:
        return None
    also = {name for name in bound if len(re.findall(rf"\b{name}\b", piece.text)) > len(_sites(function, name))}
    old = rng.choice(sorted(also or bound))
    return old, _sites(function, old), function


def _sites(function: ast.AST, name: str) -> list[tuple[int, int]]:
    """Where a function has a variable or a parameter of this name."""
    out = []
    for node in ast.walk(function):
        if (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.arg) and node.arg == name):
            out.append((node.lineno - 1, node.col_offset))
        elif isinstance(node, ast.ExceptHandler) and node.name == name:
            return []
    return out


# ---- planted errors -------------------------------------------------------------------------------------------------


def _misspelled(piece: ShortFile, rng: random.Random) -> tuple[int, str] | None:
    used = [node for node in ast.walk(piece.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    used = [n for n in used if len(n.id) >= 4 and len(re.findall(rf"\b{n.id}\b", piece.text)) > 1]
    if not used or not (node := rng.choice(used)):
        return None
    name, at = node.id, rng.randrange(1, len(node.id) - 1)
    forms = (
        name[:at] + name[at + 1] + name[at] + name[at + 2 :],
        name[:at] + name[at + 1 :],
        name[:at] + name[at:][0] + name[at:],
    )
    wrong = rng.choice(forms)
    if wrong == name or re.search(rf"\b{re.escape(wrong)}\b", piece.text):
        return None
    return node.lineno - 1, _put(piece, node, name, wrong)


def _put(piece: ShortFile, node: ast.expr, old: str, new: str) -> str:
    line = piece.lines[node.lineno - 1]
    return line[: node.col_offset] + new + line[node.col_offset + len(old) :]


def _wrong_name(piece: ShortFile, rng: random.Random) -> tuple[int, str] | None:
    functions = [node for node in ast.walk(piece.tree) if isinstance(node, ast.FunctionDef)]
    if not functions:
        return None
    nodes = [node for node in ast.walk(rng.choice(functions)) if isinstance(node, ast.Name)]
    used, names = [n for n in nodes if isinstance(n.ctx, ast.Load)], sorted({n.id for n in nodes})
    if not used or len(names) < 2:
        return None
    node = rng.choice(used)
    return node.lineno - 1, _put(piece, node, node.id, rng.choice([name for name in names if name != node.id]))


def _no_self(piece: ShortFile, rng: random.Random) -> tuple[int, str] | None:
    nodes = [
        node
        for node in ast.walk(piece.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    ]
    if not nodes:
        return None
    node = rng.choice(nodes)
    return node.lineno - 1, _put(piece, node, "self.", "")


def _pattern(pattern: str, change: Callable[[re.Match[str], random.Random], str]) -> Any:
    def plant(piece: ShortFile, rng: random.Random) -> tuple[int, str] | None:
        code = {line for _, line, _ in identifiers(piece.text)}
        found = [(i, m) for i in sorted(code) for m in re.finditer(pattern, piece.lines[i])]
        if not found:
            return None
        at, match = rng.choice(found)
        line = piece.lines[at]
        return at, line[: match.start()] + change(match, rng) + line[match.end() :]

    return plant


PAIRS = (("==", "!="), ("<", ">"), ("<=", ">="), ("and", "or"), ("+", "-"))
OTHER = dict(PAIRS) | {right: left for left, right in PAIRS}
PLANTS: dict[str, tuple[float, Any]] = {
    "misspelled": (3, _misspelled),
    "wrong name": (2, _wrong_name),
    "no self": (1.5, _no_self),
    "operator": (1, _pattern(r"(?<= )(==|!=|<=?|>=?|and|or|[-+])(?= )", lambda m, rng: OTHER[m[0]])),
    "no colon": (1, _pattern(r"(?<=[\w\)\]]):$", lambda m, rng: "")),
    "no bracket": (1.5, _pattern(r"[\)\]\}](?=:?$)", lambda m, rng: "")),
    "assigned": (0.5, _pattern(r"(?<= )==(?= )", lambda m, rng: "=")),
}
"""Kinds of errors, and how often each is tried."""


def fix_row(piece: ShortFile, donors: Donors, rng: random.Random) -> TaskRow | None:
    """A line has a planted error."""
    kind = rng.choices(list(PLANTS), [weight for weight, _ in PLANTS.values()])[0]
    planted = PLANTS[kind][1](piece, rng)
    if planted is None or planted[1] == piece.lines[planted[0]]:
        return None
    at, wrong = planted
    code = [*piece.lines[:at], wrong, *piece.lines[at + 1 :]]
    facts = {"code": code, "line": at, "right": piece.lines[at]}
    return TaskRow("fix", kind, fix_prompt(code, at + 1), labeled(at + 1, piece.lines[at]), facts)


# ---- signatures -----------------------------------------------------------------------------------------------------


def type_row(piece: ShortFile, donors: Donors, rng: random.Random) -> TaskRow | None:
    """An annotation is missing."""
    able: list[tuple[str, ast.expr, int, int, int, str]] = []  # what, annotation, line, start, end, in its place
    for node in ast.walk(piece.tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        able += (
            (
                f"{one.arg} of {node.name}",
                one.annotation,
                one.lineno - 1,
                one.col_offset,
                one.end_col_offset or 0,
                one.arg,
            )
            for one in args
            if one.annotation is not None and one.annotation.end_lineno == one.lineno
        )
        if node.returns is not None and node.returns.lineno == node.returns.end_lineno:
            at, end = node.returns.lineno - 1, node.returns.end_col_offset or 0
            arrow = piece.lines[at].rfind(" -> ", 0, node.returns.col_offset)
            if arrow >= 0:
                able.append((node.name, node.returns, at, arrow, end, ""))
    if not able:
        return None
    what, annotation, at, start, end, instead = rng.choice(able)
    line = piece.lines[at]
    answer = ast.get_source_segment(piece.text, annotation)
    if answer is None:
        return None
    code = [*piece.lines[:at], line[:start] + instead + line[end:], *piece.lines[at + 1 :]]
    return TaskRow(
        "type", "result" if not instead else "parameter", type_prompt(code, what), answer + "\n", {"right": answer}
    )


def call_row(piece: ShortFile, donors: Donors, rng: random.Random) -> TaskRow | None:
    """A call with given values."""
    functions = [
        node
        for node in ast.walk(piece.tree)
        if isinstance(node, ast.FunctionDef)
        and not node.args.vararg
        and not node.args.kwarg
        and not node.decorator_list
    ]
    if not functions:
        return None
    function = rng.choice(functions)
    args = function.args
    positional = [one.arg for one in [*args.posonlyargs, *args.args]]
    required = positional[: len(positional) - len(args.defaults)]
    if positional[:1] in (["self"], ["cls"]):
        required = required[1:]
    optional = [*positional[len(positional) - len(args.defaults) :], *(one.arg for one in args.kwonlyargs)]
    chosen = [name for name in optional if rng.random() < 0.5]
    if len(required) + len(chosen) < 1:
        return None

    def value() -> str:
        name = rng.choice(donors.names)
        return rng.choice((name, name, str(rng.randrange(100)), f'"{name}"', f"self.{name}", "None", "True"))

    values = {name: value() for name in [*required, *chosen]}
    asked = list(values)
    rng.shuffle(asked)
    said = ", ".join(f"{name}={values[name]}" for name in asked)
    answer = f"{function.name}({', '.join([values[n] for n in required] + [f'{n}={values[n]}' for n in chosen])})"
    kind = "by name" if chosen else "by position"
    return TaskRow("call", kind, call_prompt(piece.lines, function.name, said), answer + "\n", {"right": answer})


# ---- the next edit --------------------------------------------------------------------------------------------------


def next_edit_row(piece: ShortFile, donors: Donors, rng: random.Random) -> TaskRow | None:
    """A change that was begun goes on: some of the lines that it is due in have it, and a region has more of them."""
    changed = _renamed_lines(piece, donors, rng) if rng.random() < 0.7 else _called_lines(piece, donors, rng)
    if changed is None:
        return None
    kind, lines, sites = changed
    able = sorted({line for line, _ in sites})
    if len(able) < 2:
        return None
    done = able[: rng.randint(1, min(4, len(able) - 1))]
    code = [lines[i] if i in done else line for i, line in enumerate(piece.lines)]
    change = last_change([(piece.lines[i], lines[i]) for i in done])
    due = {site for site in sites if site[0] not in done}
    able = able[len(done) :]
    if change is not None and rng.random() < 0.15:
        able, kind = [line for line, _ in places_due(code, change, 1, len(code)) if line not in able], "nothing due"
    if change is None or not able:
        return None
    at, reach = able[0], (0, 0) if kind == "nothing due" else (rng.randint(0, 5), rng.randint(0, 5))
    first, last = max(0, at - reach[0]), min(len(lines), at + 1 + reach[1])
    places = places_due(code, change, first + 1, last)
    if len(places) > MOST_NAMED:
        return None
    letters = [letter for letter, place in zip(ascii_letters, places, strict=False) if place in due]
    answer = " ".join(letters) + "\n" if letters else NOTHING
    right = [*code[:first], *lines[first:last], *code[last:]]
    if read_next_edit(code, change, places, answer) != right:
        return None
    facts = {"code": code, "change": asdict(change), "places": places, "right": right, "region": [first, last]}
    return TaskRow("next_edit", kind, next_edit_prompt(code, change, places), answer, facts)


_Edit = tuple[str, list[str], list[tuple[int, int]]]
"""A kind of edit, all lines behind it, and the places (line, column) of the words at which it was made."""


def _renamed_lines(piece: ShortFile, donors: Donors, rng: random.Random) -> _Edit | None:
    new, found = fresh_name(piece, donors, rng), _everywhere(piece, rng)
    if new is None or found is None or found[0] in in_strings(piece):
        return None
    return "rename", renamed(piece.lines, found[1], found[0], new), found[1]


def _called_lines(piece: ShortFile, donors: Donors, rng: random.Random) -> _Edit | None:
    calls: dict[str, list[tuple[int, int]]] = {}
    for node in ast.walk(piece.tree):
        if isinstance(node, ast.Call) and node.lineno == node.end_lineno:
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)
            if name is not None:
                calls.setdefault(name, []).append((node.lineno - 1, (node.func.end_col_offset or 0) - len(name)))
    able = [name for name, sites in calls.items() if len({line for line, _ in sites}) > 1]
    if not able:
        return None
    more = f"{rng.choice(donors.names)}={rng.choice(('None', 'True', '0', rng.choice(donors.names)))}"
    name = rng.choice(able)
    places, sites = places_due(piece.lines, change := Change(name, more, True), 1, len(piece.lines)), calls[name]
    if not set(sites) <= set(places):
        return None
    letters = [letter for letter, place in zip(ascii_letters, places, strict=False) if place in sites]
    lines = read_next_edit(piece.lines, change, places, " ".join(letters))
    return ("argument", lines, sites) if parse("\n".join(lines)) is not None else None


MAKERS: dict[str, Callable[[ShortFile, Donors, random.Random], TaskRow | None]] = {
    **{task: partial(merge_row, task) for task in MERGES},
    "rename": rename_row,
    "fix": fix_row,
    "type": type_row,
    "call": call_row,
    "next_edit": next_edit_row,
}
"""What makes a task of a piece; None where what was drawn does not fit it."""
__all__ = ["MAKERS", "WORD", "TaskRow", "sites_of"]
