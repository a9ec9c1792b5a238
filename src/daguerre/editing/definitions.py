"""The functions and classes of a Python file that an instruction names, as a small file that a model writes again.

A `SmallFile` shows them with the classes that they are in and the imports that they use; nothing else of the file is
the model's. What it writes is put in place by its syntax tree: a definition takes the place of that of its name, one
with a new name that of the one that is missing, new imports and constants come to those of the file. A name that was
changed is changed where the rest of the file uses it (`daguerre.editing.renaming`).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from daguerre.editing.answers import UnreadableAnswer
from daguerre.editing.renaming import renamed
from daguerre.editing.trees import (
    Constant,
    Definition,
    Import,
    bound,
    constants,
    definitions,
    header,
    imports,
    lines_of,
    members,
    names,
    parsed,
    rows,
    targets,
    within,
)

EVERYWHERE = re.compile(
    r"\b(each|every|everywhere|wherever|throughout|callers?|calls|uses|usages|all (the )?\w+s)\b", re.IGNORECASE
)
"""Words of an instruction that is for more than what it names."""
NOTHING_LEFT = "nothing is left of it: only if that is what the change means, answer with an empty code block"


@dataclass
class ShownDefinition:
    """A definition of the file that is shown: whole, or a class with some of what is in it."""

    node: Definition
    inner: list[ShownDefinition] = field(default_factory=list)


@dataclass(frozen=True)
class NewLines:
    """Lines of the file, and those in their place."""

    rows: slice
    lines: list[str]


class SmallFile:
    """Definitions of a file, shown as a file of their own. `text`: what is shown."""

    def __init__(self, file: str, tree: ast.Module, slots: list[ShownDefinition], end: str) -> None:
        self._lines, self._tree, self._slots, self._end = file.split("\n"), tree, slots, end
        self._lost = Counter[str]()
        groups = ["\n".join(_shown(slot, self._lines)) for slot in slots]
        words = set(re.findall(r"\w+", "\n".join(groups)))
        self._imports = [node for node in imports(tree.body) if words & set(bound(node))]
        head = "\n".join("\n".join(self._lines[lines_of(node)]) for node in self._imports)
        self.text = "\n\n\n".join([*([head] if head else []), *groups]) + "\n"

    def merged(self, new: str, answer: str = "") -> str:
        """The file with what was written in place of what was shown. UnreadableAnswer, with the raw answer, where that
        is not certain; a definition that is missing is removed if the next answer has it neither.
        """
        tree = parsed(new)
        if tree is None:
            raise UnreadableAnswer("it is no Python", answer)
        merge = _Merge(self._lines, new.split("\n"), answer)
        merge.level(self._slots, tree.body, names(self._tree.body))
        if merge.lost - self._lost:
            self._lost = merge.lost
            said = " and ".join(f"`{name}`" for name in merge.lost)
            gone = f"{said} is missing: leave it out again only if the change removes it"
            raise UnreadableAnswer(gone if definitions(tree.body) else NOTHING_LEFT, answer)
        known = {ast.dump(node) for node in self._tree.body}
        added = [node for node in tree.body if not isinstance(node, Definition) and ast.dump(node) not in known]
        for node in added:
            if not isinstance(node, Import | Constant | ast.Pass):
                raise UnreadableAnswer(_outside(node, self._slots), answer)
        edits = [*merge.edits, *self._imported(imports(added), new), *self._defined(constants(added), new, answer)]
        edits.sort(key=lambda one: (one.rows.start, one.rows.stop))
        lines = list(self._lines)
        for edit in edits[::-1]:
            lines[edit.rows] = edit.lines
        made = "\n".join(lines)
        for old, name, owner in merge.renamed:
            made = renamed(made, old, name, owner)
        return made.replace("\n", self._end)

    def _imported(self, added: Sequence[Import], new: str) -> Iterator[NewLines]:
        """Imports before the file's own; one of more names from a module takes the place of the one that was shown."""
        lines, out = new.split("\n"), list[str]()
        for node in added:
            same = [one for one in self._imports if _extends(node, one)]
            if same:
                yield NewLines(lines_of(same[0]), lines[lines_of(node)])
            elif not set(bound(node)) <= names(self._tree.body):
                out += lines[lines_of(node)]
        if out:
            others = [one for one in imports(self._tree.body) if getattr(one, "module", "") != "__future__"]
            at = others[0].lineno - 1 if others else _top(self._tree)
            yield NewLines(slice(at, at), out if others else ["", *out] if at else [*out, "", ""])

    def _defined(self, added: Sequence[Constant], new: str, answer: str) -> Iterator[NewLines]:
        """Constants behind the imports."""
        lines, out = new.split("\n"), list[str]()
        for node in added:
            if set(targets(node)) & names(self._tree.body):
                raise UnreadableAnswer(f"the file has `{targets(node)[0]}` already: leave it out", answer)
            out += lines[lines_of(node)]
        if out:
            at = max([_top(self._tree), *(one.end_lineno or 0 for one in imports(self._tree.body))])
            yield NewLines(slice(at, at), ["", *out] if at else [*out, "", ""])


