"""Statements and calls that raise, warn or end the program."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import Holds, add, concept, headers, nodes
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.source import SourceText, Span

EXIT = {"sys.exit", "os._exit", "builtins.exit", "builtins.quit"}


def raised(node: ast.Raise) -> ast.expr | None:
    """The class of an exception that is raised: `E` of `raise E` and `raise E(x)`."""
    return node.exc.func if isinstance(node.exc, ast.Call) else node.exc


def raises(*names: str) -> Holds:
    """Raise statements of one of these built-ins, or of a call of it."""
    wanted = {f"builtins.{name}" for name in names}
    return lambda source, node: source.names.means(raised(node), wanted)


def validates(_: SourceText, node: ast.If) -> bool:
    last = node.body[-1]
    return isinstance(last, ast.Raise) and last.exc is not None


nodes("raise_statement", ast.Raise)
nodes("raise_from", ast.Raise, lambda _, node: node.cause is not None)
nodes("reraise", ast.Raise, lambda _, node: node.exc is None)
nodes("raises_value_error", ast.Raise, raises("ValueError"))
nodes("raises_type_error", ast.Raise, raises("TypeError"))
nodes("raises_key_error", ast.Raise, raises("KeyError"))
nodes("raises_runtime_error", ast.Raise, raises("RuntimeError"))
nodes("raises_attribute_error", ast.Raise, raises("AttributeError"))
nodes("raises_index_error", ast.Raise, raises("IndexError"))
nodes("raises_stop_iteration", ast.Raise, raises("StopIteration", "StopAsyncIteration"))
nodes("not_implemented", ast.Raise, raises("NotImplementedError"))
headers("input_validation", ast.If, validates)
nodes("assert_statement", ast.Assert)
add("warning_call", calls_of("warnings.warn warnings.warn_explicit"))


@concept
def program_exit(source: SourceText) -> Iterator[Span]:
    yield from (source.span(call) for call in source.of(ast.Call) if source.names.means(call.func, EXIT))
    for node in source.of(ast.Raise):
        if source.names.means(raised(node), ("builtins.SystemExit",)):
            yield source.span(node)
