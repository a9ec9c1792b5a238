"""Comparisons, boolean logic and arithmetic."""

from __future__ import annotations

import ast
from itertools import pairwise

from daguerre.concepts.detectors import Holds, nodes
from daguerre.concepts.source import SourceText, constant, string

IDENTITY = (ast.Is, ast.IsNot)


# Comparisons, whole chains


def by(*operators: type[ast.cmpop]) -> Holds:
    return lambda _, node: any(isinstance(one, operators) for one in node.ops)


def is_zero_check(_: SourceText, node: ast.Compare) -> bool:
    return any(constant(one, 0) or constant(one, 0.0) for one in (node.left, *node.comparators))


def is_empty_check(_: SourceText, node: ast.Compare) -> bool:
    return any(string(one) == "" for one in (node.left, *node.comparators))


def is_none_check(_: SourceText, node: ast.Compare) -> bool:
    sides = pairwise([node.left, *node.comparators])
    return any(
        isinstance(operator, IDENTITY) and (constant(left, None) or constant(right, None))
        for operator, (left, right) in zip(node.ops, sides, strict=True)
    )


nodes("comparison", ast.Compare)
nodes("chained_comparison", ast.Compare, lambda _, node: len(node.ops) > 1)
nodes("equality_test", ast.Compare, by(ast.Eq, ast.NotEq))
nodes("ordering_test", ast.Compare, by(ast.Lt, ast.LtE, ast.Gt, ast.GtE))
nodes("membership_test", ast.Compare, by(ast.In, ast.NotIn))
nodes("identity_test", ast.Compare, by(*IDENTITY))
nodes("zero_comparison", ast.Compare, is_zero_check)
nodes("empty_string_check", ast.Compare, is_empty_check)
nodes("none_check", ast.Compare, is_none_check)


# Logic and arithmetic


def is_text(node: ast.expr) -> bool:
    """Whether it is a literal of a string or of bytes, or an f-string."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def binary(name: str, *operators: type[ast.operator]) -> None:
    """Register a concept for binary operations with one of these operators on anything but literals of text."""
    nodes(
        name,
        ast.BinOp,
        lambda _, node: isinstance(node.op, operators) and not is_text(node.left) and not is_text(node.right),
    )


nodes("boolean_logic", ast.BoolOp)
nodes("unary_operation", ast.UnaryOp)
binary("addition", ast.Add)
binary("subtraction", ast.Sub)
binary("multiplication", ast.Mult)
binary("division", ast.Div)
binary("floor_division", ast.FloorDiv)
binary("modulo", ast.Mod)
binary("power", ast.Pow)
binary("matmul", ast.MatMult)
binary("bitwise_op", ast.BitAnd, ast.BitOr, ast.BitXor)
binary("bit_shift", ast.LShift, ast.RShift)