def small_file(file: str, instruction: str, loosely: bool = False) -> SmallFile | None:
    """The functions, methods and classes of a file that an instruction names in backticks, or as only code is written
    (`with_underscore`, `WithCapitals`, `called()`), or loosely: by any word. None where it names none or is for more
    than what it names, and for a file that is no Python or whose lines end in several ways.
    """
    end = "\r\n" if "\r\n" in file else "\n"
    lines = file.split(end)
    tree = None if any(re.search(r"[\r\n\f]", line) for line in lines) else parsed("\n".join(lines))
    if tree is None or EVERYWHERE.search(re.sub(r"`[^`\n]*`", "", instruction)):
        return None
    named = _named(tree, instruction, loosely)
    return SmallFile("\n".join(lines), tree, _slots(tree.body, named), end) if named else None


def _named(tree: ast.Module, instruction: str, loosely: bool) -> list[Definition]:
    """The definitions that are named: of a class and what is in it what is in it, where both are."""
    code = r"`([^`\n]+)`|\b(\w+_\w+|_\w+|\w*[a-z0-9][A-Z]\w*|\w+(?=\(\)))"
    found = [quoted or word for quoted, word in re.findall(code, instruction)]
    words = set(re.findall(r"\w+", " ".join(found or [instruction if loosely else ""])))
    named = [node for node in members(tree.body) if node.name in words]
    outer = [node for node in named if any(within(other, node) for other in named)]
    inner = [node for node in named if node not in outer]
    inside = {node.name for node in inner if any(within(node, other) for other in outer)}
    return [node for node in inner if node.name not in inside or any(within(node, other) for other in outer)]


def _slots(body: Sequence[ast.stmt], named: Sequence[Definition]) -> list[ShownDefinition]:
    out = []
    for node in definitions(body):
        if node in named:
            out.append(ShownDefinition(node))
        elif isinstance(node, ast.ClassDef) and (inner := _slots(node.body, named)):
            out.append(ShownDefinition(node, inner))
    return out


def _shown(slot: ShownDefinition, lines: Sequence[str]) -> list[str]:
    if not slot.inner:
        return list(lines[rows(slot.node, lines)])
    out = list(lines[header(slot.node, lines)])
    for number, inner in enumerate(slot.inner):
        out += [*([""] if number else []), *_shown(inner, lines)]
    return out


def _extends(new: Import, old: Import) -> bool:
    """Whether an import has the names of another one from the same module, and more."""
    if not (isinstance(new, ast.ImportFrom) and isinstance(old, ast.ImportFrom)):
        return False
    more = {(one.name, one.asname) for one in new.names} > {(one.name, one.asname) for one in old.names}
    return more and (new.module, new.level) == (old.module, old.level)


def _top(tree: ast.Module) -> int:
    """The line behind the docstring and what is imported from the future."""
    at = 0
    for number, node in enumerate(tree.body):
        says = number == 0 and ast.get_docstring(tree, clean=False) is not None
        if says or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            at = node.end_lineno or at
    return at


def _outside(node: ast.stmt, slots: Sequence[ShownDefinition]) -> str:
    said = " and ".join(f"`{slot.node.name}`" for slot in slots)
    return f"`{ast.unparse(node)[:80]}` is outside of {said}: it must be inside"


# ---- definitions in the place of others ------------------------------------------------------------------------------


