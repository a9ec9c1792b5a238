"""The parts of try statements, and which exceptions they handle."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import Holds, concept, headers, nodes
from daguerre.concepts.source import SourceText, Span

TRIES = (ast.Try, ast.TryStar)
OS_ERRORS = """OSError IOError EnvironmentError WindowsError BlockingIOError ChildProcessError ConnectionError
    BrokenPipeError ConnectionAbortedError ConnectionRefusedError ConnectionResetError FileExistsError FileNotFoundError
    InterruptedError IsADirectoryError NotADirectoryError PermissionError ProcessLookupError TimeoutError"""


def exceptions(node: ast.ExceptHandler) -> list[ast.expr]:
    """What an except clause catches, one by one."""
    if isinstance(node.type, ast.Tuple):
        return node.type.elts
    return [] if node.type is None else [node.type]


def tries(source: SourceText) -> list[ast.Try | ast.TryStar]:
    return source.of(*TRIES)


headers("try_block", TRIES)
nodes("except_handler", ast.ExceptHandler)
headers("except_as", ast.ExceptHandler, lambda _, node: node.name is not None)
headers("multi_except", ast.ExceptHandler, lambda _, node: len(exceptions(node)) > 1)


@concept
def try_else(source: SourceText) -> Iterator[Span]:
    return (source.clause("else", node.orelse) for node in tries(source) if node.orelse)


@concept
def finally_block(source: SourceText) -> Iterator[Span]:
    return (source.clause("finally", node.finalbody) for node in tries(source) if node.finalbody)


def handles(names: str) -> Holds:
    """Except clauses that name one of these built-ins."""
    wanted = {f"builtins.{name}" for name in names.split()}
    return lambda source, node: any(source.names.means(one, wanted) for one in exceptions(node))


for _name, _names in {
    "broad_except": "Exception BaseException",
    "handles_key_error": "KeyError",
    "handles_os_error": OS_ERRORS,
    "handles_value_error": "ValueError",
    "handles_type_error": "TypeError",
    "handles_attribute_error": "AttributeError",
    "handles_index_error": "IndexError",
    "handles_stop_iteration": "StopIteration StopAsyncIteration",
}.items():
    headers(_name, ast.ExceptHandler, handles(_names))
