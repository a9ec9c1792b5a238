"""Type annotations and types."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import Holds, concept, nodes, trait
from daguerre.concepts.detectors.functions import decoration
from daguerre.concepts.detectors.signatures import parameters
from daguerre.concepts.nodes import Function
from daguerre.concepts.source import SourceText, Span

TYPING = ("typing", "typing_extensions")
ABSTRACT = """
    AsyncGenerator AsyncIterable AsyncIterator ByteString Collection Container Generator ItemsView Iterable Iterator
    KeysView Mapping MappingView MutableMapping MutableSequence MutableSet Reversible Sequence ValuesView
""".split()
CONCRETE = ("ChainMap", "Counter", "OrderedDict")


def typing_names(*names: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for module in TYPING for name in names)


CONTAINERS = (
    typing_names(
        *ABSTRACT, *CONCRETE, "AbstractSet", "DefaultDict", "Deque", "Dict", "FrozenSet", "List", "Set", "Tuple"
    )
    | {f"collections.abc.{name}" for name in (*ABSTRACT, "Set")}
    | {f"collections.{name}" for name in (*CONCRETE, "defaultdict", "deque")}
    | {f"builtins.{name}" for name in ("list", "dict", "set", "frozenset", "tuple")}
)
UNIONS = typing_names("Optional", "Union")
CALLABLES = typing_names("Callable") | {"collections.abc.Callable"}
SPECIAL = typing_names("Annotated", "ClassVar", "Final", "Literal")
VARIABLES = typing_names("ParamSpec", "TypeVar", "TypeVarTuple")


def is_typed(_: SourceText, function: Function) -> bool:
    return function.returns is not None and all(
        one.annotation is not None or one.arg in ("self", "cls") for one in parameters(function)
    )


trait("fully_typed_function", is_typed)
decoration("typing_overload", *typing_names("overload"))
nodes("parameter_annotation", ast.arg, lambda _, one: one.annotation is not None)
nodes("annotated_assignment", ast.AnnAssign)


@concept
def return_annotation(source: SourceText) -> Iterator[Span]:
    return (source.span(one.returns) for one in source.functions if one.returns is not None)


def in_annotation(source: SourceText, node: ast.AST) -> bool:
    """Whether a node is in the annotation of a parameter, of a return or of an assignment."""
    below, above = node, source.parent(node)
    while above is not None:
        if isinstance(above, ast.arg):
            return True
        if isinstance(above, ast.AnnAssign):
            return above.annotation is below
        if isinstance(above, Function):
            return above.returns is below
        if isinstance(above, ast.stmt):
            return False
        below, above = above, source.parent(above)
    return False


def subscripted(wanted: frozenset[str]) -> Holds:
    """Subscripts of what stands for one of these."""
    return lambda source, node: source.names.means(node.value, wanted)


def is_bar(node: ast.AST | None) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def is_union(source: SourceText, node: ast.Subscript | ast.BinOp) -> bool:
    if isinstance(node, ast.Subscript):
        return source.names.means(node.value, UNIONS)
    return is_bar(node) and not is_bar(source.parent(node)) and in_annotation(source, node)


nodes("optional_union_type", (ast.Subscript, ast.BinOp), is_union)
nodes("generic_container_type", ast.Subscript, subscripted(CONTAINERS))
nodes("callable_type", ast.Subscript, subscripted(CALLABLES))


@concept
def special_type_form(source: SourceText) -> Iterator[Span]:
    for library in TYPING:
        for node, name in source.names.uses(library):
            if name in SPECIAL:
                above = source.parent(node)
                yield source.span(above if isinstance(above, ast.Subscript) and above.value is node else node)


def makes_variable(source: SourceText, node: ast.Assign | ast.AnnAssign) -> bool:
    return isinstance(node.value, ast.Call) and source.names.means(node.value.func, VARIABLES)


nodes("typevar_def", (ast.Assign, ast.AnnAssign), makes_variable)
