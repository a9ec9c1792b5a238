"""A definition that has another name, and the uses of it in the rest of a Python file.

A name that anything else in the file has, too, is not changed by guess: ValueError says so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from daguerre.editing.trees import Definition, Import, PythonFile, bound

Place = tuple[int, int]
"""A line, from 1, and a column in bytes, as in a tree."""


def renamed(file: str, old: str, new: str, owner: str = "") -> str:
    """A file in which uses of what has another name have it, too: of a module's as a name and in `__all__`; of a
    class's (owner) behind `self`, `cls`, the class and what it makes (`C().name`), and in the class's own body.
    """
    source = PythonFile(file)
    places = list(_of_class(source.tree, old, owner) if owner else _of_module(source.tree, old, new))
    lines = [line.encode() for line in source.lines]
    for row, column in sorted(set(places), reverse=True):
        line, end = lines[row - 1], column + len(old.encode())
        if line[column:end] != old.encode():
            raise ValueError(f"`{old}` is used where its place is not known, in line {row}")
        lines[row - 1] = line[:column] + new.encode() + line[end:]
    return b"\n".join(lines).decode()


def _of_module(tree: ast.Module, old: str, new: str) -> Iterator[Place]:
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == old]
    given = list(_bindings(tree))
    if uses and (old in given or given.count(new) > 1):
        raise ValueError(f"`{old if old in given else new}` is the name of something else in the file, too")
    yield from ((node.lineno, node.col_offset) for node in uses)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            if "__all__" in [
                getattr(one, "id", "") for one in getattr(node, "targets", [getattr(node, "target", None)])
            ]:
                for one in ast.walk(node.value):
                    if isinstance(one, ast.Constant) and one.value == old:
                        yield one.lineno, one.col_offset + 1


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


def _of_class(tree: ast.Module, old: str, owner: str) -> Iterator[Place]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    own = [node for node in classes if node.name == owner]
    below = [node for node in classes if any(getattr(base, "id", "") == owner for base in node.bases)]
    if len(own) != 1 or any(old in _given(node) for node in [*own, *below]):
        raise ValueError(f"`{old}` is the name of something else, too")
    for node in [*own, *below]:
        for part in node.body:
            yield from _attributes(part, old, ("self", "cls"))
    for part in own[0].body:
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
            if (
                isinstance(one, ast.Attribute)
                and isinstance(one.ctx, ast.Store)
                and getattr(one.value, "id", "") == "self"
            ):
                yield one.attr
            if not isinstance(part, Definition) and isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                yield one.id


def _attributes(node: ast.AST, name: str, owners: Sequence[str]) -> Iterator[Place]:
    """Places of a name behind others and a dot, but in classes that lie in this."""
    left = [node]
    while left:
        one = left.pop()
        if isinstance(one, ast.Attribute) and one.attr == name:
            of = one.value.func if isinstance(one.value, ast.Call) else one.value
            if isinstance(of, ast.Name) and (of.id in owners or (of.id == "super" and "self" in owners)):
                yield one.end_lineno or 0, (one.end_col_offset or 0) - len(name.encode())
        left += [
            each for each in ast.iter_child_nodes(one) if not (isinstance(each, ast.ClassDef) and "self" in owners)
        ]
