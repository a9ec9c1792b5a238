"""Definitions that were written, in the place of those of a Python file."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TypeVar

from daguerre.editing.answers import UnreadableAnswer
from daguerre.editing.trees import Definition, PythonFile, definitions, names, target

T = TypeVar("T")
ALIKE = 0.5
"""How alike a definition is to one that has another name, by `difflib`, at least."""
LONG = 2_000
"""Characters of two definitions; if they have more, it is counted which lines both have."""


@dataclass
class ShownDefinition:
    """A definition of the file that is shown: whole, or a class with some of what is in it."""

    node: Definition
    inner: list[ShownDefinition] = field(default_factory=list)


@dataclass(frozen=True)
class NewLines:
    """Lines of the file, and those in their place."""

    place: slice
    lines: Sequence[str]


class Replacement:
    """What becomes of the lines of a file by definitions that were written.

    edits     lines in the place of others
    renamed   old names, new ones, and the classes that they are in
    lost      definitions that are not there any more
    added     names of those that were not there
    """

    def __init__(self, file: PythonFile, new: PythonFile) -> None:
        self._file, self._new = file, new
        self.edits = list[NewLines]()
        self.renamed = list[tuple[str, str, str]]()
        self.lost = Counter[str]()
        self.added = list[str]()

    def level(
        self, shown: Sequence[ShownDefinition], body: Sequence[ast.stmt], known: set[str], owner: str = ""
    ) -> None:
        """Put the definitions of a body in the place of those of a module or of a class, its owner, which has the
        known names.
        """
        written = definitions(body)
        if len(shown) == 1 and shown[0].inner and _are_methods(written, shown[0].inner):
            self.level(shown[0].inner, written, set(), shown[0].node.name)  # they were written without their class
            return
        places, nodes = _keyed([(one.node.name, one) for one in shown]), _keyed([(one.name, one) for one in written])
        new, lost = [key for key in nodes if key not in places], [key for key in places if key not in nodes]
        if len(new) == len(lost) == 1 and self._alike(places[lost[0]], nodes[new[0]]):
            places[new[0]] = places[lost[0]]
            self.renamed.append((places[lost[0]].node.name, nodes[new[0]].name, owner))
            lost = []
        for key in lost:
            self._lose(places[key], owner)
        own = {one.node.name for one in shown}
        for key in new:
            node = nodes[key]
            if node.name in known and not (node.name in own and node.decorator_list):
                raise UnreadableAnswer(f"`{node.name}` is there already: leave it out")
            self.added += [] if key in places else [node.name]
        last = None
        for key, node in nodes.items():
            if key in places:
                last = places[key]
                self._replace(last, node)
            else:
                self._insert(node, last or shown[0], behind=last is not None)

    def _alike(self, old: ShownDefinition, new: Definition) -> bool:
        """Whether a definition that is shown whole may be another one with a new name."""
        if old.inner:
            return False
        lines = self._file.lines[self._file.place(old.node)], self._new.lines[self._new.place(new)]
        one, other = ("\n".join(each) for each in lines)
        if len(one) + len(other) > LONG:
            return SequenceMatcher(a=lines[0], b=lines[1], autojunk=False).quick_ratio() >= ALIKE
        return SequenceMatcher(a=one, b=other, autojunk=False).ratio() >= ALIKE

    def _lose(self, one: ShownDefinition, owner: str) -> None:
        """A definition that is gone; of a class that is shown in part, that part."""
        for inner in one.inner:
            self._lose(inner, one.node.name)
        if one.inner:
            return
        self.lost[f"{owner}.{one.node.name}" if owner else one.node.name] += 1
        place, lines = self._file.place(one.node), self._file.lines
        start, end = place.start, place.stop
        while start and not lines[start - 1].strip():
            start -= 1
        while end < len(lines) and not lines[end].strip():
            end += 1
        if end == len(lines) or 0 < place.start - start < end - place.stop:  # the longer run of empty lines stays
            end = place.stop
        else:
            start = place.start
        self.edits.append(NewLines(slice(start, end), []))

    def _replace(self, one: ShownDefinition, node: Definition) -> None:
        old = one.node
        if not one.inner:
            if isinstance(old, ast.ClassDef) and isinstance(node, ast.ClassDef):
                gone = {each.name for each in definitions(old.body)} - names(node.body)
                self.lost.update(f"{old.name}.{name}" for name in gone if not name.startswith("__"))
            self.edits.append(NewLines(self._file.place(old), self._text(node, old)))
            return
        if not isinstance(node, ast.ClassDef) or not isinstance(old, ast.ClassDef):
            raise UnreadableAnswer(f"`{node.name}` is no class any more")
        if node.col_offset != old.col_offset:
            raise UnreadableAnswer(f"`{node.name}` is not in its class")
        headers = self._file.lines[self._file.header(old)], self._new.lines[self._new.header(node)]
        if [line.strip() for line in headers[0][-1:]] != [line.strip() for line in headers[1][-1:]]:
            raise UnreadableAnswer(f"`{headers[0][-1].strip()}` must stay as it is")
        self.level(one.inner, node.body, names(old.body), node.name)
        known = {"\n".join(self._file.text(each)).strip() for each in old.body if not isinstance(each, Definition)}
        for each in node.body:
            if isinstance(each, Definition | ast.Pass) or "\n".join(self._new.text(each)).strip() in known:
                continue
            if target(each) is None or target(each) in names(old.body) or self._new.shares(each):
                raise UnreadableAnswer(outside(each, one.inner))
            at = self._file.place(one.inner[0].node).start
            self.edits.append(NewLines(slice(at, at), [*self._new.text(each), ""]))

    def _text(self, node: Definition, beside: Definition) -> list[str]:
        """The lines of a definition that was written, as deep as another one."""
        lines, by = self._new.lines[self._new.place(node)], beside.col_offset - node.col_offset
        if by == 0:
            return lines
        start = self._file.lines[beside.lineno - 1][: beside.col_offset]
        long = any(
            isinstance(one, ast.Constant | ast.JoinedStr) and one.lineno != one.end_lineno for one in ast.walk(node)
        )
        if long or start.strip(" ") or any(line.strip() and line[: max(0, -by)].strip() for line in lines):
            raise UnreadableAnswer(f"`{node.name}` is not as deep as it was")
        return [" " * by + line if by > 0 and line.strip() else line[max(0, -by) :] for line in lines]

    def _insert(self, node: Definition, beside: ShownDefinition, behind: bool) -> None:
        place = self._file.place(beside.node)
        blank, text = [""] * (1 if beside.node.col_offset else 2), self._text(node, beside.node)
        at = place.stop if behind else place.start
        self.edits.append(NewLines(slice(at, at), [*blank, *text] if behind else [*text, *blank]))


def _keyed(values: Sequence[tuple[str, T]]) -> dict[str, T]:
    """Values by their names, and which of several of a name each is."""
    seen, out = Counter[str](), dict[str, T]()
    for name, value in values:
        seen[name] += 1
        out[f"{name} {seen[name]}"] = value
    return out


def _are_methods(written: Sequence[Definition], shown: Sequence[ShownDefinition]) -> bool:
    """Whether these are the shown methods, with the first parameters that they have."""
    first = {one.node.name: _first(one.node) for one in shown}
    return bool(written) and all(node.name in first and _first(node) == first[node.name] for node in written)


def _first(node: Definition) -> str | None:
    return None if isinstance(node, ast.ClassDef) or not node.args.args else node.args.args[0].arg


def outside(node: ast.stmt, shown: Sequence[ShownDefinition]) -> str:
    """What is said of code that is in none of the shown definitions."""
    said = " and ".join(f"`{one.node.name}`" for one in shown)
    return f"`{ast.unparse(node)[:80]}` is outside of {said}: it must be inside"
