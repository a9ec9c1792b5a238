"""Keys of a recipe. Each is declared once: name, type, default, range, one sentence, and the methods that read it.

A section of a recipe is a dataclass whose fields are made by `key`. From them come what TOML may say, the checks, the
errors, and docs/recipes.md.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar

from daguerre.errors import CheckpointError, DaguerreError, InputError, unknown


@dataclass(frozen=True, kw_only=True)
class RecipeKey:
    """What is declared of a key besides its name, type and default.

    low, high     the least and the greatest value; above, below: values that it is always between
    names         the values that it may have, or the members of a list
    num           how many numbers a list has, each in the range
    methods       the methods that read it (`Recipe.method`); () for all
    option        the option of `daguerre train` that sets it, besides --set
    """

    meaning: str
    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    names: Collection[str] = ()
    num: int = 0
    methods: Collection[str] = ()
    option: str = ""

    def range(self) -> str:
        """The range in words; "" where there is none."""
        words = {"at least": self.low, "above": self.above, "at most": self.high, "below": self.below}
        parts = [f"{word} {limit:g}" for word, limit in words.items() if limit is not None]
        return " and ".join(parts).replace("below inf", "finite")

    def check(self, place: str, value: Any) -> DaguerreError | None:
        """The error of a value; None if it is right. An option that is not given, None, is."""
        if value is None:
            return None
        if self.names:
            given = [value] if isinstance(value, str) else value
            return next((unknown(place, name, self.names) for name in given if name not in self.names), None)
        numbers = value if self.num else [value]
        if (self.num and len(value) != self.num) or not all(self._holds(number) for number in numbers):
            each = f"{self.num} numbers, each " if self.num else ""
            return InputError(f"recipe: {place} must be {each}{self.range()}, not {value!r}")
        return None

    def _holds(self, value: Any) -> bool:
        least = (self.low is None or value >= self.low) and (self.above is None or value > self.above)
        return least and (self.high is None or value <= self.high) and (self.below is None or value < self.below)


def key(meaning: str, default: Any = MISSING, **more: Any) -> Any:
    """A field of a section: its sentence, its default (a class: made anew; none: it is needed), and `RecipeKey`'s."""
    kind = "default_factory" if isinstance(default, type) else "default"
    return field(metadata={"key": RecipeKey(meaning=meaning, **more)}, **{kind: default})


class Section:
    """A table of a recipe. `place`: what its keys begin with in errors; `declared`: those of inherited fields."""

    place: ClassVar[str] = ""
    declared: ClassVar[Mapping[str, RecipeKey]] = {}

    def __init_subclass__(cls, place: str | None = None) -> None:
        if place is not None:
            cls.place = place

    @classmethod
    def keys(cls) -> dict[str, RecipeKey]:
        """The keys, in order."""
        found = {f.name: f.metadata.get("key", cls.declared.get(f.name)) for f in fields(cls)}  # type: ignore[arg-type]
        return {name: each for name, each in found.items() if each is not None}

    def __post_init__(self) -> None:
        for name, declared in self.keys().items():
            if (error := declared.check(self.place + name, getattr(self, name))) is not None:
                raise error

    def unread(self, method: str, place: str = "") -> Iterator[tuple[str, Collection[str]]]:
        """The keys that are given, and that this method does not read; with the methods that do."""
        keys = self.keys()
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if value == (f.default if f.default_factory is MISSING else f.default_factory()):
                continue
            if (methods := keys[f.name].methods) and method not in methods:
                yield place + f.name, methods
            elif isinstance(value, Section):
                yield from value.unread(method, f"{place}{f.name}.")
            elif isinstance(value, list | tuple):
                for number, part in enumerate(value):
                    if isinstance(part, Section):
                        yield from part.unread(method, f"{place}{f.name}.{number}.")


def build(kind: Any, values: Any, where: str = "") -> Any:
    """Turn parsed TOML into the type `kind`, strictly; `where` is the dotted place for errors."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if values is None else build(args[0], values, where)
    if origin is typing.Literal:
        return _plain(str, values, where)  # the section knows what it may be
    if origin is not None and issubclass(origin, Mapping):
        return {k: build(args[1], v, f"{where}{k}.") for k, v in table(values, where).items()}
    if origin is not None and issubclass(origin, Sequence):
        if not isinstance(values, list | tuple):
            raise InputError(f"recipe: {where.rstrip('.')} must be a list, not {values!r}")
        return tuple(build(args[0], v, f"{where}{i}.") for i, v in enumerate(values))
    if not is_dataclass(kind):
        return _plain(kind, values, where)
    values, hints, known = table(values, where), typing.get_type_hints(kind), [f.name for f in fields(kind)]
    for name in values:
        if name not in known:
            raise InputError(f"recipe: {unknown('key', where + name, [where + other for other in known])}")
    made: Any = kind
    try:
        return made(**{k: build(hints[k], v, f"{where}{k}.") for k, v in values.items()})
    except (TypeError, CheckpointError) as error:
        raise InputError(f"recipe: {where or 'top level'}: {error}") from None


def _plain(kind: Any, value: Any, where: str) -> Any:
    """A number, a word or a truth value; a whole number may stand for a float."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"recipe: {where.rstrip('.')} must be {kind.__name__}, not {value!r}")
    return value


def table(values: Any, where: str) -> Mapping[str, Any]:
    """The values, which must be a table."""
    if isinstance(values, Mapping):
        return values
    raise InputError(f"recipe: {where.rstrip('.') or 'the file'} must be a table")
