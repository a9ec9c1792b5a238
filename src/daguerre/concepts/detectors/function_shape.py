"""What the bodies of functions are like: their sizes, branches, and idioms."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.detectors.functions import decorated, is_method, statements, trait
from daguerre.concepts.nodes import Function
from daguerre.concepts.source import SourceText, Span, constant, once

GROUP = ConceptGroup("functions")
PARENTS = ("function_def",)
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


trait(
    GROUP, "short_function", "A function of at most 5 lines, from `def` to its end.", lambda _, one: lines(one) <= SHORT
)
trait(
    GROUP,
    "medium_function",
    "A function of 6 to 50 lines, from `def` to its end.",
    lambda _, one: SHORT < lines(one) <= LONG,
)
trait(
    GROUP, "long_function", "A function of more than 50 lines, from `def` to its end.", lambda _, one: lines(one) > LONG
)
trait(
    GROUP,
    "complexity_low",
    "A function with at most 2 own branches: if, loop, except, case, ternary, and/or, comprehension.",
    lambda source, one: branches(source)[one] <= LOW,
)
trait(
    GROUP,
    "complexity_mid",
    "A function with 3 to 9 own branches, counted as for complexity_low.",
    lambda source, one: LOW < branches(source)[one] <= MID,
)
trait(
    GROUP,
    "complexity_high",
    "A function with 10 or more own branches, counted as for complexity_low.",
    lambda source, one: branches(source)[one] > MID,
)


def is_single_return(source: SourceText, function: Function) -> bool:
    body = statements(source, function)
    return len(body) == 1 and isinstance(body[0], ast.Return)


trait(GROUP, "one_line_function", "A function whose body is one `return`, docstring aside.", is_single_return)


@GROUP.body("stub_body", "The `pass` or `...` of a function that has nothing else, docstring aside.")
def stub_body(source: SourceText) -> Iterator[Span]:
    for one in source.functions:
        body = statements(source, one)
        if len(body) == 1:
            only = body[0]
            if isinstance(only, ast.Pass) or (isinstance(only, ast.Expr) and constant(only.value, ...)):
                yield source.span(only)


@GROUP.header("generator_function", "A function with a `yield` or `yield from` of its own.", parents=PARENTS)
def generator_function(source: SourceText) -> Iterator[Span]:
    found = {source.scope(node) for node in [*source.of(ast.Yield), *source.of(ast.YieldFrom)]}
    for one in source.functions if found else ():
        if one in found:
            yield source.header(one)


@GROUP.header(
    "recursive_function",
    "A function that calls its own name in its body; a method, `self.name` or `cls.name`.",
    parents=PARENTS,
)
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
    for one in found:
        yield source.header(one)


@GROUP.header(
    "closure_factory", "A function that returns a lambda, or by its name a function nested in it.", parents=PARENTS
)
def closure_factory(source: SourceText) -> Iterator[Span]:
    nested = {(source.scope(one), one.name) for one in source.functions}
    found = dict[Function, None]()
    for node in source.of(ast.Return):
        value = node.value
        if isinstance(value, ast.Lambda | ast.Name):
            around = source.function_around(node)
            if around and (isinstance(value, ast.Lambda) or (around, value.id) in nested):
                found[around] = None
    for one in found:
        yield source.header(one)


@GROUP.header(
    "decorator_factory",
    "A function around another, at any depth, that has the decorator `functools.wraps`.",
    parents=PARENTS,
)
def decorator_factory(source: SourceText) -> Iterator[Span]:
    found = dict[Function, None]()
    for one, names in decorated(source):
        if "functools.wraps" in names:
            found.update((scope, None) for scope in source.lookups(one) if isinstance(scope, Function))
    for one in found:
        yield source.header(one)


@GROUP.header(
    "guard_clause",
    "An `if` without `else` that ends in `return` or `raise`, first in a function or after another such.",
    parents=("if_statement",),
)
def guard_clause(source: SourceText) -> Iterator[Span]:
    for one in source.functions:
        for statement in statements(source, one):
            if not isinstance(statement, ast.If) or statement.orelse:
                break
            if not isinstance(statement.body[-1], ast.Return | ast.Raise):
                break
            yield source.header(statement)
