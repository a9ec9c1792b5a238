"""Kinds of values: what an option or an argument may be, in words and in code.

An option is a field of a frozen dataclass, declared once by `option`: its type, default and kind, and what it does.
`check_fields` reads every field by its kind, and `checks` the arguments of a function by a table. What is read is a
plain Python value: NumPy's whole numbers, numbers and booleans become Python's. What cannot be is an InputError, in one
line, that begins with the name.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from operator import index
from typing import Any, ClassVar, ParamSpec, TypeVar

import numpy as np

from daguerre.errors import InputError, shown, unknown

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
LARGEST = 2**63 - 1
"""What NumPy's and C++'s whole numbers hold."""
WRONG = object()
"""What `Kind.read` returns for a value that is not of its kind."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a value may be. none: None, too."""

    none: bool = False
    words: ClassVar[str]
    plain: ClassVar[Any] = Any

    def __call__(self, name: str, value: Any) -> Any:
        """The value of the argument `name`, as a plain one. InputError for a value of another kind."""
        if value is None and self.none:
            return None
        read = self.read(name, value)
        if read is WRONG:
            raise InputError(f"{name} must be {self}, not {shown(value)}")
        return read

    @property
    def json(self) -> Any:
        """The type of such a value on the command line and in JSON."""
        return self.plain

    @property
    def limits(self) -> dict[str, Any]:
        """What such a value may be beside its type, in the words of JSON Schema."""
        return {}

    def read(self, name: str, value: Any) -> Any:
        """The plain value; WRONG for another kind."""
        return value

    def __str__(self) -> str:
        return self.words + (" or None" if self.none else "")


@dataclass(frozen=True, kw_only=True)
class Whole(Kind):
    """A whole number from `low` to `high`; True and False are none."""

    low: int = 0
    high: int | None = None
    plain: ClassVar[Any] = int

    def read(self, name: str, value: Any) -> Any:
        number = value if type(value) is int else _whole(value)
        if number is None or number < self.low or (self.high is not None and number > self.high):
            return WRONG
        if number > max(LARGEST, self.high or 0):
            raise InputError(f"{name} must be below 2^63, not {shown(value)}")
        return number

    @property
    def limits(self) -> dict[str, Any]:
        """The bounds."""
        return {"minimum": self.low} | ({} if self.high is None else {"maximum": self.high})

    def __str__(self) -> str:
        high = "up" if self.high is None else "2^64 - 1" if self.high == 2**64 - 1 else f"to {self.high:,}"
        high = high if high == "up" or high.startswith("to ") else f"to {high}"
        return f"a whole number from {self.low:,} {high}" + (" or None" if self.none else "")


