"""Statements and calls that raise, warn or end the program."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import Detector
from daguerre.concepts.detectors.errors import GROUP
from daguerre.concepts.source import SourceText, Span

WARN = {"warnings.warn", "warnings.warn_explicit"}
EXIT = {"sys.exit", "os._exit", "builtins.exit", "builtins.quit"}


def raised(node: ast.Raise) -> ast.expr | None:
    """The class of an exception that is raised: `E` of `raise E` and `raise E(x)`."""
    return node.exc.func if isinstance(node.exc, ast.Call) else node.exc


@GROUP.node("raise_statement", "A raise statement.")
def raise_statement(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Raise):
        yield source.span(node)


@GROUP.node("raise_from", "A raise statement with from.", parents=("raise_statement",))
def raise_from(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Raise):
        if node.cause is not None:
            yield source.span(node)


@GROUP.node("reraise", "A raise statement that names no exception.", parents=("raise_statement",))
def reraise(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Raise):
        if node.exc is None:
            yield source.span(node)


def raises(names: frozenset[str]) -> Detector:
    """Raise statements of one of these built-ins, or of a call of it."""
    wanted = {f"builtins.{name}" for name in names}

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.of(ast.Raise):
            if source.names.means(raised(node), wanted):
                yield source.span(node)

    return detect


RAISED = (
    ("raises_value_error", "ValueError"),
    ("raises_type_error", "TypeError"),
    ("raises_key_error", "KeyError"),
    ("raises_runtime_error", "RuntimeError"),
    ("raises_attribute_error", "AttributeError"),
    ("raises_index_error", "IndexError"),
    ("raises_stop_iteration", "StopIteration or StopAsyncIteration"),
    ("not_implemented", "NotImplementedError"),
)
for _name, _what in RAISED:
    GROUP.node(_name, f"A raise statement of {_what}, or of a call of it.", parents=("raise_statement",))(
        raises(frozenset(_what.split(" or ")))
    )


@GROUP.header(
    "input_validation",
    "The header of an if or elif whose body ends with a raise statement that names an exception.",
    parents=("if_statement",),
)
def input_validation(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.If):
        last = node.body[-1]
        if isinstance(last, ast.Raise) and last.exc is not None:
            yield source.header(node)


@GROUP.node("assert_statement", "An assert statement.")
def assert_statement(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Assert):
        yield source.span(node)


@GROUP.node("warning_call", "A call of warnings.warn or warnings.warn_explicit.")
def warning_call(source: SourceText) -> Iterator[Span]:
    for call, name in source.names.calls("warnings"):
        if name in WARN:
            yield source.span(call)


@GROUP.node("program_exit", "A call of sys.exit, os._exit, exit or quit, or a raise of SystemExit.")
def program_exit(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if source.names.means(call.func, EXIT):
            yield source.span(call)
    for node in source.of(ast.Raise):
        if source.names.means(raised(node), ("builtins.SystemExit",)):
            yield source.span(node)
