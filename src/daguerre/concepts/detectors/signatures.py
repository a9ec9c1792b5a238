"""Parameters of functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.detectors.functions import trait
from daguerre.concepts.nodes import Function
from daguerre.concepts.source import SourceText, Span, constant

GROUP = ConceptGroup("functions")
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


trait(GROUP, "no_parameters", "A function without any parameter, not even `self`.", lambda _, one: not parameters(one))
trait(
    GROUP,
    "many_parameters",
    "A function with six or more parameters of any kind, `self` included.",
    lambda _, one: len(parameters(one)) >= MANY,
)
trait(
    GROUP,
    "default_argument",
    "A function with a default for a parameter.",
    lambda _, one: next(defaults(one.args), None) is not None,
)
trait(GROUP, "var_args", "A function with a parameter like `*args`.", lambda _, one: one.args.vararg is not None)
trait(GROUP, "var_kwargs", "A function with a parameter like `**kwargs`.", lambda _, one: one.args.kwarg is not None)
trait(
    GROUP,
    "keyword_only_args",
    "A function with a named parameter after `*` or `*args`.",
    lambda _, one: bool(one.args.kwonlyargs),
)
trait(
    GROUP,
    "positional_only_args",
    "A function with `/` among its parameters.",
    lambda _, one: bool(one.args.posonlyargs),
)


@GROUP.node(
    "default_none",
    "A parameter of a `def` with the default `None`, from its name to its default.",
    parents=("default_argument",),
)
def default_none(source: SourceText) -> Iterator[Span]:
    for one in source.functions:
        for parameter, default in defaults(one.args):
            if constant(default, None):
                yield source.join(parameter, default)
