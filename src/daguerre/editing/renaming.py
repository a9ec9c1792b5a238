"""A definition that has another name, and the uses of it in the rest of a Python file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from daguerre.editing.trees import constants, members, names, parsed, targets

Place = tuple[int, int]
"""A line, from 1, and a column in bytes, as in a tree."""


def renamed(file: str, old: str, new: str, owner: str = "") -> str:
    """A file in which uses of what has another name have it, too: of a module's where no function has a variable of
    that name, and in `__all__`; of a class's (owner) behind `self`, `cls`, the class and what it makes (`C().name`).
    As it is where the old name is still defined.
    """
    tree = parsed(file)
    if tree is None:
        return file
    if not owner:
        places = [] if old in names(tree.body) else [*_uses(tree, old), *_exports(tree, old)]
    else:
        classes = [node for node in members(tree.body) if isinstance(node, ast.ClassDef) and node.name == owner]
        if len(classes) != 1 or old in names(classes[0].body):
            return file
        places = [*_attributes(classes[0], old, ("self", "cls")), *_attributes(tree, old, (owner,))]
    lines = [line.encode() for line in file.split("\n")]
    for row, column in sorted(set(places), reverse=True):
        line, end = lines[row - 1], column + len(old.encode())
        if line[column:end] == old.encode():
            lines[row - 1] = line[:column] + new.encode() + line[end:]
    return b"\n".join(lines).decode()


def _uses(node: ast.AST, name: str) -> Iterator[Place]:
    """Places of a name, but in functions that have a variable of that name."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and _has_variable(node, name):
        return
    if isinstance(node, ast.Name) and node.id == name:
        yield node.lineno, node.col_offset
    for child in ast.iter_child_nodes(node):
        yield from _uses(child, name)


def _has_variable(function: ast.AST, name: str) -> bool:
    return any(
        (isinstance(one, ast.arg) and one.arg == name)
        or (isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Load))
        for one in ast.walk(function)
    )


def _exports(tree: ast.Module, name: str) -> Iterator[Place]:
    for node in constants(tree.body):
        if targets(node) == ["__all__"] and node.value is not None:
            for one in ast.walk(node.value):
                if isinstance(one, ast.Constant) and one.value == name:
                    yield one.lineno, one.col_offset + 1


def _attributes(node: ast.AST, name: str, owners: Sequence[str]) -> Iterator[Place]:
    """Places of a name behind others and a dot."""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and one.attr == name:
            of = one.value.func if isinstance(one.value, ast.Call) else one.value
            if isinstance(of, ast.Name) and of.id in owners:
                yield one.end_lineno or 0, (one.end_col_offset or 0) - len(name.encode())
