"""Arrays and the libraries for them, as far as the imports of a file tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.source import SourceText, Span

GROUP = ConceptGroup("science")
ARRAY_LIBRARIES = frozenset("numpy scipy pandas torch jax".split())
ARRAY_ATTRIBUTES = frozenset("shape dtype ndim T".split())
ARRAY_ARGUMENTS = frozenset("axis dtype shape keepdims device".split())


def has_arrays(source: SourceText) -> bool:
    """Whether the file imports a library of arrays, or a part of one."""
    plain = (alias.name for node in source.of(ast.Import) for alias in node.names)
    parts = (node.module or "" for node in source.of(ast.ImportFrom) if node.level == 0)
    return any(name.partition(".")[0] in ARRAY_LIBRARIES for names in (plain, parts) for name in names)


for _name, _library, _parents in (
    ("numpy_call", "numpy", ()),
    ("numpy_random_call", "numpy.random", ("numpy_call",)),
    ("scipy_call", "scipy", ()),
    ("pandas_call", "pandas", ()),
):
    GROUP.node(_name, f"A call of anything of {_library}.", parents=_parents)(calls_of(f"{_library}.*"))


@GROUP.node("linear_algebra_call", "A call of something in a module named linalg, through an import.")
def linear_algebra_call(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if any("linalg" in name.split(".")[:-1] for name in source.names.meanings(call.func)):
            yield source.span(call)


@GROUP.node(
    "array_attribute",
    "A .shape, .dtype, .ndim or .T of no import, if the file imports numpy, scipy, pandas, torch or jax.",
)
def array_attribute(source: SourceText) -> Iterator[Span]:
    if has_arrays(source):
        for node in source.of(ast.Attribute):
            if node.attr in ARRAY_ATTRIBUTES and not source.names.meanings(node):
                yield source.span(node)


@GROUP.node(
    "array_kwarg",
    "axis=, dtype=, shape=, keepdims= or device= if the file imports numpy, scipy, pandas, torch or jax.",
    parents=("keyword_argument",),
)
def array_kwarg(source: SourceText) -> Iterator[Span]:
    if has_arrays(source):
        for call in source.of(ast.Call):
            for one in call.keywords:
                if one.arg in ARRAY_ARGUMENTS:
                    yield source.span(one)
