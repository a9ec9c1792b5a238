"""Classes: what they inherit from, what stands in them, and what their methods do with `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from daguerre.concepts.detectors import ConceptGroup, Detector
from daguerre.concepts.source import SourceText, Span

GROUP = ConceptGroup("classes")
TYPING = ("typing.", "typing_extensions.")
DATACLASSES = {
    "dataclasses.dataclass",
    *(f"attr.{name}" for name in ("s", "attrs", "attributes", "dataclass", "define", "frozen", "mutable")),
    *(f"attrs.{name}" for name in ("define", "frozen", "mutable")),
}
NAMED_TUPLES = {"collections.namedtuple", *(f"{module}NamedTuple" for module in TYPING)}


def bases(node: ast.ClassDef) -> list[ast.expr]:
    """The bases of a class; `Base` for `Base[T]`."""
    return [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]


def besides_object(source: SourceText, node: ast.ClassDef) -> int:
    return sum("builtins.object" not in source.names.meanings(base) for base in node.bases)


@GROUP.header("class_def", "The header of a class definition.")
def class_def(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        yield source.header(node)


@GROUP.header("inheritance", "A class with a base other than object.", parents=("class_def",))
def inheritance(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        if besides_object(source, node):
            yield source.header(node)


@GROUP.header(
    "multiple_inheritance", "A class with two or more bases other than object.", parents=("inheritance", "class_def")
)
def multiple_inheritance(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        if besides_object(source, node) > 1:
            yield source.header(node)


@GROUP.header("metaclass", "A class with the keyword metaclass.", parents=("class_def",))
def metaclass(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        if any(keyword.arg == "metaclass" for keyword in node.keywords):
            yield source.header(node)


@GROUP.node("class_decorator", "The expression of a decorator of a class, without the @.", parents=("decorator",))
def class_decorator(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        for decorator in node.decorator_list:
            yield source.span(decorator)


@GROUP.node("class_attribute", "A plain or annotated assignment, or an annotation alone, directly in a class body.")
def class_attribute(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        for statement in node.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                yield source.span(statement)


@GROUP.node("slots", "An assignment to __slots__ directly in a class body.", parents=("class_attribute",))
def slots(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        for statement in node.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if any(isinstance(target, ast.Name) and target.id == "__slots__" for target in targets):
                    yield source.span(statement)


@GROUP.node(
    "instance_attribute", "An attribute of the name self that is assigned to or annotated.", parents=("self_attribute",)
)
def instance_attribute(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Attribute):
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield source.span(node)


@GROUP.header("nested_class", "A class inside of a class or function.", parents=("class_def",))
def nested_class(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        if not isinstance(source.scope(node), ast.Module):
            yield source.header(node)


@GROUP.header(
    "dataclass",
    "A class decorated by dataclasses.dataclass, or by attrs: define, frozen, mutable, attr.s.",
    parents=("class_def",),
)
def dataclass(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        decorators = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
        if any(source.names.means(one, DATACLASSES) for one in decorators):
            yield source.header(node)


@GROUP.header(
    "namedtuple_class", "A call of collections.namedtuple or typing.NamedTuple, or a class with base typing.NamedTuple."
)
def namedtuple_class(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if source.names.means(call.func, NAMED_TUPLES):
            yield source.span(call)
    for node in source.of(ast.ClassDef):
        if any(source.names.means(base, NAMED_TUPLES) for base in node.bases):
            yield source.header(node)


def with_base(names: Iterable[str]) -> Detector:
    """Classes with an imported base of these names."""
    wanted = frozenset(names)

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.of(ast.ClassDef):
            if any(source.names.means(base, wanted) for base in bases(node)):
                yield source.header(node)

    return detect


def with_ending(*endings: str) -> Detector:
    """Classes with a base whose last name ends so."""

    def detect(source: SourceText) -> Iterator[Span]:
        for node in source.of(ast.ClassDef):
            if any(source.last_name(base).endswith(endings) for base in bases(node)):
                yield source.header(node)

    return detect


ENUMS = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "ReprEnum")
PYDANTIC = ("pydantic.BaseModel", "pydantic.RootModel", "pydantic.BaseSettings", "pydantic_settings.BaseSettings")
KINDS = (
    (
        "enum_class",
        "A class with base Enum, IntEnum, StrEnum, Flag, IntFlag or ReprEnum of enum.",
        with_base(f"enum.{name}" for name in ENUMS),
    ),
    (
        "protocol_class",
        "A class with base Protocol of typing or typing_extensions.",
        with_base(f"{module}Protocol" for module in TYPING),
    ),
    ("pydantic_model", "A class with base BaseModel, RootModel or BaseSettings of pydantic.", with_base(PYDANTIC)),
    (
        "exception_class",
        "A class with a base whose last name ends in Error, Exception or Warning.",
        with_ending("Error", "Exception", "Warning"),
    ),
    (
        "orm_or_model_class",
        "A class with a base whose last name ends in Model or DeclarativeBase.",
        with_ending("Model", "DeclarativeBase"),
    ),
    ("unittest_class", "A class with a base whose last name ends in TestCase.", with_ending("TestCase")),
    (
        "ast_visitor_class",
        "A class with a base whose last name ends in Visitor or NodeTransformer.",
        with_ending("Visitor", "NodeTransformer"),
    ),
)
for _name, _description, _detect in KINDS:
    GROUP.header(_name, _description, parents=("inheritance", "class_def"))(_detect)


@GROUP.header("abstract_class", "A class with base abc.ABC or metaclass abc.ABCMeta.", parents=("class_def",))
def abstract_class(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ClassDef):
        meta = [keyword.value for keyword in node.keywords if keyword.arg == "metaclass"]
        if any(source.names.means(base, ("abc.ABC",)) for base in node.bases) or any(
            source.names.means(value, ("abc.ABCMeta",)) for value in meta
        ):
            yield source.header(node)


@GROUP.node("self_attribute", "An attribute of the name self.")
def self_attribute(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield source.span(node)


@GROUP.node("self_call", "A call of an attribute of the name self or cls: self.f(x).", parents=("method_call",))
def self_call(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        called = call.func
        if (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id in {"self", "cls"}
        ):
            yield source.span(call)


@GROUP.node(
    "super_call", "A call of the built-in super, without what is done with its result.", parents=("builtin_call",)
)
def super_call(source: SourceText) -> Iterator[Span]:
    for call, name in source.names.calls("builtins"):
        if name == "builtins.super":
            yield source.span(call)


@GROUP.node(
    "fluent_return_self", "A statement that returns the name self and nothing else.", parents=("return_statement",)
)
def fluent_return_self(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Return):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield source.span(node)
