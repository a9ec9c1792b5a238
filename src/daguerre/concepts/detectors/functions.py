"""Functions: where they stand, what decorates them, what they are called; and lambdas."""

from __future__ import annotations

import ast
import tokenize
from bisect import bisect_right
from collections.abc import Callable, Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.nodes import Function
from daguerre.concepts.source import SourceText, Span, once

GROUP = ConceptGroup("functions")
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
"""Tokens that are no part of a statement."""


def statements(source: SourceText, function: Function) -> list[ast.stmt]:
    """The body of a function without its docstring."""
    return function.body[1:] if source.docstring(function) else function.body


@once
def decorated(source: SourceText) -> list[tuple[Function, set[str]]]:
    """The functions with decorators, and what these may stand for, called or not."""
    called = (
        (one, [mark.func if isinstance(mark, ast.Call) else mark for mark in one.decorator_list])
        for one in source.functions
        if one.decorator_list
    )
    return [(one, {name for mark in marks for name in source.names.meanings(mark)}) for one, marks in called]


def trait(
    group: ConceptGroup,
    name: str,
    description: str,
    holds: Callable[[SourceText, Function], bool],
    parents: tuple[str, ...] = ("function_def",),
) -> None:
    """Register a concept for the headers of functions."""

    def detect(source: SourceText) -> Iterator[Span]:
        for one in source.functions:
            if holds(source, one):
                yield source.header(one)

    group.header(name, description, parents=parents)(detect)


def decoration(group: ConceptGroup, name: str, description: str, *names: str) -> None:
    """Register a concept for the headers of functions with one of these decorators, called or not."""
    wanted = frozenset(names)

    def detect(source: SourceText) -> Iterator[Span]:
        for one, found in decorated(source):
            if not wanted.isdisjoint(found):
                yield source.header(one)

    group.header(name, description, parents=("function_def",))(detect)


def naming(name: str, *words: str) -> None:
    """Register a concept for the headers of functions by the first words of their names."""
    shown = ", ".join(f"`{word}`" for word in words[:-1]) + f" or `{words[-1]}`"
    trait(
        GROUP,
        name,
        f"A function whose first word, a leading `_` aside, is {shown}.",
        lambda _, one: one.name.removeprefix("_").partition("_")[0] in words,
    )


def is_dunder(name: str) -> bool:
    """Whether a name is like `__this__`."""
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def is_method(source: SourceText, function: Function) -> bool:
    """Whether a function is in the body of a class, with no other function between."""
    return isinstance(source.scope(function), ast.ClassDef)


trait(GROUP, "function_def", "A function or method defined with `def` or `async def`.", lambda *_: True, ())
trait(
    GROUP,
    "async_function_def",
    "A function or method defined with `async def`.",
    lambda _, one: isinstance(one, ast.AsyncFunctionDef),
)
trait(GROUP, "method_def", "A function in the body of a class, with no other function between.", is_method)
trait(
    GROUP,
    "nested_function_def",
    "A function in the body of another function, with no class between.",
    lambda source, one: isinstance(source.scope(one), Function),
)
trait(
    GROUP,
    "private_function",
    "A function whose name starts with `_` and is not of the form `__name__`.",
    lambda _, one: one.name.startswith("_") and not is_dunder(one.name),
)
trait(
    GROUP,
    "dunder_method",
    "A method with a name of the form `__name__`.",
    lambda source, one: is_dunder(one.name) and is_method(source, one),
    ("method_def",),
)

decoration(
    GROUP,
    "property_def",
    "A function with the decorator `property` or `functools.cached_property`.",
    *("builtins.property", "functools.cached_property"),
)
decoration(GROUP, "classmethod_def", "A function with the decorator `classmethod`.", "builtins.classmethod")
decoration(GROUP, "staticmethod_def", "A function with the decorator `staticmethod`.", "builtins.staticmethod")
decoration(GROUP, "abstract_method", "A function with the decorator `abc.abstractmethod`.", "abc.abstractmethod")
decoration(
    GROUP,
    "memoization",
    "A function with the decorator `functools.cache` or `functools.lru_cache`.",
    *("functools.cache", "functools.lru_cache"),
)
trait(
    GROUP,
    "property_setter",
    "A function with a decorator that is the attribute `setter` of something.",
    lambda _, one: any(isinstance(mark, ast.Attribute) and mark.attr == "setter" for mark in one.decorator_list),
)

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


@GROUP.node("decorator", "A decorator of a function or class, with its `@`.")
def decorator(source: SourceText) -> Iterator[Span]:
    for _, span in decorators(source):
        yield span


@GROUP.node("decorator_with_args", "A decorator that is a call, with or without arguments.", parents=("decorator",))
def decorator_with_args(source: SourceText) -> Iterator[Span]:
    for mark, span in decorators(source):
        if isinstance(mark, ast.Call):
            yield span


@GROUP.node("lambda_expression", "A lambda.")
def lambda_expression(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Lambda):
        yield source.span(node)


@GROUP.node("callback_lambda", "A lambda that is an argument of a call.", parents=("lambda_expression",))
def callback_lambda(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Lambda):
        above = source.parent(node)
        if isinstance(above, ast.keyword):
            above = source.parent(above)
        if isinstance(above, ast.Call) and above.func is not node:
            yield source.span(node)
