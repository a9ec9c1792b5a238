"""Parameters of functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import concept, trait
from daguerre.concepts.nodes import Function
from daguerre.concepts.source import SourceText, Span, constant

MANY = 6
"""From how many parameters on a function has many."""


def parameters(function: Function) -> list[ast.arg]:
    """All parameters of a function, of every kind."""
    args = function.args
    rest = [one for one in (args.vararg, args.kwarg) if one is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *rest]


def defaults(args: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr]]:
    """The parameters that have defaults, with these."""
    positional = [*args.posonlyargs, *args.args]
    yield from zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True)
    for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if default is not None:
            yield one, default


trait("no_parameters", lambda _, one: not parameters(one))
trait("many_parameters", lambda _, one: len(parameters(one)) >= MANY)
trait("default_argument", lambda _, one: any(True for _ in defaults(one.args)))
trait("var_args", lambda _, one: one.args.vararg is not None)
trait("var_kwargs", lambda _, one: one.args.kwarg is not None)
trait("keyword_only_args", lambda _, one: bool(one.args.kwonlyargs))
trait("positional_only_args", lambda _, one: bool(one.args.posonlyargs))


@concept
def default_none(source: SourceText) -> Iterator[Span]:
    for one in source.functions:
        for parameter, default in defaults(one.args):
            if constant(default, None):
                yield source.join(parameter, default)
