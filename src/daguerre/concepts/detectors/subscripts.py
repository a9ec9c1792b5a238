"""Subscripts by what is between their brackets."""

from __future__ import annotations

import ast

from daguerre.concepts.detectors import nodes
from daguerre.concepts.source import SourceText, string


def is_int(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def is_negative(_: SourceText, node: ast.Subscript) -> bool:
    index = node.slice
    return isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) and is_int(index.operand)


def has_slice(_: SourceText, node: ast.Subscript) -> bool:
    indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(one, ast.Slice) for one in indices)


def is_multiple(_: SourceText, node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Tuple) and len(node.slice.elts) > 1


nodes("subscript", ast.Subscript)
nodes("slicing", ast.Subscript, has_slice)
nodes("constant_index", ast.Subscript, lambda _, node: is_int(node.slice))
nodes("negative_index", ast.Subscript, is_negative)
nodes("string_key_access", ast.Subscript, lambda _, node: string(node.slice) is not None)
nodes("multi_index", ast.Subscript, is_multiple)
