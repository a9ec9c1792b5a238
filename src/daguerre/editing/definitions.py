"""The functions and classes of a Python file that an instruction names, as a small file that a model writes again.

A `SmallFile` shows them with the classes that they are in and the imports that they use; nothing else of the file is
the model's. What it writes is put in place by its syntax tree: a definition takes the place of that of its name; the
only one with a new name, if it is alike, that of the only one that is missing; new imports and constants come to the
top of the file. A name that was changed is changed where the file uses it (`daguerre.editing.renaming`).
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile

from daguerre.editing.answers import UnreadableAnswer
from daguerre.editing.renaming import renamed
from daguerre.editing.replacing import NewLines, Replacement, ShownDefinition, outside
from daguerre.editing.trees import (
    Definition,
    Import,
    PythonFile,
    bound,
    definitions,
    imported,
    imports,
    members,
    names,
    target,
)

UNITS = r"(functions?|methods?|class(es)?|definitions?|calls?|callers?|uses?|usages?|places?|files?)"
EVERYWHERE = re.compile(
    rf"\b((all|any|each|every) (of )?(the |its )?(other )?{UNITS}|(calls|uses|usages) (to|of)|callers?|everywhere|"
    r"wherever|throughout|across|everything|whole (file|module)|module docstring|other than|except for|"
    r"(move|put|place)\b.{0,80} (out|below|above|before|behind|after|under)|sort|order)\b",
    re.IGNORECASE,
)
"""What says that an instruction is for more than what it names."""
OTHER_KINDS = re.compile(
    r"\b(parameter|argument|arg|variable|attribute|field|option|constant|number|import|module|type|key|value)s? "
    r"`[^`\n]*`",
    re.IGNORECASE,
)
"""Names that an instruction says to be no functions or classes."""
CODE = re.compile(r"`([^`\n]+)`|\b(\w+_\w+|_\w+|\w*[a-z0-9][A-Z]\w*|\w+(?=\(\)))")
PATH = re.compile(r"([^\W\d][\w.]*)\s*(\(.*\))?")
MOST_INSTRUCTION, MOST_FILE = 2_000, 400_000
"""Characters of an instruction, and of a file, that are read for names."""
MOST_NAMED = 32
"""Definitions that are shown at most."""
NOTHING_LEFT = "nothing is left of it: only if that is what the change means, answer with an empty code block"


class SmallFile:
    """Definitions of a file, shown as a file of their own. `text`: what is shown."""

    def __init__(self, file: PythonFile, shown: list[ShownDefinition], end: str) -> None:
        self._file, self._shown, self._end = file, shown, end
        self._lost = Counter[str]()
        groups = ["\n".join(_lines(one, file)) for one in shown]
        words = set(re.findall(r"\w+", "\n".join(groups)))
        self._imports = [node for node in imports(file.tree.body) if words & set(bound(node))]
        head = "\n".join(line for node in self._imports for line in file.text(node))
        self.text = "\n\n\n".join([*([head] if head else []), *groups]) + "\n"

    def merged(self, new: str, answer: str = "") -> str:
        """The file with what was written in place of what was shown. UnreadableAnswer, with the raw answer, where that
        is not certain; a definition that is missing is removed if the next answer has it neither.
        """
        try:
            return self._merged(_source(new, "it is no Python")).replace("\n", self._end)
        except UnreadableAnswer as error:
            raise UnreadableAnswer(error.reason, answer) from None
        except RecursionError:
            raise UnreadableAnswer("it is nested too deeply to be read", answer) from None

    def _merged(self, new: PythonFile) -> str:
        merge = Replacement(self._file, new)
        merge.level(self._shown, new.tree.body, self._file.names)
        if merge.lost and merge.added:
            raise UnreadableAnswer(f"it is not clear what `{merge.added[0]}` takes the place of: keep the old names")
        if merge.lost - self._lost:
            self._lost = merge.lost
            said = " and ".join(f"`{name}`" for name in merge.lost)
            them = "it" if len(merge.lost) == 1 else "them"
            gone = f"the answer has no {said}: leave {them} out again only if the change removes {them}"
            raise UnreadableAnswer(gone if definitions(new.tree.body) else NOTHING_LEFT)
        edits = [*merge.edits, *self._head(new)]
        edits.sort(key=lambda one: (one.place.start, one.place.stop))
        lines = list(self._file.lines)
        for edit in edits[::-1]:
            lines[edit.place] = edit.lines
        made = "\n".join(lines)
        for old, name, owner in merge.renamed:
            try:
                made = renamed(made, old, name, owner)
            except ValueError as error:
                reason = f"`{old}` cannot be changed to `{name}` where it is used ({error})"
                raise UnreadableAnswer(reason) from error
        _source(made, "the file would be no Python any more")
        if _compiles("\n".join(self._file.lines)) and not _compiles(made):
            raise UnreadableAnswer("the file would be no Python any more")
        return made

    def _head(self, new: PythonFile) -> Iterator[NewLines]:
        """Imports and constants that the file does not have: imports before its own; one of more names from a module in
        the place of the one that was shown; constants behind the imports.
        """
        file, brought, given = self._file, list[str](), list[str]()
        known = {"\n".join(file.text(node)) for node in file.tree.body if not isinstance(node, Definition)}
        has = {one for node in imports(file.tree.body) for one in imported(node)}
        before = list(takewhile(lambda node: not isinstance(node, Definition), file.tree.body))
        own = [node for node in imports(before) if getattr(node, "module", "") != "__future__"]
        readable = {name for node in own for name in bound(node)} | set(dir(builtins))
        replaced = list[Import]()
        for node in new.tree.body:
            if isinstance(node, Definition | ast.Pass) or "\n".join(new.text(node)) in known:
                continue
            if isinstance(node, Import):
                if imported(node) <= has:
                    continue
                self._check_import(node, has)
                has |= imported(node)
                readable |= set(bound(node))
                same = [one for one in own if one in self._imports and _extends(node, one) and one not in replaced]
                if same and not file.shares(same[0]):
                    replaced.append(same[0])
                    yield NewLines(slice(same[0].lineno - 1, same[0].end_lineno), new.text(node))
                else:
                    brought += new.text(node)
                continue
            name = target(node)
            if name is None or name.startswith("__") or _words(node) - readable:
                raise UnreadableAnswer(outside(node, self._shown))
            if name in file.names or hasattr(builtins, name):
                raise UnreadableAnswer(f"`{name}` is something else already: leave it out")
            readable.add(name)
            given += new.text(node)
        top = _top(file)
        at = max([top, *([own[0].lineno - 1] if own else [])])
        if brought:
            yield NewLines(slice(at, at), brought if own else ["", *brought] if at else [*brought, "", ""])
        at = max([top, *(one.end_lineno or 0 for one in own)])
        if given:
            yield NewLines(slice(at, at), ["", *given] if at else [*given, "", ""])

    def _check_import(self, node: Import, has: set[tuple[str, int, str, str | None]]) -> None:
        """UnreadableAnswer for an import that may change what the rest of the file reads."""
        body = self._file.tree.body
        packages = {name for one in imports(body) if isinstance(one, ast.Import) for name in bound(one)}
        tried = names([one for one in body if isinstance(one, ast.Try)])
        taken = (
            {name for one in [*imports(body), *definitions(body)] for name in names([one])} | tried | set(dir(builtins))
        )
        taken |= {name for one in body if (name := target(one)) is not None}
        for one in node.names:
            name = one.asname or one.name.partition(".")[0]
            more = "." in one.name and not one.asname and name in packages
            if name == "*" or getattr(node, "module", "") == "__future__":
                raise UnreadableAnswer(f"`{ast.unparse(node)}` changes all of the file: leave it out")
            if not imported(node, one) <= has and name in taken and not more:
                raise UnreadableAnswer(f"`{name}` is something else already: do not import it")


def _compiles(text: str) -> bool:
    """Whether Python takes a text, which its tree alone does not say."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "file", "exec", dont_inherit=True)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _source(text: str, otherwise: str) -> PythonFile:
    try:
        return PythonFile(text, part=True)
    except ValueError as error:
        raise UnreadableAnswer(f"{otherwise} ({error})") from error


