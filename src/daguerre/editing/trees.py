"""Syntax trees of Python files, as edits read them. Lines are from 0; a tree's own are from 1."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom
Constant = ast.Assign | ast.AnnAssign


def parsed(text: str) -> ast.Module | None:
    """The tree of a text; None for what is no Python."""
    try:
        return ast.parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def definitions(body: Sequence[ast.stmt]) -> list[Definition]:
    """The functions and classes among statements."""
    return [node for node in body if isinstance(node, Definition)]


def imports(body: Sequence[ast.stmt]) -> list[Import]:
    """The imports among statements."""
    return [node for node in body if isinstance(node, Import)]


def constants(body: Sequence[ast.stmt]) -> list[Constant]:
    """The assignments among statements."""
    return [node for node in body if isinstance(node, Constant)]


def members(body: Sequence[ast.stmt]) -> Iterator[Definition]:
    """Definitions among statements, and those in their classes."""
    for node in definitions(body):
        yield node
        if isinstance(node, ast.ClassDef):
            yield from members(node.body)


def within(inner: ast.stmt, outer: ast.stmt) -> bool:
    """Whether a statement lies in another one."""
    return inner is not outer and outer.lineno <= inner.lineno and (inner.end_lineno or 0) <= (outer.end_lineno or 0)


def bound(node: Import) -> list[str]:
    """The names that an import binds."""
    return [one.asname or one.name.partition(".")[0] for one in node.names]


def targets(node: Constant) -> list[str]:
    """What an assignment assigns to, as it is written."""
    return [ast.unparse(one) for one in (node.targets if isinstance(node, ast.Assign) else [node.target])]


def names(body: Sequence[ast.stmt]) -> set[str]:
    """The names that statements define, import or assign, but in functions and classes."""
    out = set[str]()
    for node in body:
        if isinstance(node, Definition):
            out.add(node.name)
        elif isinstance(node, Import):
            out |= set(bound(node))
        else:
            out |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
            inner = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
            out |= names([*inner, *(stmt for one in getattr(node, "handlers", ()) for stmt in one.body)])
    return out


def lines_of(node: ast.stmt) -> slice:
    """The lines of a statement, without decorators."""
    return slice(node.lineno - 1, node.end_lineno)


def rows(node: Definition, lines: Sequence[str]) -> slice:
    """The lines of a definition, with its decorators and the comments right above it."""
    start = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
    while start and re.match(rf" {{{node.col_offset}}}#", lines[start - 1]):
        start -= 1
    return slice(start, node.end_lineno)


def header(node: Definition, lines: Sequence[str]) -> slice:
    """The lines of a class up to its body, with decorators and the comments above."""
    parts = [*node.bases, *(one.value for one in node.keywords)] if isinstance(node, ast.ClassDef) else []
    end = max([node.lineno, *(one.end_lineno or 0 for one in parts)])
    while end < node.body[0].lineno - 1 and not re.search(r":\s*(#.*)?\Z", lines[end - 1]):
        end += 1
    return slice(rows(node, lines).start, end)
