"""Calls by the name of the attribute that is called, whatever it is called on, and what joins strings."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors.calls import GROUP
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.detectors.operators import is_text
from daguerre.concepts.source import SourceText, Span


def _attribute_call(name: str, description: str, names: str) -> None:
    wanted = names.split()

    def detect(source: SourceText) -> Iterator[Span]:
        return (source.span(call) for call in source.method_calls(wanted))

    GROUP.node(name, description, parents=("method_call",))(detect)


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


for _name, _description, _called, _methods in (
    ("sort_call", "A call of the built-in sorted, or of .sort on anything.", "builtins.sorted", "sort"),
    (
        "copy_call",
        "A call of .copy or .deepcopy on anything, or of these imported from copy.",
        "copy.copy copy.deepcopy",
        "copy deepcopy",
    ),
    (
        "format_call",
        "A call of .format or .format_map on anything, or of the built-in format.",
        "builtins.format",
        "format format_map",
    ),
):
    GROUP.node(_name, _description)(calls_of(_called, _methods))


@GROUP.node("string_concat", "A binary + with a string, bytes or f-string literal directly on a side.")
def string_concat(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.BinOp):
        if isinstance(node.op, ast.Add) and (is_text(node.left) or is_text(node.right)):
            yield source.span(node)


@GROUP.node("percent_format", "A binary % with a string, bytes or f-string literal on its left.")
def percent_format(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.BinOp):
        if isinstance(node.op, ast.Mod) and is_text(node.left):
            yield source.span(node)
