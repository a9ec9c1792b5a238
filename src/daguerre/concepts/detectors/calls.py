"""Calls by their form, by the built-in function that is called, and by their arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.names import BUILTINS, SOMETIMES
from daguerre.concepts.source import SourceText, Span

GROUP = ConceptGroup("calls")
CHECKS = frozenset(f"builtins.{name}" for name in ("isinstance", "issubclass", "callable"))
CONVERSIONS = frozenset(
    f"builtins.{name}" for name in "int float complex bool str bytes list tuple dict set frozenset".split()
)
KEYED = frozenset("sort sorted min max groupby nsmallest nlargest merge".split())


def capitalised(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


# By form


@GROUP.node("method_call", "A call of an attribute, as in x.f(), of whatever x.")
def method_call(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if isinstance(call.func, ast.Attribute):
            yield source.span(call)


@GROUP.node("function_call", "A call of a bare name that is neither built-in nor capitalised.")
def function_call(source: SourceText) -> Iterator[Span]:
    built_ins = {call for call, _ in source.names.calls("builtins")}
    for call in source.of(ast.Call):
        if isinstance(call.func, ast.Name) and not capitalised(call.func.id) and call not in built_ins:
            yield source.span(call)


GROUP.node("builtin_call", "A call of a built-in function, type or exception.")(
    calls_of(" ".join(f"builtins.{name}" for name in (*BUILTINS, *SOMETIMES)))
)


@GROUP.node("constructor_call", "A call of a name or attribute that begins, after underscores, in upper case.")
def constructor_call(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if capitalised(source.last_name(call.func)):
            yield source.span(call)


@GROUP.node("chained_call", "A call of an attribute of what a call returns, as in x().f().", parents=("method_call",))
def chained_call(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
            yield source.span(call)


@GROUP.node("nested_call", "A call with a call as a whole argument, positional or by name, not unpacked.")
def nested_call(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        named = (one.value for one in call.keywords if one.arg is not None)
        if any(isinstance(one, ast.Call) for one in (*call.args, *named)):
            yield source.span(call)


# Arguments


@GROUP.node("keyword_argument", "An argument that a call gives by name, as in name=value.")
def keyword_argument(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        for one in call.keywords:
            if one.arg is not None:
                yield source.span(one)


@GROUP.node("argument_unpacking", "An argument of a call that is unpacked by * or **.")
def argument_unpacking(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        for value in call.args:
            if isinstance(value, ast.Starred):
                yield source.span(value)
        for one in call.keywords:
            if one.arg is None:
                yield source.span(one)


@GROUP.node(
    "key_function",
    "A key= in a call named sort, sorted, min, max, groupby, nsmallest, nlargest or merge.",
    parents=("keyword_argument",),
)
def key_function(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if source.last_name(call.func) in KEYED:
            for one in call.keywords:
                if one.arg == "key":
                    yield source.span(one)


def _named_argument(name: str, description: str, argument: str) -> None:
    def detect(source: SourceText) -> Iterator[Span]:
        for call in source.of(ast.Call):
            for one in call.keywords:
                if one.arg == argument:
                    yield source.span(one)

    GROUP.node(name, description, parents=("keyword_argument",))(detect)


_named_argument("explicit_encoding", "An argument encoding= of any call.", "encoding")
_named_argument("timeout_kwarg", "An argument timeout= of any call.", "timeout")


# Built-in functions


@GROUP.node(
    "type_check",
    "A call of built-in isinstance, issubclass or callable, or of type with one argument.",
    parents=("builtin_call",),
)
def type_check(source: SourceText) -> Iterator[Span]:
    for call, name in source.names.calls("builtins"):
        alone = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
        if name in CHECKS or (name == "builtins.type" and alone):
            yield source.span(call)


@GROUP.node(
    "type_conversion",
    "An int, float, complex, bool, str, bytes, list, tuple, dict, set or frozenset call with arguments.",
    parents=("builtin_call",),
)
def type_conversion(source: SourceText) -> Iterator[Span]:
    for call, name in source.names.calls("builtins"):
        if (call.args or call.keywords) and name in CONVERSIONS:
            yield source.span(call)


def _built_in_call(name: str, description: str, names: str) -> None:
    called = " ".join(f"builtins.{one}" for one in names.split())
    GROUP.node(name, description, parents=("builtin_call",))(calls_of(called))


_built_in_call(
    "dynamic_attribute",
    "A call of the built-in getattr, setattr, delattr or hasattr.",
    "getattr setattr delattr hasattr",
)
_built_in_call("aggregate_call", "A call of the built-in sum, min, max, any, all or len.", "sum min max any all len")
_built_in_call(
    "iter_tool",
    "A call of built-in map, filter, zip, enumerate, reversed, range, iter, next, aiter or anext.",
    "map filter zip enumerate reversed range iter next aiter anext",
)
_built_in_call("id_hash", "A call of the built-in id or hash.", "id hash")
_built_in_call("char_code", "A call of the built-in ord or chr.", "ord chr")
_built_in_call("print_call", "A call of the built-in print.", "print")
