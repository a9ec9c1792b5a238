"""Tests: unittest, pytest and mocks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import add, concept, headers, nodes, trait
from daguerre.concepts.detectors.functions import called
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.source import SourceText, Span

FIXTURES = frozenset(("pytest.fixture", "pytest_asyncio.fixture"))
PATCHERS = frozenset(("monkeypatch", "mocker"))
RAISES = frozenset(("assertRaises", "assertRaisesRegex"))


def is_assertion(_: SourceText, call: ast.Call) -> bool:
    if not (isinstance(call.func, ast.Attribute) and call.func.attr.startswith("assert")):
        return False
    following = call.func.attr[6:7]
    return following == "_" or following.isupper()


def expects_error(source: SourceText, call: ast.expr) -> bool:
    return isinstance(call, ast.Call) and (
        (isinstance(call.func, ast.Attribute) and call.func.attr in RAISES)
        or source.names.means(call.func, ("pytest.raises",))
    )


trait("test_function", lambda _, one: one.name.startswith("test"))
nodes("assert_method", ast.Call, is_assertion)
headers(
    "assert_raises_context",
    ast.With,
    lambda source, node: any(expects_error(source, item.context_expr) for item in node.items),
)
add("pytest_call", calls_of("pytest.*"))
add("pytest_parametrize", calls_of("pytest.mark.parametrize"))
_mock_call = calls_of("mock.* unittest.mock.*")


@concept
def mocking(source: SourceText) -> Iterator[Span]:
    yield from _mock_call(source)
    for call in source.of(ast.Call):
        root = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        patcher = isinstance(root, ast.Name) and root.id in PATCHERS and root is not call.func
        if patcher and not source.names.meanings(root):
            yield source.span(call)


@concept
def pytest_fixture(source: SourceText) -> Iterator[Span]:
    for node in source.functions:
        yield from (source.span(one) for one in node.decorator_list if source.names.means(called(one), FIXTURES))
