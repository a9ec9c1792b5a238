"""The parts of try statements, and which exceptions they handle."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import ConceptGroup, Detector
from daguerre.concepts.source import SourceText, Span

GROUP = ConceptGroup("errors")
Try = ast.Try | ast.TryStar
OS_ERRORS = frozenset(
    """OSError IOError EnvironmentError WindowsError BlockingIOError ChildProcessError ConnectionError BrokenPipeError
    ConnectionAbortedError ConnectionRefusedError ConnectionResetError FileExistsError FileNotFoundError
    InterruptedError IsADirectoryError NotADirectoryError PermissionError ProcessLookupError TimeoutError""".split()
)


def exceptions(node: ast.ExceptHandler) -> list[ast.expr]:
    """What an except clause catches, one by one."""
    if isinstance(node.type, ast.Tuple):
        return node.type.elts
    return [] if node.type is None else [node.type]


def tries(source: SourceText) -> list[Try]:
    return source.of(ast.Try, ast.TryStar)


@GROUP.header("try_block", "The try and colon that start a try statement.")
def try_block(source: SourceText) -> Iterator[Span]:
    for node in tries(source):
        yield source.header(node)


@GROUP.header("try_else", "The keyword else and the colon of a try statement's else block.")
def try_else(source: SourceText) -> Iterator[Span]:
    for node in tries(source):
        if node.orelse:
            yield source.clause("else", node.orelse)


@GROUP.header("finally_block", "The keyword finally and the colon of a try statement's finally block.")
def finally_block(source: SourceText) -> Iterator[Span]:
    for node in tries(source):
        if node.finalbody:
            yield source.clause("finally", node.finalbody)


@GROUP.node("except_handler", "An except clause, with its body.")
def except_handler(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ExceptHandler):
        yield source.span(node)


@GROUP.header(
    "except_as", "The header of an except clause that names the exception with as.", parents=("except_handler",)
)
def except_as(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ExceptHandler):
        if node.name is not None:
            yield source.header(node)


@GROUP.header(
    "multi_except", "The header of an except clause for a tuple of two or more exceptions.", parents=("except_handler",)
)
def multi_except(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ExceptHandler):
        if len(exceptions(node)) > 1:
            yield source.header(node)


def handles(names: frozenset[str]) -> Detector:
    """Headers of except clauses that name one of these built-ins."""
    wanted = {f"builtins.{name}" for name in names}

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.of(ast.ExceptHandler):
            if any(source.names.means(one, wanted) for one in exceptions(node)):
                yield source.header(node)

    return detect


HANDLED = (
    ("broad_except", "Exception or BaseException", {"Exception", "BaseException"}),
    ("handles_key_error", "KeyError", {"KeyError"}),
    ("handles_os_error", "OSError, or a built-in alias or subclass of it", OS_ERRORS),
    ("handles_value_error", "ValueError", {"ValueError"}),
    ("handles_type_error", "TypeError", {"TypeError"}),
    ("handles_attribute_error", "AttributeError", {"AttributeError"}),
    ("handles_index_error", "IndexError", {"IndexError"}),
    ("handles_stop_iteration", "StopIteration or StopAsyncIteration", {"StopIteration", "StopAsyncIteration"}),
)
for _name, _what, _names in HANDLED:
    GROUP.header(_name, f"The header of an except clause that names {_what}.", parents=("except_handler",))(
        handles(frozenset(_names))
    )
