"""Files, streams, the environment, logs and routes: uses of the outside that names alone do not tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.detectors.control import with_statements
from daguerre.concepts.source import SourceText, Span, string

GROUP = ConceptGroup("services")
READERS = "read readline readlines read_text read_bytes".split()
WRITERS = "write writelines write_text write_bytes".split()
ENVIRONMENT = frozenset("os.environ os.environb".split())
ENVIRONMENT_CALLS = frozenset("os.getenv os.getenvb os.putenv os.unsetenv".split())
STREAMS = frozenset("sys.stdin sys.stdout sys.stderr sys.__stdin__ sys.__stdout__ sys.__stderr__".split())
ROUTES = frozenset("route get post put patch delete websocket".split())
LOG_METHODS = frozenset("debug info warn warning error critical exception log".split())
LOG_NAME = re.compile(r"(?:.*_)?log(?:ger)?_*", re.IGNORECASE | re.DOTALL)


def opens(source: SourceText, node: ast.expr) -> bool:
    """Whether an expression is a call of a function or method named open."""
    return isinstance(node, ast.Call) and "open" in source.names.last(node.func)


@GROUP.node("file_open", "A call of a function or method named open.")
def file_open(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if opens(source, call):
            yield source.span(call)


@GROUP.header(
    "file_context",
    "A with statement that enters a call of a function or method named open.",
    parents=("with_statement",),
)
def file_context(source: SourceText) -> Iterator[Span]:
    for node in with_statements(source):
        if any(opens(source, item.context_expr) for item in node.items):
            yield source.header(node)


@GROUP.node("file_read", "A call of a method read, readline, readlines, read_text or read_bytes.")
def file_read(source: SourceText) -> Iterator[Span]:
    for call in source.method_calls(READERS):
        yield source.span(call)


@GROUP.node("file_write", "A call of a method write, writelines, write_text or write_bytes.")
def file_write(source: SourceText) -> Iterator[Span]:
    for call in source.method_calls(WRITERS):
        yield source.span(call)


@GROUP.node(
    "env_var_access", "The name os.environ or os.environb, or a call of os.getenv, getenvb, putenv or unsetenv."
)
def env_var_access(source: SourceText) -> Iterator[Span]:
    for node, name in source.names.uses("os"):
        if name in ENVIRONMENT:
            yield source.span(node)
    for call, name in source.names.calls("os"):
        if name in ENVIRONMENT_CALLS:
            yield source.span(call)


@GROUP.node("std_stream_access", "The name sys.stdin, sys.stdout or sys.stderr, or one like sys.__stdout__.")
def std_stream_access(source: SourceText) -> Iterator[Span]:
    for node, name in source.names.uses("sys"):
        if name in STREAMS:
            yield source.span(node)


@GROUP.node(
    "web_route", "A decorator calling a method route, get, post, put, patch, delete or websocket with a '/...' string."
)
def web_route(source: SourceText) -> Iterator[Span]:
    for node in source.functions:
        for mark in node.decorator_list:
            if (
                isinstance(mark, ast.Call)
                and isinstance(mark.func, ast.Attribute)
                and mark.func.attr in ROUTES
                and mark.args
                and (string(mark.args[0]) or "").startswith("/")
            ):
                yield source.span(mark)


@GROUP.node(
    "log_call", "A call of debug, info, warn, warning, error, critical, exception or log of a log, logger or logging."
)
def log_call(source: SourceText) -> Iterator[Span]:
    for call, name in source.names.calls("logging"):
        if name.removeprefix("logging.") in LOG_METHODS:
            yield source.span(call)
    for call in source.method_calls(LOG_METHODS):
        if isinstance(call.func, ast.Attribute) and LOG_NAME.fullmatch(source.last_name(call.func.value)):
            yield source.span(call)
