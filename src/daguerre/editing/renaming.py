"""A definition that has another name, and the uses of it in the rest of a Python file.

A name that anything else in the file has, too, is not changed by guess: ValueError says so.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from daguerre.editing.trees import Definition, Import, PythonFile, bound, definitions, names

Place = tuple[int, int]
"""A line, from 1, and a column in bytes, as in a tree."""


def renamed(file: str, old: str, new: str, owner: str = "") -> str:
    """A file in which uses of what has another name have it, too: of a module's as a name and in `__all__`; of a
    class's (owner) behind `self`, `cls`, the class and what it makes (`C().name`), and in the class's own body.
    """
    source = PythonFile(file)
    places = list(_of_class(source.tree, old, new, owner) if owner else _of_module(source.tree, old, new))
    lines = [line.encode() for line in source.lines]
    for row, column in sorted(set(places), reverse=True):
        line, end = lines[row - 1], column + len(old.encode())
        if line[column:end] != old.encode():
            raise ValueError(f"`{old}` is used where its place is not known, in line {row}")
        lines[row - 1] = line[:column] + new.encode() + line[end:]
    return b"\n".join(lines).decode()


def _of_module(tree: ast.Module, old: str, new: str) -> Iterator[Place]:
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == old]
    given, (own, *others) = list(_bindings(tree)), [node for node in definitions(tree.body) if node.name == new]
    read = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == new]
    captured = any(not own.lineno <= node.lineno <= (own.end_lineno or 0) for node in read)
    if old in names(tree.body) or (uses and old in given):
        raise ValueError(f"`{old}` is the name of something else in the file, too")
    if others or given.count(new) > 1 or captured or hasattr(builtins, new):
        raise ValueError(f"`{new}` is the name of something else, too")
    yield from ((node.lineno, node.col_offset) for node in uses)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
            parts = list(ast.walk(node))
            if any(isinstance(one, ast.Name) and one.id == "__all__" for one in parts):
                said = [one for one in parts if isinstance(one, ast.Constant) and one.value == old]
                yield from ((one.lineno, one.col_offset + 1) for one in said)


def _bindings(tree: ast.AST) -> Iterator[str]:
    """Every name that a file gives to something, in whatever scope."""
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            yield node.name
        elif isinstance(node, Import):
            yield from bound(node)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def _of_class(tree: ast.Module, old: str, new: str, owner: str) -> Iterator[Place]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    (own, *others) = [node for node in classes if node.name == owner]
    for node in classes:
        given = list(_given(node))
        if others or old in given or given.count(new) > (node is own):
            raise ValueError(f"`{old if others or old in given else new}` is the name of something else, too")
    if any(isinstance(one, ast.Attribute) and one.attr == old and _caller(one) == "super" for one in ast.walk(tree)):
        raise ValueError(f"`super().{old}` is another one")
    family, num = {owner}, 0
    while len(family) > num:
        num = len(family)
        family |= {node.name for node in classes if {getattr(base, "id", "") for base in node.bases} & family}
    for node in classes:
        for part in node.body if node.name in family else ():
            if not isinstance(part, ast.ClassDef):
                yield from _attributes(part, old, ("self", "cls"))
    for part in own.body:
        for one in part.decorator_list if isinstance(part, Definition) else [part]:
            for each in ast.walk(one):
                if isinstance(each, ast.Name) and each.id == old:
                    yield each.lineno, each.col_offset
    yield from _attributes(tree, old, (owner,))


def _given(node: ast.ClassDef) -> Iterator[str]:
    """The names that a class gives, and those that its methods give to `self`."""
    for part in node.body:
        if isinstance(part, Definition):
            yield part.name
        for one in ast.walk(part):
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and _caller(one) == "self":
                yield one.attr
            if not isinstance(part, Definition) and isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                yield one.id


def _caller(node: ast.Attribute) -> str:
    """The name before the dot of an attribute, or of what is called there."""
    of = node.value.func if isinstance(node.value, ast.Call) else node.value
    return of.id if isinstance(of, ast.Name) else ""


def _attributes(node: ast.AST, name: str, owners: Sequence[str]) -> Iterator[Place]:
    """Places of a name behind others and a dot; behind `self` but in classes that lie in this."""
    left = [node]
    while left:
        one = left.pop()
        if isinstance(one, ast.Attribute) and one.attr == name and _caller(one) in owners:
            yield one.end_lineno or 0, (one.end_col_offset or 0) - len(name.encode())
        left += [
            each for each in ast.iter_child_nodes(one) if not (isinstance(each, ast.ClassDef) and "self" in owners)
        ]
