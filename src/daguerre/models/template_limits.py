"""What a chat template may make, so that a hostile one ends in an error and not in a full memory.

`template_sandbox` asks here before each step. Turns of loops and calls are counted, and the bytes of all that is made;
how long the result of an operation may be is reckoned before it is taken; and a value is weighed before it is compared,
written or sorted: a list may hold another one twice, which holds a third one twice, so that forty lists are a text of
2^40 parts. Its expanded size counts, not its size in memory.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from itertools import chain
from typing import Any

from jinja2.exceptions import SecurityError

MAX_SOURCE = 200_000
"""Characters of a template."""
MAX_STEPS = 500_000
"""Turns of loops, calls, and numbers of ranges, of one rendering."""
MAX_LENGTH = 10_000_000
"""Of a text, in characters, also of the one that a value would be written as."""
MAX_ITEMS = 1_000_000
"""Of a list, and of a value with all that it holds, each as often as it holds it."""
MAX_KEY = 10_000
"""Of a tuple, which may be a key, counted in the same way."""
MAX_MADE = 1 << 28
"""Bytes of all that operators, calls, filters and literals make in one rendering."""
MAX_BITS = 14_000
"""Of a whole number: Python writes no longer ones."""
MAX_SECONDS = 10.0
"""Of a rendering, which takes milliseconds."""
MAX_SLOW = 50_000
"""Characters and items for filters that take long."""
MAX_NAME = 200
"""Characters of the name of an attribute, and of the format of a time."""
MAX_DIGITS = 1000
"""That numbers are rounded to."""
SLOW = frozenset("pprint striptags title urlencode urlize wordcount wordwrap xmlattr".split())
"""Filters that are slow, or make much of little."""
BY_ATTRIBUTE = frozenset("groupby map max min rejectattr selectattr sort sum unique".split())
EACH = BY_ATTRIBUTE | frozenset("batch join list reject select slice".split())
"""Filters that take the items of what they are given; for a text these are its characters."""
LAZY = frozenset("attr batch d default first map reject rejectattr select selectattr".split())
"""Filters that leave what yields items as it is."""
SHALLOW = LAZY | frozenset("abs count float int items last length list random reverse round slice".split())
"""Filters that do not look into the items."""
PLAIN_TESTS = frozenset(
    "boolean callable defined divisibleby escaped even false filter float integer iterable mapping none number odd "
    "sameas sequence string test true undefined".split()
)
"""Tests that do not look into a value."""
NESTED_WIDTH = re.compile(r"\d{7}|%[^a-zA-Z%]*\*|:[^{}]*\{")
"""A format with a width that is large, or that is an argument."""
HOLDING = (list, tuple, Mapping, ItemsView, KeysView, ValuesView)


@dataclass(frozen=True)
class Weight:
    """The expanded size of a value: items, characters of texts, and how deep it nests."""

    items: int = 1
    characters: int = 0
    depth: int = 0

    @property
    def size(self) -> int:
        """Items and characters together."""
        return self.items + self.characters


class Steps:
    """What a rendering has left."""

    def __init__(self) -> None:
        self._left, self._made, self._end = MAX_STEPS, MAX_MADE, time.monotonic() + MAX_SECONDS

    def spend(self, number: int = 1) -> None:
        """Take steps."""
        self._left -= number
        if self._left < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS:,} steps")
        self.on_time()

    def on_time(self) -> None:
        """SecurityError once the time is up."""
        if time.monotonic() > self._end:
            raise SecurityError(f"it takes more than {MAX_SECONDS:g} seconds")

    def made(self, value: Any) -> Any:
        """The value, counted: what is new of it, not what it holds."""
        self.charge(sys.getsizeof(value) if isinstance(value, str | list | tuple | dict) else 0)
        return value

    def charge(self, size: int) -> None:
        """Count bytes."""
        self._made -= size
        if self._made < 0:
            raise SecurityError(f"it makes more than {MAX_MADE:,} bytes")
        self.on_time()

    def pieces(self, value: Any) -> Any:
        """A list of new texts, counted with them."""
        self.made(value)
        if isinstance(value, list):
            self.charge(sum(map(sys.getsizeof, value)))
        return value

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items, and charge a step for each."""
        for item in items:
            self.spend()
            yield item

    def listed(self, value: Any) -> Any:
        """What yields items, as a list; anything else as it is."""
        return self.made(list(self.counted(value))) if isinstance(value, Iterator) else value


