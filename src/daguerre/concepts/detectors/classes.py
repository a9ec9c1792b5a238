"""Classes: what they inherit from, what stands in them, and what their methods do with `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from daguerre.concepts.detectors import Holds, concept, headers, nodes
from daguerre.concepts.detectors.functions import called
from daguerre.concepts.source import SourceText, Span

TYPING = ("typing.", "typing_extensions.")
DATACLASSES = {
    "dataclasses.dataclass",
    *(f"attr.{name}" for name in ("s", "attrs", "attributes", "dataclass", "define", "frozen", "mutable")),
    *(f"attrs.{name}" for name in ("define", "frozen", "mutable")),
}
NAMED_TUPLES = {"collections.namedtuple", *(f"{module}NamedTuple" for module in TYPING)}
ENUMS = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "ReprEnum")
PYDANTIC = ("pydantic.BaseModel", "pydantic.RootModel", "pydantic.BaseSettings", "pydantic_settings.BaseSettings")


def bases(node: ast.ClassDef) -> list[ast.expr]:
    """The bases of a class; `Base` for `Base[T]`."""
    return [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]


def besides_object(source: SourceText, node: ast.ClassDef) -> int:
    return sum("builtins.object" not in source.names.meanings(base) for base in node.bases)


def is_dataclass(source: SourceText, node: ast.ClassDef) -> bool:
    return any(source.names.means(called(one), DATACLASSES) for one in node.decorator_list)


def is_abstract(source: SourceText, node: ast.ClassDef) -> bool:
    meta = [keyword.value for keyword in node.keywords if keyword.arg == "metaclass"]
    return any(source.names.means(base, ("abc.ABC",)) for base in node.bases) or any(
        source.names.means(value, ("abc.ABCMeta",)) for value in meta
    )


def with_base(names: Iterable[str]) -> Holds:
    """Classes with an imported base of these names."""
    wanted = frozenset(names)
    return lambda source, node: any(source.names.means(base, wanted) for base in bases(node))


def with_ending(*endings: str) -> Holds:
    """Classes with a base whose last name ends so."""
    return lambda source, node: any(source.last_name(base).endswith(endings) for base in bases(node))


for _name, _holds in {
    "class_def": lambda *_: True,
    "inheritance": lambda source, node: besides_object(source, node) > 0,
    "multiple_inheritance": lambda source, node: besides_object(source, node) > 1,
    "metaclass": lambda _, node: any(keyword.arg == "metaclass" for keyword in node.keywords),
    "nested_class": lambda source, node: not isinstance(source.scope(node), ast.Module),
    "dataclass": is_dataclass,
    "abstract_class": is_abstract,
    "enum_class": with_base(f"enum.{name}" for name in ENUMS),
    "protocol_class": with_base(f"{module}Protocol" for module in TYPING),
    "pydantic_model": with_base(PYDANTIC),
    "exception_class": with_ending("Error", "Exception", "Warning"),
    "orm_or_model_class": with_ending("Model", "DeclarativeBase"),
    "unittest_class": with_ending("TestCase"),
    "ast_visitor_class": with_ending("Visitor", "NodeTransformer"),
}.items():
    headers(_name, ast.ClassDef, _holds)


@concept
def namedtuple_class(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if source.names.means(call.func, NAMED_TUPLES):
            yield source.span(call)
    for node in source.of(ast.ClassDef):
        if any(source.names.means(base, NAMED_TUPLES) for base in node.bases):
            yield source.header(node)


@concept
def class_decorator(source: SourceText) -> Iterator[Span]:
    return (source.span(decorator) for node in source.of(ast.ClassDef) for decorator in node.decorator_list)


# In a class


def in_class(source: SourceText, node: ast.stmt) -> bool:
    return isinstance(source.parent(node), ast.ClassDef)


def sets_slots(source: SourceText, node: ast.Assign | ast.AnnAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return in_class(source, node) and any(is_named(target, "__slots__") for target in targets)


def is_named(node: ast.expr | None, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def of_self(_: SourceText, node: ast.Attribute) -> bool:
    return is_named(node.value, "self")


def calls_own(_: SourceText, call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and is_named(call.func.value, "self", "cls")


nodes("class_attribute", (ast.Assign, ast.AnnAssign), in_class)
nodes("slots", (ast.Assign, ast.AnnAssign), sets_slots)
nodes("self_attribute", ast.Attribute, of_self)
nodes(
    "instance_attribute", ast.Attribute, lambda source, node: isinstance(node.ctx, ast.Store) and of_self(source, node)
)
nodes("self_call", ast.Call, calls_own)
nodes("fluent_return_self", ast.Return, lambda _, node: is_named(node.value, "self"))
