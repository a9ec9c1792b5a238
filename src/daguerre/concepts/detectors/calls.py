"""Calls by their form, by the built-in function that is called, and by their arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import Holds, add, concept, nodes
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.names import BUILTINS, SOMETIMES
from daguerre.concepts.source import SourceText, Span

CHECKS = frozenset(f"builtins.{name}" for name in ("isinstance", "issubclass", "callable"))
CONVERSIONS = frozenset(
    f"builtins.{name}" for name in "int float complex bool str bytes list tuple dict set frozenset".split()
)
KEYED = frozenset("sort sorted min max groupby nsmallest nlargest merge".split())


def capitalised(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


# By form


def is_nested(_: SourceText, call: ast.Call) -> bool:
    named = (one.value for one in call.keywords if one.arg is not None)
    return any(isinstance(one, ast.Call) for one in (*call.args, *named))


def is_chained(_: SourceText, call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call)


nodes("method_call", ast.Call, lambda _, call: isinstance(call.func, ast.Attribute))
nodes("constructor_call", ast.Call, lambda source, call: capitalised(source.last_name(call.func)))
nodes("chained_call", ast.Call, is_chained)
nodes("nested_call", ast.Call, is_nested)


@concept
def function_call(source: SourceText) -> Iterator[Span]:
    built_ins = {call for call, _ in source.names.calls("builtins")}
    for call in source.of(ast.Call):
        if isinstance(call.func, ast.Name) and not capitalised(call.func.id) and call not in built_ins:
            yield source.span(call)


# Arguments


def argument(name: str, holds: Holds) -> None:
    """Register a concept for the arguments that calls give by name."""
    nodes(name, ast.keyword, lambda source, one: isinstance(source.parent(one), ast.Call) and holds(source, one))


def is_key(source: SourceText, one: ast.keyword) -> bool:
    call = source.parent(one)
    return one.arg == "key" and isinstance(call, ast.Call) and source.last_name(call.func) in KEYED


argument("keyword_argument", lambda _, one: one.arg is not None)
argument("explicit_encoding", lambda _, one: one.arg == "encoding")
argument("timeout_kwarg", lambda _, one: one.arg == "timeout")
argument("key_function", is_key)


@concept
def argument_unpacking(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        yield from (source.span(value) for value in call.args if isinstance(value, ast.Starred))
        yield from (source.span(one) for one in call.keywords if one.arg is None)


# Built-in functions


@concept
def type_check(source: SourceText) -> Iterator[Span]:
    for call, name in source.names.calls("builtins"):
        alone = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
        if name in CHECKS or (name == "builtins.type" and alone):
            yield source.span(call)


@concept
def type_conversion(source: SourceText) -> Iterator[Span]:
    for call, name in source.names.calls("builtins"):
        if (call.args or call.keywords) and name in CONVERSIONS:
            yield source.span(call)


for _name, _called in {
    "builtin_call": " ".join((*BUILTINS, *SOMETIMES)),
    "dynamic_attribute": "getattr setattr delattr hasattr",
    "aggregate_call": "sum min max any all len",
    "iter_tool": "map filter zip enumerate reversed range iter next aiter anext",
    "id_hash": "id hash",
    "char_code": "ord chr",
    "print_call": "print",
    "super_call": "super",
}.items():
    add(_name, calls_of(" ".join(f"builtins.{one}" for one in _called.split())))
