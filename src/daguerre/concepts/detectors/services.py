"""Files, streams, the environment, logs and routes: uses of the outside that names alone do not tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from daguerre.concepts.detectors import add, concept, headers, nodes
from daguerre.concepts.detectors.control import WITHS
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.source import SourceText, Span, string

ENVIRONMENT = frozenset("os.environ os.environb".split())
ENVIRONMENT_CALLS = frozenset("os.getenv os.getenvb os.putenv os.unsetenv".split())
STREAMS = frozenset("sys.stdin sys.stdout sys.stderr sys.__stdin__ sys.__stdout__ sys.__stderr__".split())
ROUTES = frozenset("route get post put patch delete websocket".split())
LOG_METHODS = frozenset("debug info warn warning error critical exception log".split())
LOG_NAME = re.compile(r"(?:.*_)?log(?:ger)?_*", re.IGNORECASE | re.DOTALL)


def opens(source: SourceText, node: ast.expr) -> bool:
    """Whether an expression is a call of a function or method named open."""
    return isinstance(node, ast.Call) and "open" in source.names.last(node.func)


nodes("file_open", ast.Call, opens)
headers("file_context", WITHS, lambda source, node: any(opens(source, item.context_expr) for item in node.items))
add("file_read", calls_of("", "read readline readlines read_text read_bytes"))
add("file_write", calls_of("", "write writelines write_text write_bytes"))


@concept
def env_var_access(source: SourceText) -> Iterator[Span]:
    for node, name in source.names.uses("os"):
        if name in ENVIRONMENT:
            yield source.span(node)
    for call, name in source.names.calls("os"):
        if name in ENVIRONMENT_CALLS:
            yield source.span(call)


@concept
def std_stream_access(source: SourceText) -> Iterator[Span]:
    for node, name in source.names.uses("sys"):
        if name in STREAMS:
            yield source.span(node)


def is_route(mark: ast.expr) -> bool:
    return (
        isinstance(mark, ast.Call)
        and isinstance(mark.func, ast.Attribute)
        and mark.func.attr in ROUTES
        and bool(mark.args)
        and (string(mark.args[0]) or "").startswith("/")
    )


@concept
def web_route(source: SourceText) -> Iterator[Span]:
    return (source.span(mark) for node in source.functions for mark in node.decorator_list if is_route(mark))


@concept
def log_call(source: SourceText) -> Iterator[Span]:
    for call, name in source.names.calls("logging"):
        if name.removeprefix("logging.") in LOG_METHODS:
            yield source.span(call)
    for call in source.method_calls(LOG_METHODS):
        if isinstance(call.func, ast.Attribute) and LOG_NAME.fullmatch(source.last_name(call.func.value)):
            yield source.span(call)
