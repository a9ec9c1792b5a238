"""Methods with a meaning to the language, by what they serve."""

from __future__ import annotations

from daguerre.concepts.detectors import trait
from daguerre.concepts.detectors.functions import is_method

BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or".split()
OPERATORS = {f"{prefix}{name}" for name in BINARY for prefix in ("", "r", "i")} - {"idivmod"}
PROTOCOLS = {
    "dunder_init": "init new post_init",
    "dunder_repr": "repr str format",
    "dunder_compare": "eq ne lt le gt ge hash",
    "dunder_arith": " ".join([*OPERATORS, "neg pos invert abs"]),
    "dunder_container": "len contains missing reversed getitem setitem delitem",
    "iterator_protocol": "iter next aiter anext",
    "context_manager_protocol": "enter exit aenter aexit",
    "callable_protocol": "call",
    "attribute_protocol": "getattr getattribute setattr delattr dir",
    "descriptor_protocol": "get set delete set_name",
    "pickle_protocol": "reduce reduce_ex getstate setstate getnewargs",
    "class_hook": "init_subclass class_getitem instancecheck subclasscheck",
    "destructor": "del",
}


def methods(concept: str, names: frozenset[str]) -> None:
    """Register a concept for the methods of these names."""
    trait(concept, lambda source, one: one.name in names and is_method(source, one))


for _name, _names in PROTOCOLS.items():
    methods(_name, frozenset(f"__{name}__" for name in _names.split()))
