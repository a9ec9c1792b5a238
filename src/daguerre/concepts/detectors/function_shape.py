"""What the bodies of functions are like: their sizes, branches, and idioms."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from daguerre.concepts.detectors import concept, trait
from daguerre.concepts.detectors.functions import decorated, is_method, statements
from daguerre.concepts.nodes import Function
from daguerre.concepts.source import SourceText, Span, constant, once

SHORT, LONG = 5, 50
"""The most lines of a short function, and of one that is not long."""
LOW, MID = 2, 9
"""The most branches of a function of low complexity, and of middle complexity."""
OWN = ("self", "cls")
BRANCHES: tuple[type[ast.AST], ...] = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler),
    *(ast.match_case, ast.IfExp, ast.BoolOp, ast.comprehension),
)


@once
def branches(source: SourceText) -> Counter[Function | None]:
    """How many branches each function has, without those of functions in it."""
    return Counter(source.function_around(node) for node in source.of(*BRANCHES))


def lines(function: Function) -> int:
    """From the line of `def` to the last."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def is_single_return(source: SourceText, function: Function) -> bool:
    body = statements(source, function)
    return len(body) == 1 and isinstance(body[0], ast.Return)


trait("short_function", lambda _, one: lines(one) <= SHORT)
trait("medium_function", lambda _, one: SHORT < lines(one) <= LONG)
trait("long_function", lambda _, one: lines(one) > LONG)
trait("complexity_low", lambda source, one: branches(source)[one] <= LOW)
trait("complexity_mid", lambda source, one: LOW < branches(source)[one] <= MID)
trait("complexity_high", lambda source, one: branches(source)[one] > MID)
trait("one_line_function", is_single_return)


@concept
def stub_body(source: SourceText) -> Iterator[Span]:
    for one in source.functions:
        body = statements(source, one)
        if len(body) == 1:
            only = body[0]
            if isinstance(only, ast.Pass) or (isinstance(only, ast.Expr) and constant(only.value, ...)):
                yield source.span(only)


@once
def generators(source: SourceText) -> set[ast.AST | None]:
    """The scopes with a `yield` or `yield from` of their own."""
    return {source.scope(node) for node in [*source.of(ast.Yield), *source.of(ast.YieldFrom)]}


trait("generator_function", lambda source, one: one in generators(source))


@concept
def recursive_function(source: SourceText) -> Iterator[Span]:
    names = {one.name for one in source.functions}
    found = dict[Function, None]()
    for call in source.of(ast.Call):
        called, last = call.func, source.last_name(call.func)
        own = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in OWN
        if last in names and (own or isinstance(called, ast.Name)):
            for scope in source.lookups(call):
                if isinstance(scope, Function) and scope.name == last and is_method(source, scope) == own:
                    found[scope] = None
    return map(source.header, found)


@concept
def closure_factory(source: SourceText) -> Iterator[Span]:
    nested = {(source.scope(one), one.name) for one in source.functions}
    found = dict[Function, None]()
    for node in source.of(ast.Return):
        value = node.value
        if isinstance(value, ast.Lambda | ast.Name):
            around = source.function_around(node)
            if around and (isinstance(value, ast.Lambda) or (around, value.id) in nested):
                found[around] = None
    return map(source.header, found)


@concept
def decorator_factory(source: SourceText) -> Iterator[Span]:
    found = dict[Function, None]()
    for one, names in decorated(source).items():
        if "functools.wraps" in names:
            found.update((scope, None) for scope in source.lookups(one) if isinstance(scope, Function))
    return map(source.header, found)


@concept
def guard_clause(source: SourceText) -> Iterator[Span]:
    for one in source.functions:
        for statement in statements(source, one):
            if not isinstance(statement, ast.If) or statement.orelse:
                break
            if not isinstance(statement.body[-1], ast.Return | ast.Raise):
                break
            yield source.header(statement)