@dataclass(frozen=True, kw_only=True)
class Number(Kind):
    """A number between `low` and `high`, which may be reached unless `above` or `below` says otherwise. Infinity is
    one only where `high` is reached and infinite.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    infinite: bool = False
    what: str = "a number"
    plain: ClassVar[Any] = float

    def read(self, name: str, value: Any) -> Any:
        number = _number(value)
        if number is None or math.isnan(number) or (math.isinf(number) and not self.infinite):
            return WRONG
        inside = self.low < number <= self.high if self.above else self.low <= number <= self.high
        return number if inside else WRONG

    @property
    def limits(self) -> dict[str, Any]:
        """The bounds that are finite."""
        bounds = {"exclusiveMinimum" if self.above else "minimum": self.low, "maximum": self.high}
        return {name: bound for name, bound in bounds.items() if math.isfinite(bound)}

    def __str__(self) -> str:
        words = [self.what]
        if math.isfinite(self.low):
            words.append(f"above {self.low:,.10g}" if self.above else f"from {self.low:,.10g}")
            words.append(
                f"{'and at most' if self.above else 'to'} {self.high:,.10g}" if math.isfinite(self.high) else ""
            )
            words += ["up"] if not self.above and not math.isfinite(self.high) else []
        elif not self.infinite:
            words.append("that is finite")
        return " ".join(word for word in words if word) + (" or None" if self.none else "")


@dataclass(frozen=True, kw_only=True)
class Switch(Kind):
    """True or False; 0 and 1 are neither."""

    words: ClassVar[str] = "True or False"
    plain: ClassVar[Any] = bool

    def read(self, name: str, value: Any) -> Any:
        return bool(value) if isinstance(value, bool | np.bool_) else WRONG

    def __str__(self) -> str:
        return "True, False or None" if self.none else self.words


@dataclass(frozen=True, kw_only=True)
class OneOf(Kind):
    """One of a few names, or of the keys of a table to which others may be added. what: what is named, in words, where
    that is not the argument's own name.
    """

    known: Collection[str]
    what: str | None = None
    plain: ClassVar[Any] = str

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or value not in self.known:
            raise unknown(self.what or name, value, self.known)
        return value

    @property
    def limits(self) -> dict[str, Any]:
        """The names."""
        return {"enum": [*self.known, *([None] if self.none else [])]}

    def __str__(self) -> str:
        return ", ".join(self.known) + (" or None" if self.none else "")


@dataclass(frozen=True, kw_only=True)
class Words(Kind):
    """A text, without lone surrogates, which the text of no file has."""

    empty: bool = True
    plain: ClassVar[Any] = str

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or not (value or self.empty):
            return WRONG
        check_unicode(value, name)
        return str(value)

    def __str__(self) -> str:
        return ("a string" if self.empty else "a string that is not empty") + (" or None" if self.none else "")


@dataclass(frozen=True, kw_only=True)
class SeveralWords(Kind):
    """A string, or several, none of them empty; what is read is a tuple."""

    words: ClassVar[str] = "a string or several, none of them empty"
    plain: ClassVar[Any] = list[str]

    def read(self, name: str, value: Any) -> Any:
        several = (value,) if isinstance(value, str) else value
        if not _is_list(several) or not all(isinstance(text, str) and text for text in several):
            return WRONG
        for text in several:
            check_unicode(text, name)
        return tuple(map(str, several))


@dataclass(frozen=True, kw_only=True)
class NamedWords(Kind):
    """Texts by name; what is read is a new dict."""

    words: ClassVar[str] = "a dict of texts by name"

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return WRONG
        texts = [text for pair in value.items() for text in pair]
        if not all(isinstance(text, str) for text in texts):
            return WRONG
        for text in texts:
            check_unicode(text, name)
        return dict(value)


@dataclass(frozen=True, kw_only=True)
class Tokens(Kind):
    """A text, or its token ids; what is read is a string or a list of whole numbers."""

    words: ClassVar[str] = "a string or a sequence of token ids"

    def read(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            check_unicode(value, name)
            return str(value)
        if isinstance(value, bytes | bytearray):
            raise InputError(f"{name} is bytes: decode it first, with .decode('utf-8')")
        return _wholes(value)


@dataclass(frozen=True, kw_only=True)
class ForEach(Kind):
    """One value of a kind, or a list of one for each of several things."""

    one: Kind

    def read(self, name: str, value: Any) -> Any:
        return [self.one(name, each) for each in value] if _is_list(value) else self.one(name, value)


@dataclass(frozen=True, kw_only=True)
class Several(Kind):
    """A list of values of a kind; `count`: of so many."""

    one: Kind
    what: str
    count: int | None = None

    def read(self, name: str, value: Any) -> Any:
        if not _is_list(value) or self.count not in (None, len(value)):
            return WRONG
        return [self.one(name, each) for each in value]

    def __str__(self) -> str:
        return self.what + (" or None" if self.none else "")


@dataclass(frozen=True, kw_only=True)
class Pairs(Kind):
    """A list of pairs of whole numbers."""

    words: ClassVar[str] = "a list of pairs of whole numbers, such as [(0, 5)]"

    def read(self, name: str, value: Any) -> Any:
        if not _is_list(value):
            return WRONG
        pairs = [_wholes(pair) for pair in value]
        return WRONG if any(pair is WRONG or len(pair) != 2 for pair in pairs) else [tuple(pair) for pair in pairs]


@dataclass(frozen=True, kw_only=True)
class Instance(Kind):
    """An object of one of these classes."""

    of: tuple[type, ...]
    what: str

    def read(self, name: str, value: Any) -> Any:
        return value if isinstance(value, self.of) else WRONG

    def __str__(self) -> str:
        return self.what + (" or None" if self.none else "")


@dataclass(frozen=True, kw_only=True)
class Call(Kind):
    """A function that is called back."""

    words: ClassVar[str] = "a function"

    def read(self, name: str, value: Any) -> Any:
        return value if callable(value) else WRONG


@dataclass(frozen=True, kw_only=True)
class PathName(Kind):
    """The name or path of a file or folder, as a string or an object of `pathlib`."""

    words: ClassVar[str] = "a name or a path"

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, str | os.PathLike):
            return WRONG
        text = os.fspath(value)
        if not isinstance(text, str) or not text:
            return WRONG
        if "\0" in text:
            raise InputError(f"{name} has a NUL character, which no path has: {shown(text)}")
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise InputError(f"{name} has a character that no path has: {shown(text)}") from None
        return value


@dataclass(frozen=True, kw_only=True)
class Biases(Kind):
    """Token ids, each with a number that is added to its logit; minus infinity bans it. What is read is a new dict."""

    words: ClassVar[str] = "token ids, whole numbers, each with a number"

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise InputError(f"{name} must map {self}, not be {shown(value)}")
        biases: dict[int, float] = {}
        for token, bias in value.items():
            number, added = _whole(token), _number(bias)
            if number is None or added is None:
                raise InputError(f"{name} must map {self}, not {shown(token)} with {shown(bias)}")
            if math.isnan(added) or added == math.inf:
                raise InputError(f"{name} of token {number} must be a number or minus infinity, not {shown(bias)}")
            biases[number] = added
        return biases


@dataclass(frozen=True, kw_only=True)
class Variables(Kind):
    """What a chat template sees beside the messages."""

    words: ClassVar[str] = "a mapping of names, of which none is messages, to values,"

    def read(self, name: str, value: Any) -> Any:
        right = isinstance(value, Mapping) and all(isinstance(each, str) and each != "messages" for each in value)
        return dict(value) if right else WRONG


SWITCH, MAYBE = Switch(), Switch(none=True)
PROBABILITY = Number(low=0, high=1, what="a probability,")
SHARE = Number(low=0, high=1, above=True)
POSITIVE = Number(low=0, above=True)
NOT_NEGATIVE = Number(low=0)
NATS = Number(low=0, what="a number of nats")
SEED = Whole(high=2**64 - 1)
TEXT = Words()
TOKENS = Tokens()


def checks(kinds: Mapping[str, Kind]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that checks, and converts, each given argument of a function that is in the table."""

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        order = list(inspect.signature(call).parameters)

        @functools.wraps(call)
        def checked(*given: P.args, **named: P.kwargs) -> R:
            values: list[Any] = list(given)
            for place, (name, value) in enumerate(zip(order, given, strict=False)):
                if name in kinds:
                    values[place] = kinds[name](name, value)
            options: dict[str, Any] = named
            for name, value in options.items():
                if name in kinds:
                    options[name] = kinds[name](name, value)
            return call(*values, **options)

        return checked

    return decorate


