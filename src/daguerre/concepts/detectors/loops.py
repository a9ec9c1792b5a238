"""Loops: their kinds, what they go over, and what is inside of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import Holds, concept, headers, nodes
from daguerre.concepts.nodes import SCOPES
from daguerre.concepts.source import SourceText, Span

Loop = ast.For | ast.AsyncFor | ast.While
LOOPS = (ast.For, ast.AsyncFor, ast.While)
FORS = (ast.For, ast.AsyncFor)


def loops(source: SourceText) -> list[Loop]:
    return source.of(*LOOPS)


def in_loop(source: SourceText, node: ast.stmt) -> bool:
    """Whether it is in the body of a loop of its function or class; the else block of a loop is no part of its body."""
    below: ast.AST = node
    while (above := source.parent(below)) is not None and not isinstance(above, SCOPES):
        if isinstance(above, LOOPS) and not any(below is one for one in above.orelse):
            return True
        below = above
    return False


headers("for_loop", FORS)
headers("async_for", ast.AsyncFor)
headers("while_loop", ast.While)
headers("infinite_loop", ast.While, lambda _, node: isinstance(node.test, ast.Constant) and bool(node.test.value))
headers("nested_loop", LOOPS, in_loop)
headers("loop_unpacking", FORS, lambda _, node: isinstance(node.target, ast.Tuple | ast.List))
nodes("early_return_in_loop", ast.Return, in_loop)


@concept
def loop_body(source: SourceText) -> Iterator[Span]:
    return ((source.start(node.body[0]), source.span(node.body[-1])[1]) for node in loops(source))


@concept
def loop_else(source: SourceText) -> Iterator[Span]:
    return (source.clause("else", node.orelse) for node in loops(source) if node.orelse)


# By what a loop goes over


def over(holds: Holds) -> Holds:
    """For loops directly over a call of which this holds."""
    return lambda source, node: isinstance(node.iter, ast.Call) and holds(source, node.iter)


def built_in(name: str) -> Holds:
    return over(lambda source, call: source.names.means(call.func, (f"builtins.{name}",)))


def view(name: str) -> Holds:
    """A call of a method without arguments."""
    return over(
        lambda _, call: (
            isinstance(call.func, ast.Attribute) and call.func.attr == name and not call.args and not call.keywords
        )
    )


headers("loop_range", FORS, built_in("range"))
headers("loop_enumerate", FORS, built_in("enumerate"))
headers("loop_zip", FORS, built_in("zip"))
headers("loop_reversed", FORS, built_in("reversed"))
headers("loop_dict_items", FORS, view("items"))
headers("loop_dict_keys", FORS, view("keys"))
headers("loop_dict_values", FORS, view("values"))
headers("tree_walk", FORS, over(lambda source, call: not {"walk", "rglob"}.isdisjoint(source.names.last(call.func))))
