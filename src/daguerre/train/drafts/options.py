"""The settings of `daguerre train drafts`, given as `--set name=value`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from daguerre.errors import InputError


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
