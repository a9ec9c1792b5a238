"""Arrays and the libraries for them, as far as the imports of a file tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import concept
from daguerre.concepts.source import Source, Span

GROUP = "science"
ARRAY_LIBRARIES = frozenset("numpy scipy pandas torch jax".split())
ARRAY_ATTRIBUTES = frozenset("shape dtype ndim T".split())
ARRAY_ARGUMENTS = frozenset("axis dtype shape keepdims device".split())


def imported(source: Source, node: ast.expr) -> bool:
    """Whether the root of a dotted name came with an import."""
    return source.name(node).partition(".")[0] in source.imported


def has_arrays(source: Source) -> bool:
    """Whether the file imports a library of arrays, or a part of one."""
    plain = (alias.name for node in source.of(ast.Import) for alias in node.names)
    parts = (node.module or "" for node in source.of(ast.ImportFrom) if node.level == 0)
    return any(name.partition(".")[0] in ARRAY_LIBRARIES for names in (plain, parts) for name in names)


def _library_call(name: str, description: str, prefix: str, parents: tuple[str, ...] = ()) -> None:
    def detect(source: Source) -> Iterator[Span]:
        for call, resolved, _ in source.calls:
            if resolved.startswith(prefix) and imported(source, call.func):
                yield source.span(call)

    concept(name, GROUP, "node", description, parents=parents)(detect)


_library_call("numpy_call", "A call of a name or dotted name that an import makes part of numpy.", "numpy.")
_library_call(
    "numpy_random_call",
    "A call of a name or dotted name that an import makes part of numpy.random.",
    "numpy.random.",
    ("numpy_call",),
)
_library_call("scipy_call", "A call of a name or dotted name that an import makes part of scipy.", "scipy.")
_library_call("pandas_call", "A call of a name or dotted name that an import makes part of pandas.", "pandas.")


@concept("linear_algebra_call", GROUP, "node", "A call of something in a module named linalg, through an import.")
def linear_algebra_call(source: Source) -> Iterator[Span]:
    for call, resolved, _ in source.calls:
        if "linalg" in resolved and "linalg" in resolved.split(".")[:-1] and imported(source, call.func):
            yield source.span(call)


@concept(
    "array_attribute",
    GROUP,
    "node",
    "A .shape, .dtype, .ndim or .T of no import, if the file imports numpy, scipy, pandas, torch or jax.",
)
def array_attribute(source: Source) -> Iterator[Span]:
    if has_arrays(source):
        for node in source.of(ast.Attribute):
            if node.attr in ARRAY_ATTRIBUTES and not imported(source, node):
                yield source.span(node)


@concept(
    "array_kwarg",
    GROUP,
    "node",
    "axis=, dtype=, shape=, keepdims= or device= if the file imports numpy, scipy, pandas, torch or jax.",
    parents=("keyword_argument",),
)
def array_kwarg(source: Source) -> Iterator[Span]:
    if has_arrays(source):
        for call in source.of(ast.Call):
            for one in call.keywords:
                if one.arg in ARRAY_ARGUMENTS:
                    yield source.span(one)
