"""Values of options that are read here where they are plain. Typer reads each with pydantic, which takes longer to
import than the default model takes to answer; it still reads the others, and says what is wrong with them.
"""

from __future__ import annotations

import math
import re
from typing import Any

WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
DECIMAL = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?")
LEFT = object()
"""What is left to typer."""


def read_plain_values(param: Any) -> None:
    """Have a parameter of a command read its plain values itself."""
    typers = param.process_value

    def process_value(context: Any, value: Any) -> Any:
        found = read(param, value)
        if found is LEFT or (param.required and param.value_is_missing(found)):
            return typers(context, value)
        return found if param.callback is None else param.callback(context, param, found)

    param.process_value = process_value


def read(param: Any, value: Any) -> Any:
    """A value as typer reads it; LEFT where that takes more than is done here."""
    several = param.multiple or param.nargs == -1
    if value is None:
        return () if several else None
    declared = getattr(param, "type_descriptor", None)  # the name in typer 0.29
    if declared is None or declared.parameter_info.parser is not None or param.nargs not in (1, -1):
        return LEFT
    kind = declared.annotation
    if not several:
        return one(kind, value, param)
    if kind != list[str] or not isinstance(value, tuple | list) or not all(type(each) is str for each in value):
        return LEFT
    return [*value]


def one(kind: Any, value: Any, param: Any) -> Any:
    """A value of a type, from an argument or a default."""
    if kind in (str, bool):
        return value if type(value) is kind else LEFT
    if kind in (int, float):
        form = WHOLE if kind is int else DECIMAL
        if type(value) is str and form.fullmatch(value):
            value = kind(value)
        low, high = (-math.inf if param.min is None else param.min, math.inf if param.max is None else param.max)
        if type(value) is kind and low <= value <= high:
            return value
    return LEFT
