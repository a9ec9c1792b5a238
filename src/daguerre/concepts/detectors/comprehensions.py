"""Comprehensions and generator expressions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors.control import of_type
from daguerre.concepts.detectors.operators import GROUP
from daguerre.concepts.nodes import COMPREHENSIONS, Comprehension
from daguerre.concepts.source import SourceText, Span

for _name, _kind, _description in (
    ("list_comprehension", ast.ListComp, "A list comprehension."),
    ("dict_comprehension", ast.DictComp, "A dict comprehension."),
    ("set_comprehension", ast.SetComp, "A set comprehension."),
    ("generator_expression", ast.GeneratorExp, "A generator expression, with the parentheses around it."),
):
    GROUP.node(_name, _description)(of_type(_kind))


def comprehensions(source: SourceText) -> list[Comprehension]:
    return source.of(*COMPREHENSIONS)


@GROUP.node("filtered_comprehension", "A comprehension or generator expression with an if clause.")
def filtered_comprehension(source: SourceText) -> Iterator[Span]:
    for node in comprehensions(source):
        if any(one.ifs for one in node.generators):
            yield source.span(node)


@GROUP.node(
    "nested_comprehension",
    "A comprehension with two or more for clauses, or with another one as its element, key or value.",
)
def nested_comprehension(source: SourceText) -> Iterator[Span]:
    for node in comprehensions(source):
        elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        if len(node.generators) > 1 or any(isinstance(one, COMPREHENSIONS) for one in elements):
            yield source.span(node)
