"""What functions return."""

from __future__ import annotations

import ast

from daguerre.concepts.detectors import nodes
from daguerre.concepts.source import SourceText


def is_none(_: SourceText, node: ast.Return) -> bool:
    return node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)


def is_predicate(_: SourceText, node: ast.Return) -> bool:
    negated = isinstance(node.value, ast.UnaryOp) and isinstance(node.value.op, ast.Not)
    return negated or isinstance(node.value, ast.Compare | ast.BoolOp)


def is_bool(_: SourceText, node: ast.Return) -> bool:
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool)


def is_string(_: SourceText, node: ast.Return) -> bool:
    value = node.value
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


nodes("return_statement", ast.Return)
nodes("return_none", ast.Return, is_none)
nodes("return_bool", ast.Return, is_bool)
nodes("return_tuple", ast.Return, lambda _, node: isinstance(node.value, ast.Tuple))
nodes("return_call", ast.Return, lambda _, node: isinstance(node.value, ast.Call))
nodes("return_predicate", ast.Return, is_predicate)
nodes("return_string", ast.Return, is_string)
