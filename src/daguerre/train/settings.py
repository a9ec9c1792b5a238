"""Settings of the trainings that have no recipe, given as `--set name=value`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from daguerre.errors import CheckpointError, InputError, unknown
from daguerre.files import write_json
from daguerre.models.json_files import read_json

T = TypeVar("T", bound=Any)
"""A dataclass of numbers and words, which names in `begins` those that a run keeps from its beginning."""
FILE = "options.json"
"""What the folder of a run keeps them in."""


def check_positive(options: Any, may_be_zero: Collection[str]) -> None:
    """InputError for a number that is not above 0, or below 0 where it may be 0."""
    for each in fields(options):
        value = getattr(options, each.name)
        if not isinstance(value, str) and (value < 0 or (value == 0 and each.name not in may_be_zero)):
            raise InputError(f"{each.name} must be above 0, not {value}")


def options_of(made: type[T], run: Path, overrides: Sequence[str], resume: bool) -> T:
    """The options of a run in a folder: the defaults, or with `resume` those that it has, with changes. InputError for
    a change of what a run keeps from its beginning.
    """
    if not resume or not (run / FILE).is_file():
        return changed(made(), overrides)
    try:
        begun: T = made(**read_json(run / FILE))
    except TypeError as error:
        raise CheckpointError(f"{run / FILE} is of another version ({error}): begin another run with --out") from None
    found = changed(begun, overrides)
    for name in made.begins:
        if getattr(found, name) != getattr(begun, name):
            raise InputError(
                f"the run in {run} began with {name}={getattr(begun, name)}: leave {name} out, or begin another one "
                "with --out"
            )
    return found


def keep_options(run: Path, options: Any) -> None:
    """Keep the options of a run in its folder."""
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / FILE, asdict(options), indent=1)


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