def weigh(value: Any, most: int = MAX_ITEMS, apart: object = None) -> Weight:
    """The expanded size of a value. SecurityError if it is too large, or if it holds itself or the list `apart`."""
    weights: dict[int, Weight | None] = {} if apart is None else {id(apart): None}

    def of(one: Any) -> Weight:
        if isinstance(one, str):
            return Weight(1, len(one))
        if isinstance(one, int):
            check_bits(one)
            return Weight(1, 1 + one.bit_length() // 3)
        if not isinstance(one, HOLDING):
            return Weight(1, 20)
        if id(one) not in weights:
            weights[id(one)] = None
            weights[id(one)] = together(_parts(one))
        found = weights[id(one)]
        if found is None:
            raise SecurityError("a value would hold itself")
        return found

    def together(parts: Iterable[Any]) -> Weight:
        items, characters, depth = 1, 2, 0
        for part in parts:
            weight = of(part)
            items, characters = items + weight.items, characters + 4 + weight.characters
            depth = max(depth, weight.depth)
            if items > most or characters > MAX_LENGTH:
                raise SecurityError(
                    f"a value is too large: with all that it holds it has more than {most:,} parts or {MAX_LENGTH:,} "
                    "characters"
                )
        return Weight(items, characters, depth + 1)

    return of(value)


def _parts(one: Any) -> Iterable[Any]:
    """What a value holds: objects that live on, since they are told apart by their ids."""
    if isinstance(one, ItemsView):
        return chain.from_iterable(one)
    return chain.from_iterable(one.items()) if isinstance(one, Mapping) else one


def check_bits(number: int) -> None:
    """SecurityError for a whole number that is too long."""
    if number.bit_length() > MAX_BITS:
        raise SecurityError(f"a number is too large: it has more than {MAX_BITS:,} bits")


def check_operator(operator: str, left: Any, right: Any) -> None:
    """SecurityError for a result that is too large."""
    pair = (left, right)
    for one in pair:
        if isinstance(one, int):
            check_bits(one)
    if operator == "%" and isinstance(left, str):
        check_format(left, right if isinstance(right, tuple) else (right,))
    elif operator == "**" and all(isinstance(one, int) for one in pair):
        _check("**", left.bit_length() * max(0, right), MAX_BITS)
    elif operator in ("*", "+"):
        held = [one for one in pair if isinstance(one, str | list | tuple)]
        sizes = sum(map(len, held))
        if operator == "*" and held:
            sizes *= max([0, *(one for one in pair if isinstance(one, int))])
        _check(operator, sizes, MAX_LENGTH if any(isinstance(one, str) for one in held) else MAX_ITEMS)


def check_format(text: str, values: Sequence[Any]) -> None:
    """SecurityError for a format that makes a text which is too long."""
    if NESTED_WIDTH.search(text):
        raise SecurityError("a format has a width that is too large")
    longest = max([weigh(value).characters for value in values], default=0)
    widths = sum(map(int, re.findall(r"\d+", text)))
    _check("a format", len(text) + widths + (text.count("%") + text.count("{")) * longest)


def _check(name: str, size: int, most: int = MAX_LENGTH) -> None:
    if size > most:
        raise SecurityError(f"the result of {name} is too large: more than {most:,}")


def _numbers(values: Iterable[Any]) -> list[int]:
    return [abs(value) for value in values if isinstance(value, int)]


def _widest(values: Sequence[Any]) -> int:
    """The largest number or the longest text among arguments."""
    return max([0, *_numbers(values), *(len(value) for value in values if isinstance(value, str))])


def _padded(text: str, values: Sequence[Any]) -> int:
    return len(text) + _widest(values)


def _indented(text: str, values: Sequence[Any]) -> int:
    return len(text) + (1 + len(text.splitlines())) * _widest([4, *values])


def _tabs(text: str, values: Sequence[Any]) -> int:
    return len(text) + text.count("\t") * _widest([8, *values])


def _replaced(text: str, values: Sequence[Any]) -> int:
    old, new, *_ = *map(str, values), "", ""
    return len(text) + (text.count(old) if old else 1 + len(text)) * len(new)


def _translated(text: str, values: Sequence[Any]) -> int:
    tables = [value for value in values if isinstance(value, Mapping)]
    return len(text) * max([1, *(len(new) for table in tables for new in table.values() if isinstance(new, str))])


def _wrapped(text: str, values: Sequence[Any]) -> int:
    return len(text) * (2 + max([0, *(len(value) for value in values if isinstance(value, str))]))


def _linked(text: str, values: Sequence[Any]) -> int:
    return len(text) * (100 + sum(len(value) for value in values if isinstance(value, str)))


PADDED = ("center", "ljust", "rjust", "zfill", "truncate")
REACH: Mapping[str, Callable[[str, Sequence[Any]], int]] = dict.fromkeys(PADDED, _padded) | {
    "indent": _indented,
    "expandtabs": _tabs,
    "replace": _replaced,
    "translate": _translated,
    "wordwrap": _wrapped,
    "urlize": _linked,
}
"""How long the results of methods of texts and of filters can be."""


def check_growth(name: str, subject: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """SecurityError for a method or filter, of `subject`, whose result may be too large."""
    values = (*args, *named.values())
    if name in REACH:
        given = [*args, *(named[key] for key in ("old", "new") if key in named)] if name == "replace" else values
        _check(name, REACH[name](subject if isinstance(subject, str) else str(subject), given))
    elif name in ("format", "format_map") and isinstance(subject, str):
        check_format(subject, values)
    elif name == "join":
        _check_join(subject, values)
    elif name in ("batch", "slice"):
        _check(name, max([0, *_numbers(values)]), MAX_ITEMS)
    elif name == "tojson":
        _check_json(subject, values)
    elif name == "round":
        _check(name, max([0, *_numbers(values)]), MAX_DIGITS)
    elif name == "sum" and not isinstance(named.get("start", args[1] if len(args) > 1 else 0), int | float):
        raise SecurityError("sum adds numbers alone")
    elif name == "int" and isinstance(subject, str):
        _check(name, len(subject), MAX_BITS // 4)


def _check_json(value: Any, options: Sequence[Any]) -> None:
    """`tojson`, whose indentation is a number or a text, and whose separators are two texts."""
    weight, separators = weigh(value), [one for one in options if isinstance(one, list | tuple)]
    between = sum(len(text) for pair in separators for text in pair if isinstance(text, str))
    _check("tojson", weight.items * (weight.depth * _widest(options) + between))


def _check_join(subject: Any, values: Sequence[Any]) -> None:
    """`join` as a method, of what is between the items, and as a filter, of the items."""
    pair = (subject, values[0] if values else "")
    texts, others = [one for one in pair if isinstance(one, str)], [one for one in pair if not isinstance(one, str)]
    if not others:
        _check("join", sum(map(len, texts)) + len(texts[0]) * len(texts[1]))
    for items in others:
        weight = weigh(items)
        _check("join", weight.characters + weight.items * sum(map(len, texts)))
