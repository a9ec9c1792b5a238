"""Type annotations and types."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.detectors.functions import decoration, trait
from daguerre.concepts.detectors.signatures import parameters
from daguerre.concepts.nodes import Function
from daguerre.concepts.source import SourceText, Span

GROUP = ConceptGroup("types")
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


trait(
    GROUP,
    "fully_typed_function",
    "A function with annotations of its return and all its parameters but `self` and `cls`.",
    is_typed,
)
decoration(GROUP, "typing_overload", "A function with the decorator `typing.overload`.", *typing_names("overload"))


@GROUP.node("parameter_annotation", "A parameter with its annotation.", parents=("function_def",))
def parameter_annotation(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.arg):
        if node.annotation is not None:
            yield source.span(node)


@GROUP.node(
    "return_annotation", "The annotation of what a function returns, without its arrow.", parents=("function_def",)
)
def return_annotation(source: SourceText) -> Iterator[Span]:
    for one in source.functions:
        if one.returns is not None:
            yield source.span(one.returns)


@GROUP.node("annotated_assignment", "A statement that annotates a target, with a value or without.")
def annotated_assignment(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.AnnAssign):
        yield source.span(node)


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


def subscripted(source: SourceText, wanted: frozenset[str]) -> Iterator[Span]:
    """Subscripts of what stands for one of these."""
    for node in source.of(ast.Subscript):
        if source.names.means(node.value, wanted):
            yield source.span(node)


def is_bar(node: ast.AST | None) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


@GROUP.node(
    "optional_union_type", "`Optional[...]` or `Union[...]` of `typing`, or types joined by `|` in an annotation."
)
def optional_union_type(source: SourceText) -> Iterator[Span]:
    yield from subscripted(source, UNIONS)
    for bar in source.of(ast.BinOp):
        if is_bar(bar) and not is_bar(source.parent(bar)) and in_annotation(source, bar):
            yield source.span(bar)


@GROUP.node(
    "generic_container_type",
    "A subscript of a builtin container type, or of a container or iterator of `typing` or `collections`.",
)
def generic_container_type(source: SourceText) -> Iterator[Span]:
    return subscripted(source, CONTAINERS)


@GROUP.node("callable_type", "`Callable[...]` of `typing` or `collections.abc`.")
def callable_type(source: SourceText) -> Iterator[Span]:
    return subscripted(source, CALLABLES)


@GROUP.node(
    "special_type_form",
    "A use of `Literal`, `Final`, `ClassVar` or `Annotated` of `typing`, with its brackets if it has any.",
)
def special_type_form(source: SourceText) -> Iterator[Span]:
    for library in TYPING:
        for node, name in source.names.uses(library):
            if name in SPECIAL:
                above = source.parent(node)
                yield source.span(above if isinstance(above, ast.Subscript) and above.value is node else node)


@GROUP.node("typevar_def", "An assignment of a call of `TypeVar`, `ParamSpec` or `TypeVarTuple` of `typing`.")
def typevar_def(source: SourceText) -> Iterator[Span]:
    kinds: list[ast.Assign | ast.AnnAssign] = [*source.of(ast.Assign), *source.of(ast.AnnAssign)]
    for node in kinds:
        if isinstance(node.value, ast.Call) and source.names.means(node.value.func, VARIABLES):
            yield source.span(node)
