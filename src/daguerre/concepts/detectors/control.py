"""Branches, context managers, and what suspends or leaves a block. Loops are in `loops`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from daguerre.concepts.detectors import ConceptGroup, Detector
from daguerre.concepts.nodes import SCOPES
from daguerre.concepts.source import SourceText, Span

GROUP = ConceptGroup("control")
Block = ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.TryStar | ast.Match
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
DEEP = 2
"""Blocks around a block that make it deeply nested."""


def is_elif(source: SourceText, node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and source.text.startswith("elif", source.span(node)[0])


def has_else(source: SourceText, orelse: Sequence[ast.stmt]) -> bool:
    return bool(orelse) and not is_elif(source, orelse[0])


# Branches


@GROUP.header("if_statement", "An if or elif, up to its colon.")
def if_statement(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.If):
        yield source.header(node)


@GROUP.header("if_else", "The keyword else and the colon of an if statement's else block.")
def if_else(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.If):
        if has_else(source, node.orelse):
            yield source.clause("else", node.orelse)


@GROUP.header("elif_chain", "An elif, up to its colon.", parents=("if_statement",))
def elif_chain(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.If):
        if is_elif(source, node):
            yield source.header(node)


@GROUP.header(
    "negated_condition",
    "An if or elif whose whole condition is negated by not, up to its colon.",
    parents=("if_statement",),
)
def negated_condition(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.If):
        if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
            yield source.header(node)


@GROUP.header("match_statement", "A match statement, up to its colon.")
def match_statement(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Match):
        yield source.header(node)


@GROUP.header(
    "deep_nesting", "A header of an if, loop, with, try or match inside two or more of these in its function or class."
)
def deep_nesting(source: SourceText) -> Iterator[Span]:
    depths = dict[ast.AST, int]()  # how many are around a block
    blocks: list[Block] = source.of(*BLOCKS)
    for node in sorted(blocks, key=lambda one: (one.lineno, one.col_offset)):  # outer ones first
        above = source.parent(node)
        while above is not None and not isinstance(above, BLOCKS + SCOPES):
            above = source.parent(above)
        depth = depths[node] = 0 if above not in depths else depths[above] + (not is_elif(source, node))
        if depth >= DEEP:
            yield source.header(node)


# Context managers


def with_statements(source: SourceText) -> list[ast.With | ast.AsyncWith]:
    return source.of(ast.With, ast.AsyncWith)


@GROUP.header("with_statement", "A with or async with statement, up to its colon.")
def with_statement(source: SourceText) -> Iterator[Span]:
    for node in with_statements(source):
        yield source.header(node)


@GROUP.header(
    "multi_with", "A with statement of two or more context managers, up to its colon.", parents=("with_statement",)
)
def multi_with(source: SourceText) -> Iterator[Span]:
    for node in with_statements(source):
        if len(node.items) > 1:
            yield source.header(node)


@GROUP.header("async_with", "An async with statement, up to its colon.", parents=("with_statement",))
def async_with(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.AsyncWith):
        yield source.header(node)


# Nodes of one type


def of_type(kind: type[ast.expr] | type[ast.stmt]) -> Detector:
    """All nodes of a type."""

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.of(kind):
            yield source.span(node)

    return detect


for _name, _kind, _description in (
    ("ternary_expression", ast.IfExp, "A conditional expression: a if b else c."),
    ("break_statement", ast.Break, "A break statement."),
    ("continue_statement", ast.Continue, "A continue statement."),
    ("pass_statement", ast.Pass, "A pass statement."),
    ("await_expression", ast.Await, "An await expression."),
    ("yield_expression", ast.Yield, "A yield expression other than yield from."),
    ("yield_from", ast.YieldFrom, "A yield from expression."),
):
    GROUP.node(_name, _description)(of_type(_kind))
