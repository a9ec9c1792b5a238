"""Settings of the trainings that have no recipe, given as `--set name=value`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from daguerre.errors import InputError, unknown

T = TypeVar("T", bound=Any)
"""A dataclass of numbers."""


def changed(options: T, overrides: Sequence[str]) -> T:
    """The options with changes such as "width=512". InputError for what is none."""
    kinds = {name: type(value) for name, value in asdict(options).items()}
    values: dict[str, Any] = {}
    for one in overrides:
        name, _, value = one.partition("=")
        if name not in kinds:
            raise unknown("setting", name, kinds)
        try:
            values[name] = kinds[name](value)
        except ValueError:
            raise InputError(
                f"{name}={value} is no number: give one, such as {name}={getattr(options, name)}"
            ) from None
    made: T = replace(options, **values)
    return made
