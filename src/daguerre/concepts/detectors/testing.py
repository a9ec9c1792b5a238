"""Tests: unittest, pytest and mocks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import concept
from daguerre.concepts.source import Function, Source, Span

GROUP = "testing"
FIXTURES = frozenset(("pytest.fixture", "pytest_asyncio.fixture"))
RAISES = frozenset(("assertRaises", "assertRaisesRegex"))


def functions(source: Source) -> list[Function]:
    return source.of(ast.FunctionDef, ast.AsyncFunctionDef)


def through_import(source: Source, node: ast.expr) -> str:
    """The dotted name of a node as the file imports it; "" if its root came with no import."""
    return source.resolved(node) if source.name(node).partition(".")[0] in source.imported else ""


@concept(
    "test_function",
    GROUP,
    "header",
    "A function or method, async or not, whose name starts with test.",
    parents=("function_def",),
)
def test_function(source: Source) -> Iterator[Span]:
    for node in functions(source):
        if node.name.startswith("test"):
            yield source.header(node)


@concept(
    "assert_method",
    GROUP,
    "node",
    "A call on anything of an attribute named assert and then an upper-case letter or underscore.",
    parents=("method_call",),
)
def assert_method(source: Source) -> Iterator[Span]:
    for call, _, last in source.calls:
        if last.startswith("assert") and isinstance(call.func, ast.Attribute):
            following = last[6:7]
            if following == "_" or following.isupper():
                yield source.span(call)


@concept(
    "assert_raises_context",
    GROUP,
    "header",
    "A with statement on .assertRaises() or .assertRaisesRegex() of anything, or on pytest.raises().",
    parents=("with_statement",),
)
def assert_raises_context(source: Source) -> Iterator[Span]:
    for node in source.of(ast.With):
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and (
                (isinstance(call.func, ast.Attribute) and call.func.attr in RAISES)
                or through_import(source, call.func) == "pytest.raises"
            ):
                yield source.header(node)
                break


@concept(
    "mocking", GROUP, "node", "A call in mock or unittest.mock through an import, or on the name monkeypatch or mocker."
)
def mocking(source: Source) -> Iterator[Span]:
    for call, resolved, _ in source.calls:
        if resolved.startswith(("mock.", "unittest.mock.")):
            if through_import(source, call.func):
                yield source.span(call)
        elif resolved.startswith(("monkeypatch.", "mocker.")):
            if not through_import(source, call.func):
                yield source.span(call)


@concept("pytest_call", GROUP, "node", "A call of a name or dotted name that an import makes part of pytest.")
def pytest_call(source: Source) -> Iterator[Span]:
    for call, resolved, _ in source.calls:
        if resolved.startswith("pytest.") and through_import(source, call.func):
            yield source.span(call)


@concept(
    "pytest_fixture",
    GROUP,
    "node",
    "A decorator of a function that is or calls fixture of pytest or pytest_asyncio, as imported.",
    parents=("decorator",),
)
def pytest_fixture(source: Source) -> Iterator[Span]:
    for node in functions(source):
        for decorator in node.decorator_list:
            if through_import(source, decorator.func if isinstance(decorator, ast.Call) else decorator) in FIXTURES:
                yield source.span(decorator)


@concept(
    "pytest_parametrize",
    GROUP,
    "node",
    "A call of pytest.mark.parametrize, through an import.",
    parents=("pytest_call",),
)
def pytest_parametrize(source: Source) -> Iterator[Span]:
    for call, resolved, _ in source.calls:
        if resolved == "pytest.mark.parametrize" and through_import(source, call.func):
            yield source.span(call)
