"""Python files as edits read them: their lines, their syntax trees, and which lines belong to a definition.

Lines are from 0; those of a tree are from 1.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom
_APART = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class PythonFile:
    """A Python file, or a part of one: its lines and its tree. ValueError for what is no Python."""

    def __init__(self, text: str, part: bool = False) -> None:
        self.lines, self.part = text.split("\n"), part
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.tree = ast.parse(text)
            tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        except (SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
            raise ValueError(str(error)) from error
        self.comments = {
            one.start[0] - 1 for one in tokens if one.type == tokenize.COMMENT and not one.line[: one.start[1]].strip()
        }
        """Lines that are comments."""

    @cached_property
    def names(self) -> set[str]:
        """What the module binds."""
        return names(self.tree.body)

    def text(self, node: ast.stmt) -> list[str]:
        """The lines of a statement; where it shares one with others, the statement alone."""
        if self.shares(node):
            return ast.unparse(node).split("\n")
        return self.lines[node.lineno - 1 : node.end_lineno]

    def shares(self, node: ast.stmt) -> bool:
        """Whether a line of a statement has another one, too."""
        first, last = self.lines[node.lineno - 1].encode(), self.lines[(node.end_lineno or 0) - 1].encode()
        behind = last[node.end_col_offset or 0 :].strip()
        return bool(first[: node.col_offset].strip() or (behind and not behind.startswith(b"#")))

    def start(self, node: ast.stmt) -> int:
        """The first line of a statement, with decorators and the comments right above it, but not a file's first."""
        at = node.lineno - 1
        for one in getattr(node, "decorator_list", ()):
            at = min(at, one.lineno - 1)
        while getattr(node, "decorator_list", ()) and not self.lines[at].lstrip().startswith("@"):
            at -= 1
        first, column = at, self._column(at)
        while first - 1 in self.comments and self._column(first - 1) == column:
            first -= 1
        return first if first or self.part else at

    def place(self, node: ast.stmt) -> slice:
        """The lines of a statement with what belongs to it: decorators, comments above, and those in it at its end."""
        start, end = self.start(node), node.end_lineno or node.lineno
        while end in self.comments and self._column(end) > self._column(start):
            end += 1
        return slice(start, end)

    def header(self, node: ast.ClassDef) -> slice:
        """The lines of a class up to its body, with what belongs to it above."""
        end = self.start(node.body[0])
        while end > node.lineno and (end - 1 in self.comments or not self.lines[end - 1].strip()):
            end -= 1
        return slice(self.start(node), max(end, node.lineno))

    def _column(self, row: int) -> int:
        return len(self.lines[row]) - len(self.lines[row].lstrip())


def definitions(body: Sequence[ast.stmt]) -> list[Definition]:
    """The functions and classes among statements."""
    return [node for node in body if isinstance(node, Definition)]


def imports(body: Sequence[ast.stmt]) -> list[Import]:
    """The imports among statements."""
    return [node for node in body if isinstance(node, Import)]


def members(body: Sequence[ast.stmt], owners: tuple[str, ...] = ()) -> Iterator[tuple[Definition, tuple[str, ...]]]:
    """Definitions among statements and in their classes, each with the names of the classes that it is in."""
    for node in definitions(body):
        yield node, owners
        if isinstance(node, ast.ClassDef):
            yield from members(node.body, (*owners, node.name))


def bound(node: Import) -> list[str]:
    """The names that an import binds."""
    return [one.asname or one.name.partition(".")[0] for one in node.names]


def imported(node: Import, only: ast.alias | None = None) -> set[tuple[str, int, str, str | None]]:
    """What an import brings, or one part of it: module, level, name and its other name."""
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    level = node.level if isinstance(node, ast.ImportFrom) else -1
    return {(module, level, one.name, one.asname) for one in ([only] if only else node.names)}


def target(node: ast.stmt) -> str | None:
    """The name that an assignment gives a value; None for other statements, and for other targets."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else None


def names(body: Sequence[ast.stmt]) -> set[str]:
    """The names that statements define, import or assign; not what functions, classes and comprehensions have."""
    out, left = set[str](), list[ast.AST](body)
    while left:
        node = left.pop()
        if isinstance(node, Definition):
            out.add(node.name)
        elif isinstance(node, Import):
            out |= set(bound(node))
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            out.add(node.id)
        elif not isinstance(node, _APART):
            out |= {node.name} if isinstance(node, ast.ExceptHandler) and node.name else set()
            left += ast.iter_child_nodes(node)
    return out