class _Merge:
    """What becomes of the lines of a file by definitions that were written.

    edits     lines in the place of others
    renamed   old names, new ones, and the classes that they are in
    lost      names of definitions that are not there any more
    """

    def __init__(self, lines: Sequence[str], new: Sequence[str], answer: str) -> None:
        self._lines, self._new, self._answer = lines, new, answer
        self.edits = list[NewLines]()
        self.renamed = list[tuple[str, str, str]]()
        self.lost = Counter[str]()

    def level(
        self, slots: Sequence[ShownDefinition], body: Sequence[ast.stmt], known: set[str], owner: str = ""
    ) -> None:
        """Put the definitions of a body in the place of those of a module or of a class, its owner, which has the
        known names.
        """
        written = definitions(body)
        if len(slots) == 1 and slots[0].inner and written:  # a method that was written without its class
            inner = slots[0].inner
            if {node.name for node in written} <= {slot.node.name for slot in inner} - {slots[0].node.name}:
                self.level(inner, written, set(), slots[0].node.name)
                return
        places, seen = dict[str, ShownDefinition](), Counter[str]()
        for slot in slots:
            places[_key(slot.node.name, seen)] = slot
        seen, nodes = Counter[str](), dict[str, Definition]()
        for node in written:
            nodes[_key(node.name, seen)] = node
        new = [key for key in nodes if key not in places]
        lost = [key for key in places if key not in nodes]
        if lost and len(lost) == len(new):
            for old, key in zip(lost, new, strict=True):
                places[key] = places[old]
                self.renamed.append((places[old].node.name, nodes[key].name, owner))
            lost = []
        elif lost and new:
            raise UnreadableAnswer(f"it is not clear what `{nodes[new[0]].name}` takes the place of", self._answer)
        self.lost.update(places[key].node.name for key in lost)
        for key in lost:
            self._remove(places[key])
        for key in new:
            if nodes[key].name in known:
                raise UnreadableAnswer(f"`{nodes[key].name}` is there already: leave it out", self._answer)
        last = None
        for key, node in nodes.items():
            if key in places:
                last = places[key]
                self._replace(last, node)
            else:
                self._insert(node, last or slots[0], behind=last is not None)

    def _replace(self, slot: ShownDefinition, node: Definition) -> None:
        if not slot.inner:
            self.edits.append(NewLines(rows(slot.node, self._lines), self._text(node, slot.node.col_offset)))
            return
        if not isinstance(node, ast.ClassDef):
            raise UnreadableAnswer(f"`{node.name}` is no class any more", self._answer)
        self.edits.append(NewLines(header(slot.node, self._lines), list(self._new[header(node, self._new)])))
        self.level(slot.inner, node.body, names(slot.node.body), slot.node.name)
        known = {ast.dump(one) for one in slot.node.body}
        for one in node.body:
            if isinstance(one, Definition | ast.Pass) or ast.dump(one) in known:
                continue
            if not isinstance(one, Constant) or set(targets(one)) & names(slot.node.body):
                raise UnreadableAnswer(_outside(one, slot.inner), self._answer)
            at = rows(slot.inner[0].node, self._lines).start
            self.edits.append(NewLines(slice(at, at), [*self._new[lines_of(one)], ""]))

    def _text(self, node: Definition, column: int) -> list[str]:
        """The lines of a definition that was written, as deep as it belongs."""
        lines, by = self._new[rows(node, self._new)], column - node.col_offset
        return [" " * by + line if by > 0 and line.strip() else line[max(0, -by) :] for line in lines]

    def _insert(self, node: Definition, beside: ShownDefinition, behind: bool) -> None:
        place, column = rows(beside.node, self._lines), beside.node.col_offset
        blank, text = [""] * (1 if column else 2), self._text(node, column)
        at = place.stop if behind else place.start
        self.edits.append(NewLines(slice(at, at), [*blank, *text] if behind else [*text, *blank]))

    def _remove(self, slot: ShownDefinition) -> None:
        place = rows(slot.node, self._lines)
        start, end = place.start, place.stop
        while end < len(self._lines) and not self._lines[end].strip():
            end += 1
        if end == len(self._lines):  # it was the last: the file ends as it did
            end = place.stop
            while start and not self._lines[start - 1].strip():
                start -= 1
        self.edits.append(NewLines(slice(start, end), []))


def _key(name: str, seen: Counter[str]) -> str:
    """A name, and which of several of it this is."""
    seen[name] += 1
    return f"{name} {seen[name]}"
