"""Calls by the name of the attribute that is called, whatever it is called on, and what joins strings."""

from __future__ import annotations

import ast

from daguerre.concepts.detectors import add, nodes
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.detectors.operators import is_text
from daguerre.concepts.source import SourceText

METHODS = {
    "list_mutation": "append extend insert remove pop clear reverse",
    "dict_method": "get setdefault update items keys values popitem fromkeys",
    "set_method": "add discard issubset issuperset union intersection difference symmetric_difference",
    "string_split": "split rsplit splitlines partition rpartition",
    "string_join": "join",
    "string_strip": "strip lstrip rstrip removeprefix removesuffix",
    "string_case": "lower upper title capitalize casefold swapcase",
    "string_replace": "replace translate",
    "string_test": "startswith endswith isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric "
    "isprintable isspace istitle isupper",
    "encoding_call": "encode decode",
}
for _name, _methods in METHODS.items():
    add(_name, calls_of("", _methods))
add("sort_call", calls_of("builtins.sorted", "sort"))
add("copy_call", calls_of("copy.copy copy.deepcopy", "copy deepcopy"))
add("format_call", calls_of("builtins.format", "format format_map"))


def joins_text(_: SourceText, node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.Add) and (is_text(node.left) or is_text(node.right))


nodes("string_concat", ast.BinOp, joins_text)
nodes("percent_format", ast.BinOp, lambda _, node: isinstance(node.op, ast.Mod) and is_text(node.left))
