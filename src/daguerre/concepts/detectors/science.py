"""Arrays and the libraries for them, as far as the imports of a file tell."""

from __future__ import annotations

import ast

from daguerre.concepts.detectors import add, nodes
from daguerre.concepts.detectors.calls import argument
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.source import SourceText, once

ARRAY_LIBRARIES = frozenset("numpy scipy pandas torch jax".split())
ARRAY_ATTRIBUTES = frozenset("shape dtype ndim T".split())
ARRAY_ARGUMENTS = frozenset("axis dtype shape keepdims device".split())


@once
def has_arrays(source: SourceText) -> bool:
    """Whether the file imports a library of arrays, or a part of one."""
    plain = (alias.name for node in source.of(ast.Import) for alias in node.names)
    parts = (node.module or "" for node in source.of(ast.ImportFrom) if node.level == 0)
    return any(name.partition(".")[0] in ARRAY_LIBRARIES for names in (plain, parts) for name in names)


def is_linear_algebra(source: SourceText, call: ast.Call) -> bool:
    return any("linalg" in name.split(".")[:-1] for name in source.names.meanings(call.func))


def is_of_array(source: SourceText, node: ast.Attribute) -> bool:
    return node.attr in ARRAY_ATTRIBUTES and has_arrays(source) and not source.names.meanings(node)


add("numpy_call", calls_of("numpy.*"))
add("numpy_random_call", calls_of("numpy.random.*"))
add("scipy_call", calls_of("scipy.*"))
add("pandas_call", calls_of("pandas.*"))
nodes("linear_algebra_call", ast.Call, is_linear_algebra)
nodes("array_attribute", ast.Attribute, is_of_array)
argument("array_kwarg", lambda source, one: one.arg in ARRAY_ARGUMENTS and has_arrays(source))
