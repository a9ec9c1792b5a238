"""Tests: unittest, pytest and mocks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.source import SourceText, Span

GROUP = ConceptGroup("testing")
FIXTURES = frozenset(("pytest.fixture", "pytest_asyncio.fixture"))
PATCHERS = frozenset(("monkeypatch", "mocker"))
RAISES = frozenset(("assertRaises", "assertRaisesRegex"))


@GROUP.header(
    "test_function", "A function or method, async or not, whose name starts with test.", parents=("function_def",)
)
def test_function(source: SourceText) -> Iterator[Span]:
    for node in source.functions:
        if node.name.startswith("test"):
            yield source.header(node)


@GROUP.node(
    "assert_method",
    "A call on anything of an attribute named assert and then an upper-case letter or underscore.",
    parents=("method_call",),
)
def assert_method(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr.startswith("assert"):
            following = call.func.attr[6:7]
            if following == "_" or following.isupper():
                yield source.span(call)


@GROUP.header(
    "assert_raises_context",
    "A with statement on .assertRaises() or .assertRaisesRegex() of anything, or on pytest.raises().",
    parents=("with_statement",),
)
def assert_raises_context(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.With):
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and (
                (isinstance(call.func, ast.Attribute) and call.func.attr in RAISES)
                or source.names.means(call.func, ("pytest.raises",))
            ):
                yield source.header(node)
                break


_mock_call = calls_of("mock.* unittest.mock.*")


@GROUP.node("mocking", "A call in mock or unittest.mock through an import, or on the name monkeypatch or mocker.")
def mocking(source: SourceText) -> Iterator[Span]:
    yield from _mock_call(source)
    for call in source.of(ast.Call):
        root = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        patcher = isinstance(root, ast.Name) and root.id in PATCHERS and root is not call.func
        if patcher and not source.names.meanings(root):
            yield source.span(call)


GROUP.node("pytest_call", "A call of anything of pytest.")(calls_of("pytest.*"))


@GROUP.node(
    "pytest_fixture",
    "A decorator of a function that is or calls fixture of pytest or pytest_asyncio, as imported.",
    parents=("decorator",),
)
def pytest_fixture(source: SourceText) -> Iterator[Span]:
    for node in source.functions:
        for decorator in node.decorator_list:
            if source.names.means(decorator.func if isinstance(decorator, ast.Call) else decorator, FIXTURES):
                yield source.span(decorator)


GROUP.node("pytest_parametrize", "A call of pytest.mark.parametrize.", parents=("pytest_call",))(
    calls_of("pytest.mark.parametrize")
)
