"""Comprehensions and generator expressions."""

from __future__ import annotations

import ast

from daguerre.concepts.detectors import nodes
from daguerre.concepts.nodes import COMPREHENSIONS, Comprehension
from daguerre.concepts.source import SourceText

nodes("list_comprehension", ast.ListComp)
nodes("dict_comprehension", ast.DictComp)
nodes("set_comprehension", ast.SetComp)
nodes("generator_expression", ast.GeneratorExp)
nodes("filtered_comprehension", COMPREHENSIONS, lambda _, node: any(one.ifs for one in node.generators))


def is_nested(_: SourceText, node: Comprehension) -> bool:
    elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
    return len(node.generators) > 1 or any(isinstance(one, COMPREHENSIONS) for one in elements)


nodes("nested_comprehension", COMPREHENSIONS, is_nested)