@dataclass(frozen=True)
class Option:
    """What is declared of a field: its kind, and what it does, of which the first sentence says enough for a help.

    common  whether most people use it, so that a short help has it
    """

    kind: Kind
    says: str
    common: bool = False

    @property
    def sentence(self) -> str:
        """The first sentence."""
        return self.says.partition(". ")[0].rstrip(".") + "."


def option(default: T, kind: Kind, says: str = "", *, common: bool = False) -> T:
    """A field of a frozen dataclass, whose `__post_init__` calls `check_fields`."""
    made: T = field(default=default, metadata={"option": Option(kind, " ".join(says.split()), common)})
    return made


def shared(owner: type, name: str) -> Any:
    """The field of another dataclass, declared there, as one of this."""
    found = {each.name: each for each in fields(owner)}[name]
    return field(default=found.default, metadata=found.metadata)


@functools.cache
def options_of(owner: Any) -> dict[str, Option]:
    """The options among the fields of a dataclass."""
    return {each.name: each.metadata["option"] for each in fields(owner) if "option" in each.metadata}


@functools.cache
def _declared(owner: Any) -> dict[str, Kind]:
    kinds = {name: each.kind for name, each in options_of(owner).items()}
    return {name: kind for name, kind in kinds.items() if type(kind).read is not Kind.read}


def check_fields(record: Any, kinds: Mapping[str, Kind] | None = None) -> None:
    """Read the fields of a frozen dataclass, in place: its options by their kinds, or those of a table. A default is
    what it should be, and is not read.
    """
    owner: Any = type(record)
    for name, kind in (_declared(owner) if kinds is None else kinds).items():
        value = getattr(record, name)
        if value is not getattr(owner, name, WRONG):
            object.__setattr__(record, name, kind(name, value))


def check_unicode(text: str, what: str = "the text") -> None:
    """InputError for what is no text, and for a lone surrogate, which a command line yields for a byte that is not
    UTF-8.
    """
    if not isinstance(text, str):
        raise InputError(f"{what} must be a string, not {shown(text)}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} has a lone surrogate, {text[error.start]!r}, at character {error.start}: UTF-8 cannot hold it; "
            "decode the input with errors='replace', or remove that character"
        ) from error


def _is_list(value: Any) -> bool:
    """Whether a value is a sequence of things, and no text."""
    array = isinstance(value, np.ndarray) and value.ndim > 0
    return array or (isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray))


def _whole(value: Any) -> int | None:
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _wholes(value: Any) -> Any:
    """A list of whole numbers, from any sequence of them; WRONG where it is none."""
    if isinstance(value, str | bytes | bytearray | Mapping) or not hasattr(value, "__getitem__"):
        return WRONG
    try:
        numbers = [_whole(each) for each in value]
    except TypeError:  # an array without a dimension
        return WRONG
    return WRONG if None in numbers else numbers


def _number(value: Any) -> float | None:
    """The value as a float; an int that is too large for one is infinite. None for what is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
