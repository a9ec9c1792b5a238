"""Functions: where they stand, what decorates them, what they are called; and lambdas."""

from __future__ import annotations

import ast
import tokenize
from bisect import bisect_right
from collections.abc import Iterator

from daguerre.concepts.detectors import concept, nodes, trait
from daguerre.concepts.nodes import Function
from daguerre.concepts.source import SourceText, Span, once

LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
"""Tokens that are no part of a statement."""


def statements(source: SourceText, function: Function) -> list[ast.stmt]:
    """The body of a function without its docstring."""
    return function.body[1:] if source.docstring(function) else function.body


def called(mark: ast.expr) -> ast.expr:
    """What a decorator names, called or not."""
    return mark.func if isinstance(mark, ast.Call) else mark


@once
def decorated(source: SourceText) -> dict[Function, frozenset[str]]:
    """What the decorators of each function may stand for."""
    return {
        one: frozenset(name for mark in one.decorator_list for name in source.names.meanings(called(mark)))
        for one in source.functions
    }


def decoration(name: str, *names: str) -> None:
    """Register a concept for the headers of functions with one of these decorators, called or not."""
    trait(name, lambda source, one: not decorated(source)[one].isdisjoint(names))


def naming(name: str, *words: str) -> None:
    """Register a concept for the headers of functions by the first words of their names."""
    trait(name, lambda _, one: one.name.removeprefix("_").partition("_")[0] in words)


def is_dunder(name: str) -> bool:
    """Whether a name is like `__this__`."""
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def is_method(source: SourceText, function: Function) -> bool:
    """Whether a function is in the body of a class, with no other function between."""
    return isinstance(source.scope(function), ast.ClassDef)


def is_setter(_: SourceText, function: Function) -> bool:
    return any(isinstance(mark, ast.Attribute) and mark.attr == "setter" for mark in function.decorator_list)


trait("function_def")
trait("async_function_def", lambda _, one: isinstance(one, ast.AsyncFunctionDef))
trait("method_def", is_method)
trait("nested_function_def", lambda source, one: isinstance(source.scope(one), Function))
trait("private_function", lambda _, one: one.name.startswith("_") and not is_dunder(one.name))
trait("dunder_method", lambda source, one: is_dunder(one.name) and is_method(source, one))
trait("property_setter", is_setter)
decoration("property_def", "builtins.property", "functools.cached_property")
decoration("classmethod_def", "builtins.classmethod")
decoration("staticmethod_def", "builtins.staticmethod")
decoration("abstract_method", "abc.abstractmethod")
decoration("memoization", "functools.cache", "functools.lru_cache")
naming("accessor_name", "get", "fetch", "load", "read")
naming("mutator_name", "set", "update", "write", "save", "store")
naming("predicate_name", "is", "has", "can", "should")
naming("parser_name", "parse", "decode", "from")
naming("factory_name", "make", "create", "build", "new")
naming("handler_name", "on", "handle", "visit")


def decorator_lines(source: SourceText) -> list[Span]:
    """From each `@` that starts a statement to the statement's end."""
    out, start, end, fresh = list[Span](), -1, 0, True
    for token in source.tokens:
        if token.type == tokenize.NEWLINE:
            if start >= 0:
                out.append((start, end))
            start, fresh = -1, True
        elif token.type not in LAYOUT:
            if fresh and token.string == "@":
                start = source.token_span(token)[0]
            if start >= 0:
                end = source.token_span(token)[1]
            fresh = False
    return out


def decorators(source: SourceText) -> Iterator[tuple[ast.expr, Span]]:
    """All decorators, with their spans from the `@` on, parentheses included."""
    marks = [mark for one in [*source.functions, *source.of(ast.ClassDef)] for mark in one.decorator_list]
    lines = decorator_lines(source) if marks else []
    for mark in marks:
        span = source.span(mark)
        found = bisect_right(lines, span) - 1
        yield mark, lines[found] if found >= 0 and lines[found][1] >= span[1] else span


@concept
def decorator(source: SourceText) -> Iterator[Span]:
    return (span for _, span in decorators(source))


@concept
def decorator_with_args(source: SourceText) -> Iterator[Span]:
    return (span for mark, span in decorators(source) if isinstance(mark, ast.Call))


def is_callback(source: SourceText, node: ast.Lambda) -> bool:
    above = source.parent(node)
    if isinstance(above, ast.keyword):
        above = source.parent(above)
    return isinstance(above, ast.Call) and above.func is not node


nodes("lambda_expression", ast.Lambda)
nodes("callback_lambda", ast.Lambda, is_callback)
