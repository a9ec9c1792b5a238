"""Methods with a meaning to the language, by what they serve."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import Detector
from daguerre.concepts.detectors.classes import GROUP
from daguerre.concepts.source import SourceText, Span

BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or".split()
OPERATORS = {f"{prefix}{name}" for name in BINARY for prefix in ("", "r", "i")} - {"idivmod"}
PROTOCOLS = (
    ("dunder_init", "A method __init__, __new__ or __post_init__.", "init new post_init"),
    ("dunder_repr", "A method __repr__, __str__ or __format__.", "repr str format"),
    (
        "dunder_compare",
        "A method of a comparison or hash: __eq__, __ne__, __lt__, __le__, __gt__, __ge__ or __hash__.",
        "eq ne lt le gt ge hash",
    ),
    (
        "dunder_arith",
        "A method of an arithmetic or bitwise operator, abs or divmod: __add__, __ror__, __ipow__, __neg__.",
        " ".join([*sorted(OPERATORS), "neg pos invert abs"]),
    ),
    (
        "dunder_container",
        "A method __len__, __contains__, __missing__, __reversed__, __getitem__, __setitem__, __delitem__.",
        "len contains missing reversed getitem setitem delitem",
    ),
    ("iterator_protocol", "A method __iter__, __next__, __aiter__ or __anext__.", "iter next aiter anext"),
    ("context_manager_protocol", "A method __enter__, __exit__, __aenter__ or __aexit__.", "enter exit aenter aexit"),
    ("callable_protocol", "A method __call__.", "call"),
    (
        "attribute_protocol",
        "A method __getattr__, __getattribute__, __setattr__, __delattr__ or __dir__.",
        "getattr getattribute setattr delattr dir",
    ),
    ("descriptor_protocol", "A method __get__, __set__, __delete__ or __set_name__.", "get set delete set_name"),
    (
        "pickle_protocol",
        "A method __reduce__, __reduce_ex__, __getstate__, __setstate__ or __getnewargs__.",
        "reduce reduce_ex getstate setstate getnewargs",
    ),
    (
        "class_hook",
        "A method __init_subclass__, __class_getitem__, __instancecheck__ or __subclasscheck__.",
        "init_subclass class_getitem instancecheck subclasscheck",
    ),
    ("destructor", "A method __del__.", "del"),
)


def methods(names: frozenset[str]) -> Detector:
    """Functions of these names whose scope is a class."""

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.functions:
            if node.name in names and isinstance(source.scope(node), ast.ClassDef):
                yield source.header(node)

    return detect


for _name, _description, _names in PROTOCOLS:
    GROUP.header(_name, _description, parents=("method_def", "dunder_method"))(
        methods(frozenset(f"__{name}__" for name in _names.split()))
    )
