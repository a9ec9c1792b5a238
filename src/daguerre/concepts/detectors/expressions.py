"""Assignments and other statements about names, and stars."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors.control import of_type
from daguerre.concepts.detectors.operators import GROUP
from daguerre.concepts.source import SourceText, Span

DISPLAYS = (ast.Tuple, ast.List)
Assignment = ast.Assign | ast.AugAssign | ast.AnnAssign


@GROUP.node("chained_assignment", "An assignment with two or more equals signs: a = b = value.")
def chained_assignment(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Assign):
        if len(node.targets) > 1:
            yield source.span(node)


@GROUP.node("tuple_unpacking", "An assignment statement with a tuple or list as a target.")
def tuple_unpacking(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Assign):
        if any(isinstance(one, DISPLAYS) for one in node.targets):
            yield source.span(node)


@GROUP.node(
    "swap_idiom", "An assignment of two values to each other's place: a, b = b, a.", parents=("tuple_unpacking",)
)
def swap_idiom(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Assign):
        if any(swaps(one, node.value) for one in node.targets):
            yield source.span(node)


def swaps(target: ast.expr, value: ast.expr) -> bool:
    if not (isinstance(target, DISPLAYS) and isinstance(value, DISPLAYS) and len(target.elts) == len(value.elts) == 2):
        return False
    left, right = (ast.unparse(one) for one in target.elts)  # unlike a dump, blind to what is stored and what is loaded
    return left != right and [right, left] == [ast.unparse(one) for one in value.elts]


@GROUP.node("item_assignment", "An assignment statement, also with += and the like, with x[...] as a target.")
def item_assignment(source: SourceText) -> Iterator[Span]:
    assignments: list[Assignment] = source.of(ast.Assign, ast.AugAssign, ast.AnnAssign)
    for node in assignments:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(has_item(one) for one in targets):
            yield source.span(node)


def has_item(target: ast.expr) -> bool:
    """Whether a target is a subscript, or has one among its own."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(has_item(one) for one in target.elts)
    return has_item(target.value) if isinstance(target, ast.Starred) else isinstance(target, ast.Subscript)


for _name, _kind, _description in (
    ("augmented_assignment", ast.AugAssign, "An assignment with +=, -= or the like."),
    ("walrus", ast.NamedExpr, "An assignment expression: name := value."),
    ("star_expression", ast.Starred, "A starred expression: *x in a call, list, target, index or the like."),
    ("del_statement", ast.Delete, "A del statement."),
    ("nonlocal_statement", ast.Nonlocal, "A nonlocal statement."),
):
    GROUP.node(_name, _description)(of_type(_kind))
