"""Files, streams, the environment, logs and routes: uses of the outside that names alone do not tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from daguerre.concepts.detectors import concept
from daguerre.concepts.detectors.libraries import library_calls, uses
from daguerre.concepts.source import Function, Source, Span, string

GROUP = "services"
READERS = frozenset("read readline readlines read_text read_bytes".split())
WRITERS = frozenset("write writelines write_text write_bytes".split())
ENVIRONMENT = frozenset("os.environ os.environb".split())
ENVIRONMENT_CALLS = frozenset("os.getenv os.getenvb os.putenv os.unsetenv".split())
STREAMS = frozenset("sys.stdin sys.stdout sys.stderr sys.__stdin__ sys.__stdout__ sys.__stderr__".split())
ROUTES = frozenset("route get post put patch delete websocket".split())
LOG_METHODS = frozenset("debug info warn warning error critical exception log".split())
LOG_NAME = re.compile(r"(?:.*_)?log(?:ger)?_*", re.IGNORECASE | re.DOTALL)


def opens(source: Source, node: ast.expr) -> bool:
    """Whether an expression is a call of a function or method named open."""
    if not isinstance(node, ast.Call):
        return False
    return (source.resolved(node.func) or source.last_name(node.func)).rpartition(".")[2] == "open"


@concept("file_open", GROUP, "node", "A call of a function or method named open.")
def file_open(source: Source) -> Iterator[Span]:
    for call, resolved, last in source.calls:
        if (resolved or last).rpartition(".")[2] == "open":
            yield source.span(call)


@concept(
    "file_context",
    GROUP,
    "header",
    "A with statement that enters a call of a function or method named open.",
    parents=("with_statement",),
)
def file_context(source: Source) -> Iterator[Span]:
    managers: list[ast.With | ast.AsyncWith] = source.of(ast.With, ast.AsyncWith)
    for node in managers:
        if any(opens(source, item.context_expr) for item in node.items):
            yield source.header(node)


@concept("file_read", GROUP, "node", "A call of a method read, readline, readlines, read_text or read_bytes.")
def file_read(source: Source) -> Iterator[Span]:
    for call, _, last in source.calls:
        if last in READERS and isinstance(call.func, ast.Attribute):
            yield source.span(call)


@concept("file_write", GROUP, "node", "A call of a method write, writelines, write_text or write_bytes.")
def file_write(source: Source) -> Iterator[Span]:
    for call, _, last in source.calls:
        if last in WRITERS and isinstance(call.func, ast.Attribute):
            yield source.span(call)


@concept(
    "env_var_access",
    GROUP,
    "node",
    "The name os.environ or os.environb, or a call of os.getenv, getenvb, putenv or unsetenv.",
)
def env_var_access(source: Source) -> Iterator[Span]:
    for node, name in uses(source).get("os", ()):
        if name in ENVIRONMENT:
            yield source.span(node)
    for call, name in library_calls(source).get("os", ()):
        if name in ENVIRONMENT_CALLS:
            yield source.span(call)


@concept(
    "std_stream_access", GROUP, "node", "The name sys.stdin, sys.stdout or sys.stderr, or one like sys.__stdout__."
)
def std_stream_access(source: Source) -> Iterator[Span]:
    for node, name in uses(source).get("sys", ()):
        if name in STREAMS:
            yield source.span(node)


@concept(
    "web_route",
    GROUP,
    "node",
    "A decorator calling a method route, get, post, put, patch, delete or websocket with a '/...' string.",
)
def web_route(source: Source) -> Iterator[Span]:
    functions: list[Function] = source.of(ast.FunctionDef, ast.AsyncFunctionDef)
    for node in functions:
        for mark in node.decorator_list:
            if (
                isinstance(mark, ast.Call)
                and isinstance(mark.func, ast.Attribute)
                and mark.func.attr in ROUTES
                and mark.args
                and (string(mark.args[0]) or "").startswith("/")
            ):
                yield source.span(mark)


@concept(
    "log_call",
    GROUP,
    "node",
    "A call of debug, info, warn, warning, error, critical, exception or log of a log, logger or logging.",
)
def log_call(source: Source) -> Iterator[Span]:
    of_module = {
        call for call, name in library_calls(source).get("logging", ()) if name.removeprefix("logging.") in LOG_METHODS
    }
    for call, _, last in source.calls:
        named = (
            last in LOG_METHODS
            and isinstance(call.func, ast.Attribute)
            and LOG_NAME.fullmatch(source.last_name(call.func.value)) is not None
        )
        if named or call in of_module:
            yield source.span(call)
