"""The parts of try statements, and which exceptions they handle."""

from __future__ import annotations

import ast
import tokenize
from bisect import bisect_left
from collections.abc import Iterator

from daguerre.concepts.detectors import Detector, concept
from daguerre.concepts.source import Source, Span

GROUP = "errors"
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


def clauses(source: Source, keyword: str, bodies: list[list[ast.stmt]]) -> Iterator[Span]:
    """From the keyword of each clause, the last before its body, to the end of the body."""
    if not bodies:
        return
    tokens = (one for one in source.tokens if one.string == keyword and one.type == tokenize.NAME)
    places = [source.token_span(one)[0] for one in tokens]
    for body in bodies:
        first = body[0]
        start = source.span(first)[0]
        if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and first.decorator_list:
            start = source.text.rindex("@", 0, source.span(first.decorator_list[0])[0])
        yield places[bisect_left(places, start) - 1], source.span(body[-1])[1]


@concept("try_block", GROUP, "header", "The try and colon that start a try statement.")
def try_block(source: Source) -> Iterator[Span]:
    tries: list[Try] = source.of(ast.Try, ast.TryStar)
    for node in tries:
        yield source.header(node)


@concept("try_else", GROUP, "node", "The else clause of a try statement, from its keyword to its end.")
def try_else(source: Source) -> Iterator[Span]:
    tries: list[Try] = source.of(ast.Try, ast.TryStar)
    yield from clauses(source, "else", [node.orelse for node in tries if node.orelse])


@concept("finally_block", GROUP, "node", "The finally clause of a try statement, from its keyword to its end.")
def finally_block(source: Source) -> Iterator[Span]:
    tries: list[Try] = source.of(ast.Try, ast.TryStar)
    yield from clauses(source, "finally", [node.finalbody for node in tries if node.finalbody])


@concept("except_handler", GROUP, "node", "An except clause, with its body.")
def except_handler(source: Source) -> Iterator[Span]:
    for node in source.of(ast.ExceptHandler):
        yield source.span(node)


@concept(
    "except_as",
    GROUP,
    "header",
    "The header of an except clause that names the exception with as.",
    parents=("except_handler",),
)
def except_as(source: Source) -> Iterator[Span]:
    for node in source.of(ast.ExceptHandler):
        if node.name is not None:
            yield source.header(node)


@concept(
    "multi_except",
    GROUP,
    "header",
    "The header of an except clause for a tuple of two or more exceptions.",
    parents=("except_handler",),
)
def multi_except(source: Source) -> Iterator[Span]:
    for node in source.of(ast.ExceptHandler):
        if len(exceptions(node)) > 1:
            yield source.header(node)


def handles(names: frozenset[str]) -> Detector:
    """Headers of except clauses that name one of these, and mean the built-in: it is not imported."""

    def detect(source: Source) -> Iterator[Span]:
        for node in source.of(ast.ExceptHandler):
            if any(source.resolved(one) in names for one in exceptions(node)):
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
    concept(
        _name,
        GROUP,
        "header",
        f"The header of an except clause that names {_what}.",
        parents=("except_handler",),
    )(handles(frozenset(_names)))
