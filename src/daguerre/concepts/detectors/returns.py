"""What functions return."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.source import SourceText, Span

GROUP = ConceptGroup("returns")


def returned(
    name: str,
    description: str,
    holds: Callable[[ast.expr | None], bool],
    parents: tuple[str, ...] = ("return_statement",),
) -> None:
    """Register a concept for `return` statements, by what they return."""

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.of(ast.Return):
            if holds(node.value):
                yield source.span(node)

    GROUP.node(name, description, parents=parents)(detect)


def is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def is_predicate(value: ast.expr | None) -> bool:
    negated = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    return negated or isinstance(value, ast.Compare | ast.BoolOp)


def is_string(value: ast.expr | None) -> bool:
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


returned("return_statement", "A `return` statement.", lambda _: True, ())
returned("return_none", "A `return` of nothing or of `None`.", is_none)
returned(
    "return_bool",
    "A `return` of `True` or `False`.",
    lambda value: isinstance(value, ast.Constant) and isinstance(value.value, bool),
)
returned("return_tuple", "A `return` of a tuple display.", lambda value: isinstance(value, ast.Tuple))
returned("return_call", "A `return` of a call that is not awaited.", lambda value: isinstance(value, ast.Call))
returned("return_predicate", "A `return` of a comparison, or of an `and`, `or` or `not`.", is_predicate)
returned("return_string", "A `return` of a string literal or f-string.", is_string)
