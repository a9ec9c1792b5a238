"""Calls by the name of the attribute that is called, whatever it is called on, and what joins strings."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import concept
from daguerre.concepts.detectors.calls import GROUP, built_in
from daguerre.concepts.source import Source, Span


def _attribute_call(name: str, description: str, names: str) -> None:
    wanted = frozenset(names.split())

    def detect(source: Source) -> Iterator[Span]:
        for call, _, last in source.calls:
            if last in wanted and isinstance(call.func, ast.Attribute):
                yield source.span(call)

    concept(name, GROUP, "node", description, parents=("method_call",))(detect)


_attribute_call(
    "list_mutation",
    "A call of .append, .extend, .insert, .remove, .pop, .clear or .reverse on anything.",
    "append extend insert remove pop clear reverse",
)
_attribute_call(
    "dict_method",
    "A call of .get, .setdefault, .update, .items, .keys, .values, .popitem or .fromkeys on anything.",
    "get setdefault update items keys values popitem fromkeys",
)
_attribute_call(
    "set_method",
    "Call on anything of add, discard, issubset, issuperset, union, intersection, (symmetric_)difference.",
    "add discard issubset issuperset union intersection difference symmetric_difference",
)
_attribute_call(
    "string_split",
    "A call of .split, .rsplit, .splitlines, .partition or .rpartition on anything.",
    "split rsplit splitlines partition rpartition",
)
_attribute_call("string_join", "A call of .join on anything.", "join")
_attribute_call(
    "string_strip",
    "A call of .strip, .lstrip, .rstrip, .removeprefix or .removesuffix on anything.",
    "strip lstrip rstrip removeprefix removesuffix",
)
_attribute_call(
    "string_case",
    "A call of .lower, .upper, .title, .capitalize, .casefold or .swapcase on anything.",
    "lower upper title capitalize casefold swapcase",
)
_attribute_call("string_replace", "A call of .replace or .translate on anything.", "replace translate")
_attribute_call(
    "string_test",
    "A call of .startswith, .endswith or one of the is... methods of str, on anything.",
    "startswith endswith isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace "
    "istitle isupper",
)
_attribute_call("encoding_call", "A call of .encode or .decode on anything.", "encode decode")


@concept("sort_call", GROUP, "node", "A call of the built-in sorted, or of .sort on anything.")
def sort_call(source: Source) -> Iterator[Span]:
    for call, _, last in source.calls:
        attribute = isinstance(call.func, ast.Attribute)
        if (last == "sort" and attribute) or (last == "sorted" and built_in(source, call)):
            yield source.span(call)


@concept("copy_call", GROUP, "node", "A call of .copy or .deepcopy on anything, or of these imported from copy.")
def copy_call(source: Source) -> Iterator[Span]:
    for call, resolved, last in source.calls:
        if isinstance(call.func, ast.Attribute):
            if last in ("copy", "deepcopy"):
                yield source.span(call)
        elif resolved in ("copy.copy", "copy.deepcopy"):
            yield source.span(call)


@concept("format_call", GROUP, "node", "A call of .format or .format_map on anything, or of the built-in format.")
def format_call(source: Source) -> Iterator[Span]:
    for call, _, last in source.calls:
        if isinstance(call.func, ast.Attribute):
            if last in ("format", "format_map"):
                yield source.span(call)
        elif built_in(source, call) == "format":
            yield source.span(call)


def _literal(node: ast.expr, *kinds: type) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, kinds))


@concept("string_concat", GROUP, "node", "A binary + with a string literal or f-string directly on one side.")
def string_concat(source: Source) -> Iterator[Span]:
    for node in source.of(ast.BinOp):
        if isinstance(node.op, ast.Add) and (_literal(node.left, str) or _literal(node.right, str)):
            yield source.span(node)


@concept("percent_format", GROUP, "node", "A binary % with a string, bytes or f-string literal on its left.")
def percent_format(source: Source) -> Iterator[Span]:
    for node in source.of(ast.BinOp):
        if isinstance(node.op, ast.Mod) and _literal(node.left, str, bytes):
            yield source.span(node)
