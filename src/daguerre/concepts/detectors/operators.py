"""Comparisons, boolean logic and arithmetic."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise

from daguerre.concepts.detectors import ConceptGroup, Detector
from daguerre.concepts.source import SourceText, Span, constant, string

GROUP = ConceptGroup("expressions")
EQUALITY = (ast.Eq, ast.NotEq)
ORDERING = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
MEMBERSHIP = (ast.In, ast.NotIn)
IDENTITY = (ast.Is, ast.IsNot)


# Comparisons


def compares(holds: Callable[[ast.Compare], bool]) -> Detector:
    """Comparisons of which this holds, whole chains."""

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.of(ast.Compare):
            if holds(node):
                yield source.span(node)

    return detect


def by(*operators: type[ast.cmpop]) -> Callable[[ast.Compare], bool]:
    return lambda node: any(isinstance(one, operators) for one in node.ops)


def with_operand(holds: Callable[[ast.expr], bool]) -> Callable[[ast.Compare], bool]:
    return lambda node: holds(node.left) or any(holds(one) for one in node.comparators)


def is_zero(node: ast.expr) -> bool:
    return constant(node, 0) or constant(node, 0.0)


def is_none_check(node: ast.Compare) -> bool:
    sides = pairwise([node.left, *node.comparators])
    return any(
        isinstance(operator, IDENTITY) and (constant(left, None) or constant(right, None))
        for operator, (left, right) in zip(node.ops, sides, strict=True)
    )


GROUP.node("comparison", "A comparison, or a whole chain of them.")(compares(lambda _: True))
for _name, _description, _holds in (
    ("chained_comparison", "A chain of two or more comparisons, such as a < b < c.", lambda node: len(node.ops) > 1),
    ("equality_test", "A comparison with == or !=.", by(*EQUALITY)),
    ("ordering_test", "A comparison with <, <=, > or >=.", by(*ORDERING)),
    ("membership_test", "A comparison with in or not in.", by(*MEMBERSHIP)),
    ("identity_test", "A comparison with is or is not, those with None among them.", by(*IDENTITY)),
    ("zero_comparison", "A comparison with the number 0 or 0.0 on a side.", with_operand(is_zero)),
    (
        "empty_string_check",
        "A comparison with an empty string literal on a side.",
        with_operand(lambda node: string(node) == ""),
    ),
):
    GROUP.node(_name, _description, parents=("comparison",))(compares(_holds))
GROUP.node(
    "none_check",
    "A comparison with is or is not that has None on a side of it.",
    parents=("comparison", "identity_test"),
)(compares(is_none_check))


# Logic and arithmetic


@GROUP.node("boolean_logic", "An expression with and or or.")
def boolean_logic(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.BoolOp):
        yield source.span(node)


@GROUP.node("unary_operation", "An expression with a unary not, -, + or ~.")
def unary_operation(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.UnaryOp):
        yield source.span(node)


def is_text(node: ast.expr) -> bool:
    """Whether it is a literal of a string or of bytes, or an f-string."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def binary(*operators: type[ast.operator]) -> Detector:
    """Binary operations with one of these operators on anything but literals of text."""

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.of(ast.BinOp):
            if isinstance(node.op, operators) and not is_text(node.left) and not is_text(node.right):
                yield source.span(node)

    return detect


for _name, _symbols, _operators in (
    ("addition", "+", (ast.Add,)),
    ("subtraction", "-", (ast.Sub,)),
    ("multiplication", "*", (ast.Mult,)),
    ("division", "/", (ast.Div,)),
    ("floor_division", "//", (ast.FloorDiv,)),
    ("modulo", "%", (ast.Mod,)),
    ("power", "**", (ast.Pow,)),
    ("matmul", "@", (ast.MatMult,)),
    ("bitwise_op", "&, | or ^", (ast.BitAnd, ast.BitOr, ast.BitXor)),
    ("bit_shift", "<< or >>", (ast.LShift, ast.RShift)),
):
    GROUP.node(_name, f"A binary {_symbols} with no string, bytes or f-string literal directly on either side.")(
        binary(*_operators)
    )
