"""Loops: their kinds, what they go over, and what is inside of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from daguerre.concepts.detectors import Detector
from daguerre.concepts.detectors.control import GROUP
from daguerre.concepts.nodes import SCOPES
from daguerre.concepts.source import SourceText, Span

Loop = ast.For | ast.AsyncFor | ast.While
LOOPS = (ast.For, ast.AsyncFor, ast.While)
For = ast.For | ast.AsyncFor


def loops(source: SourceText) -> list[Loop]:
    return source.of(*LOOPS)


def for_loops(source: SourceText) -> list[For]:
    return source.of(ast.For, ast.AsyncFor)


def in_loop(source: SourceText, node: ast.stmt) -> bool:
    """Whether it is in the body of a loop of its function or class; the else block of a loop is no part of its body."""
    below: ast.AST = node
    while (above := source.parent(below)) is not None and not isinstance(above, SCOPES):
        if isinstance(above, LOOPS) and not any(below is one for one in above.orelse):
            return True
        below = above
    return False


@GROUP.header("for_loop", "A for or async for statement, up to its colon.")
def for_loop(source: SourceText) -> Iterator[Span]:
    for node in for_loops(source):
        yield source.header(node)


@GROUP.header("async_for", "An async for statement, up to its colon.", parents=("for_loop",))
def async_for(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.AsyncFor):
        yield source.header(node)


@GROUP.header("while_loop", "A while statement, up to its colon.")
def while_loop(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.While):
        yield source.header(node)


@GROUP.header(
    "infinite_loop",
    "A while statement whose condition is a true constant, such as True or 1, up to its colon.",
    parents=("while_loop",),
)
def infinite_loop(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.While):
        if isinstance(node.test, ast.Constant) and node.test.value:
            yield source.header(node)


@GROUP.body("loop_body", "The statements in the body of a for or while loop, without its else block.")
def loop_body(source: SourceText) -> Iterator[Span]:
    for node in loops(source):
        yield source.start(node.body[0]), source.span(node.body[-1])[1]


@GROUP.header(
    "nested_loop", "A for or while statement in the body of another of the same function or class, up to its colon."
)
def nested_loop(source: SourceText) -> Iterator[Span]:
    for node in loops(source):
        if in_loop(source, node):
            yield source.header(node)


@GROUP.header("loop_else", "The keyword else and the colon of a loop's else block.")
def loop_else(source: SourceText) -> Iterator[Span]:
    for node in loops(source):
        if node.orelse:
            yield source.clause("else", node.orelse)


@GROUP.node(
    "early_return_in_loop",
    "A return statement in the body of a loop of the same function.",
    parents=("return_statement",),
)
def early_return_in_loop(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Return):
        if in_loop(source, node):
            yield source.span(node)


@GROUP.header(
    "loop_unpacking", "A for statement whose target is a tuple or list, up to its colon.", parents=("for_loop",)
)
def loop_unpacking(source: SourceText) -> Iterator[Span]:
    for node in for_loops(source):
        if isinstance(node.target, ast.Tuple | ast.List):
            yield source.header(node)


# By what a loop goes over


def over(holds: Callable[[SourceText, ast.Call], bool]) -> Detector:
    """For loops directly over a call of which this holds."""

    def detect(source: SourceText) -> Iterator[Span]:
        for node in for_loops(source):
            if isinstance(node.iter, ast.Call) and holds(source, node.iter):
                yield source.header(node)

    return detect


def built_in(name: str) -> Callable[[SourceText, ast.Call], bool]:
    return lambda source, call: source.names.means(call.func, (f"builtins.{name}",))


def view(name: str) -> Callable[[SourceText, ast.Call], bool]:
    """A call of a method without arguments."""
    return lambda _, call: (
        isinstance(call.func, ast.Attribute) and call.func.attr == name and not call.args and not call.keywords
    )


def walks(source: SourceText, call: ast.Call) -> bool:
    return any(name in ("walk", "rglob") for name in source.names.last(call.func))


for _name, _built_in in (
    ("loop_range", "range"),
    ("loop_enumerate", "enumerate"),
    ("loop_zip", "zip"),
    ("loop_reversed", "reversed"),
):
    GROUP.header(
        _name,
        f"A for statement directly over a call of the built-in {_built_in}, up to its colon.",
        parents=("for_loop",),
    )(over(built_in(_built_in)))
for _name, _view in (("loop_dict_items", "items"), ("loop_dict_keys", "keys"), ("loop_dict_values", "values")):
    GROUP.header(
        _name, f"A for statement directly over a call of a method {_view}(), up to its colon.", parents=("for_loop",)
    )(over(view(_view)))
GROUP.header(
    "tree_walk",
    "A for statement directly over a call of a function or method walk or rglob, up to its colon.",
    parents=("for_loop",),
)(over(walks))
