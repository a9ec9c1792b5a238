"""Subscripts by what is between their brackets."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from daguerre.concepts.detectors import Detector
from daguerre.concepts.detectors.operators import GROUP
from daguerre.concepts.source import SourceText, Span, string


def subscripts(holds: Callable[[ast.expr], bool]) -> Detector:
    """Subscripts with an index of which this holds."""

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.of(ast.Subscript):
            if holds(node.slice):
                yield source.span(node)

    return detect


def is_int(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and type(index.value) is int


def is_negative(index: ast.expr) -> bool:
    return isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) and is_int(index.operand)


def has_slice(index: ast.expr) -> bool:
    return any(isinstance(one, ast.Slice) for one in (index.elts if isinstance(index, ast.Tuple) else [index]))


def is_multiple(index: ast.expr) -> bool:
    return isinstance(index, ast.Tuple) and len(index.elts) > 1


GROUP.node("subscript", "A subscript: x[...].")(subscripts(lambda _: True))
for _name, _description, _holds in (
    ("slicing", "A subscript with a slice as its index or as one of them.", has_slice),
    ("constant_index", "A subscript with an integer literal without sign as its index.", is_int),
    ("negative_index", "A subscript with a minus and an integer literal as its index.", is_negative),
    ("string_key_access", "A subscript with a string literal as its index.", lambda index: string(index) is not None),
    ("multi_index", "A subscript with two or more indices.", is_multiple),
):
    GROUP.node(_name, _description, parents=("subscript",))(subscripts(_holds))
