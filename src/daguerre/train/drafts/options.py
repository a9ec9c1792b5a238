"""The settings of `daguerre train drafts`, given as `--set name=value`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from daguerre.errors import InputError, unknown


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """How a draft head is trained.

    width       inner width of the draft head
    vocabulary  how many tokens drafts consist of: the most frequent ones of the model's own text
    depth       the longest draft
    kept        share of the drafts of a depth that go on to the next
    texts       texts of a step
    rate        learning rate of AdamW
    drafts      budget: drafts in all; the rate falls to 0 over the last `decay` of it
    stop        after so many drafts the run says whether it is worth going on
    seed        of the weights and the order of texts
    """

    width: int = 768
    vocabulary: int = 8192
    depth: int = 4
    kept: float = 0.7
    texts: int = 4
    rate: float = 1e-3
    decay: float = 0.5
    drafts: int = 4_000_000
    stop: int = 1_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value < 0 or (value == 0 and each.name not in ("seed", "decay", "stop")):
                raise InputError(f"{each.name} must be above 0, not {value}")
        if self.kept > 1 or self.decay > 1:
            raise InputError("kept and decay are shares, at most 1")


def options_of(overrides: Sequence[str], options: DraftOptions | None = None) -> DraftOptions:
    """The options with changes such as "width=512". InputError for what is none."""
    options, kinds = options or DraftOptions(), {name: type(value) for name, value in asdict(DraftOptions()).items()}
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
    return replace(options, **values)
