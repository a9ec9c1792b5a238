"""Assignments and other statements about names, and stars."""

from __future__ import annotations

import ast

from daguerre.concepts.detectors import nodes
from daguerre.concepts.source import SourceText

DISPLAYS = (ast.Tuple, ast.List)
Assignment = ast.Assign | ast.AugAssign | ast.AnnAssign


def is_swap(_: SourceText, node: ast.Assign) -> bool:
    return any(swaps(one, node.value) for one in node.targets)


def swaps(target: ast.expr, value: ast.expr) -> bool:
    if not (isinstance(target, DISPLAYS) and isinstance(value, DISPLAYS) and len(target.elts) == len(value.elts) == 2):
        return False
    left, right = (ast.unparse(one) for one in target.elts)  # unlike a dump, blind to what is stored and what is loaded
    return left != right and [right, left] == [ast.unparse(one) for one in value.elts]


def assigns_item(_: SourceText, node: Assignment) -> bool:
    return any(has_item(one) for one in (node.targets if isinstance(node, ast.Assign) else [node.target]))


def has_item(target: ast.expr) -> bool:
    """Whether a target is a subscript, or has one among its own."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(has_item(one) for one in target.elts)
    return has_item(target.value) if isinstance(target, ast.Starred) else isinstance(target, ast.Subscript)


nodes("chained_assignment", ast.Assign, lambda _, node: len(node.targets) > 1)
nodes("tuple_unpacking", ast.Assign, lambda _, node: any(isinstance(one, DISPLAYS) for one in node.targets))
nodes("swap_idiom", ast.Assign, is_swap)
nodes("item_assignment", (ast.Assign, ast.AugAssign, ast.AnnAssign), assigns_item)
nodes("augmented_assignment", ast.AugAssign)
nodes("walrus", ast.NamedExpr)
nodes("star_expression", ast.Starred)
nodes("del_statement", ast.Delete)
nodes("nonlocal_statement", ast.Nonlocal)