def small_file(file: str, instruction: str, loosely: bool = False) -> SmallFile | None:
    """The functions, methods and classes of a file that an instruction names in backticks, or as only code is written
    (`with_underscore`, `WithCapitals`, `called()`); loosely: or the only one that it names by any word. None where it
    names none, is for more than what it names, or is long; and for a file that is long or no Python, or whose lines end
    in several ways.
    """
    if len(instruction) > MOST_INSTRUCTION or len(file) > MOST_FILE:
        return None
    end = "\r\n" if "\r\n" in file else "\n"
    lines = file.split(end)
    if any(re.search(r"[\r\n\f]", line) for line in lines) or EVERYWHERE.search(re.sub(r"`[^`\n]*`", "", instruction)):
        return None
    try:
        source = PythonFile("\n".join(lines))
        named = _named(source, instruction, loosely)
        return SmallFile(source, _chosen(source.tree.body, {id(node) for node in named}), end) if named else None
    except (ValueError, RecursionError):
        return None


def _named(file: PythonFile, instruction: str, loosely: bool) -> list[Definition]:
    """The definitions that are named; if a class and something in it are both named, only that."""
    told = OTHER_KINDS.sub("", instruction)
    code = [PATH.fullmatch(quoted or word) for quoted, word in CODE.findall(told)]
    paths = {tuple(found[1].removeprefix("self.").split(".")) for found in code if found}
    if {path[0] for path in paths} & {target(node) for node in file.tree.body}:
        return []  # a constant of the module is named
    rough = set(re.findall(r"\w+", told)) if loosely and not paths else set()
    by_name = defaultdict[str, list[tuple[str, ...]]](list)
    for path in paths:
        by_name[path[-1]].append(path)
    named = [
        (node, owners)
        for node, owners in members(file.tree.body)
        if node.name in rough or any(path == (*owners, node.name)[-len(path) :] for path in by_name.get(node.name, ()))
    ]
    if len(named) > (1 if rough else MOST_NAMED):
        return []
    outer = {id(one) for one, _ in named if any(_within(other, one) for other, _ in named)}
    inner = [node for node, _ in named if id(node) not in outer]
    inside = [node for node in inner if any(id(one) in outer and _within(node, one) for one, _ in named)]
    told_apart = {node.name for node in inside}
    return [node for node in inner if node.name not in told_apart or node in inside]


