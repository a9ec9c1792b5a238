"""What one step of a chat template may make, so that a hostile one ends in an error and not in a full memory.

`chat_template` counts steps. Here each step is bounded before it is taken: numbers that are widths, texts that are
multiplied by their arguments, powers, and all characters that operators, calls and filters make together.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

MAX_STEPS = 500_000
"""Turns of loops, calls, and numbers of ranges, of one rendering."""
MAX_LENGTH = 10_000_000
"""Of the text, in characters, and of what an operator, a method or a filter makes."""
MAX_MADE = 100_000_000
"""Characters and items that operators, calls and filters make in one rendering."""
MAX_BITS = 100_000
"""Of a whole number that is made."""
MAX_SECONDS = 10.0
"""Of a rendering, which takes milliseconds."""
MAX_INDENT, MAX_DIGITS = 64, 1000
GROWING = frozenset(
    "center ljust rjust zfill expandtabs replace translate join indent wordwrap batch slice truncate urlize".split()
)
"""Methods of texts, and filters, whose result may be as long as the product of what they are given."""
GUARDED = GROWING | {"format", "tojson", "round", "sum"}
"""Filters that are checked."""
WIDE = re.compile(r"\d{6}|%[^a-zA-Z%]*\*|:[^{}]*\{")
"""A format with a width that is large, or that is an argument."""


class Steps:
    """What a rendering has left."""

    def __init__(self) -> None:
        self._left, self._made, self._end = MAX_STEPS, MAX_MADE, time.monotonic() + MAX_SECONDS

    def spend(self, number: int = 1) -> None:
        """Take steps."""
        self._left -= number
        if self._left < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS:,} steps")
        if time.monotonic() > self._end:
            raise SecurityError(f"it takes more than {MAX_SECONDS:g} seconds")

    def made(self, value: Any) -> Any:
        """The value, counted."""
        if isinstance(value, str | list | tuple | bytes):
            self._made -= len(value)
            if self._made < 0:
                raise SecurityError(f"it makes more than {MAX_MADE:,} characters")
        return value


def check_operator(operator: str, left: Any, right: Any) -> None:
    """SecurityError for a result that is too large."""
    pair = (left, right)
    sizes = [len(one) for one in pair if isinstance(one, str | list | tuple)]
    bits = [one.bit_length() for one in pair if isinstance(one, int)]
    if operator == "*":
        too_large = bool(sizes and bits) and sizes[0] * next(one for one in pair if isinstance(one, int)) > MAX_LENGTH
        too_large |= len(bits) == 2 and sum(bits) > MAX_BITS
    elif operator == "**":
        too_large = len(bits) == 2 and bits[0] * right > MAX_BITS
    elif operator == "%":
        too_large = isinstance(left, str) and WIDE.search(left) is not None
    else:
        too_large = sum(sizes) > MAX_LENGTH
    if too_large:
        raise SecurityError(f"the result of {operator} is too large")


def check_growth(name: str, subject: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """SecurityError for a method or filter, of `subject`, whose result may be too large."""
    values = (*args, *named.values())
    if name in GROWING and _size(subject) * max(map(_size, values), default=1) > MAX_LENGTH:
        raise SecurityError(f"the result of {name} may be too large")
    if name in ("format", "format_map") and isinstance(subject, str) and WIDE.search(subject):
        raise SecurityError("a format has a width that is too large")
    most = {"tojson": MAX_INDENT, "round": MAX_DIGITS}.get(name)
    if most is not None and any(isinstance(value, int) and abs(value) > most for value in values):
        raise SecurityError(f"a number of {name} is too large")
    start = named.get("start", args[1] if len(args) > 1 else 0)
    if name == "sum" and not isinstance(start, int | float):
        raise SecurityError("sum adds numbers alone")


def guarded(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose size is checked before it is applied. What Jinja passes to it first is left as it is."""
    first = int(getattr(apply, "jinja_pass_arg", None) is not None)

    def checked(*args: Any, **named: Any) -> Any:
        check_growth(name, args[first], args[first + 1 :], named)
        return apply(*args, **named)

    checked.__dict__.update(getattr(apply, "__dict__", {}))  # which say what Jinja passes first
    return checked


def _size(value: Any) -> int:
    if isinstance(value, bool) or value is None:
        return 1
    if isinstance(value, int):
        return max(1, abs(value))
    if isinstance(value, Mapping):
        return max([1, len(value), *(_size(each) for each in value.values() if isinstance(each, str))])
    return max(1, len(value)) if hasattr(value, "__len__") else 1
