"""Branches, context managers, and what suspends or leaves a block. Loops are in `loops`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import concept, headers, nodes
from daguerre.concepts.nodes import SCOPES
from daguerre.concepts.source import SourceText, Span

Block = ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.TryStar | ast.Match
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
WITHS = (ast.With, ast.AsyncWith)
DEEP = 2
"""Blocks around a block that make it deeply nested."""


def is_elif(source: SourceText, node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and source.text.startswith("elif", source.span(node)[0])


def is_negated(_: SourceText, node: ast.If) -> bool:
    return isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)


headers("if_statement", ast.If)
headers("elif_chain", ast.If, is_elif)
headers("negated_condition", ast.If, is_negated)
headers("match_statement", ast.Match)
headers("with_statement", WITHS)
headers("multi_with", WITHS, lambda _, node: len(node.items) > 1)
headers("async_with", ast.AsyncWith)
nodes("ternary_expression", ast.IfExp)
nodes("break_statement", ast.Break)
nodes("continue_statement", ast.Continue)
nodes("pass_statement", ast.Pass)
nodes("await_expression", ast.Await)
nodes("yield_expression", ast.Yield)
nodes("yield_from", ast.YieldFrom)


@concept
def if_else(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.If):
        if node.orelse and not is_elif(source, node.orelse[0]):
            yield source.clause("else", node.orelse)


@concept
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