def _within(inner: ast.stmt, outer: ast.stmt) -> bool:
    return inner is not outer and outer.lineno <= inner.lineno and (inner.end_lineno or 0) <= (outer.end_lineno or 0)


def _chosen(body: Sequence[ast.stmt], named: set[int]) -> list[ShownDefinition]:
    out = []
    for node in definitions(body):
        if id(node) in named:
            out.append(ShownDefinition(node))
        elif isinstance(node, ast.ClassDef) and (inner := _chosen(node.body, named)):
            out.append(ShownDefinition(node, inner))
    return out


def _lines(one: ShownDefinition, file: PythonFile) -> list[str]:
    if not one.inner or not isinstance(one.node, ast.ClassDef):
        return file.lines[file.place(one.node)]
    out = file.lines[file.header(one.node)]
    for number, inner in enumerate(one.inner):
        out += [*([""] if number else []), *_lines(inner, file)]
    return out


def _extends(new: Import, old: Import) -> bool:
    """Whether an import has the names of another one from the same module, and more."""
    return isinstance(old, ast.ImportFrom) and imported(new) > imported(old)


def _top(file: PythonFile) -> int:
    """The line behind what must come first: comments, the docstring, what is imported from the future."""
    at = 0
    while at in file.comments:
        at += 1
    for number, node in enumerate(file.tree.body):
        says = number == 0 and ast.get_docstring(file.tree, clean=False) is not None
        if says or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            at = node.end_lineno or at
    return at


def _words(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
