"""The settings of `daguerre train drafts`, given as `--set name=value`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from daguerre.errors import InputError, unknown
from daguerre.models.core.config import DRAFT_PARTS
from daguerre.train.settings import check_positive

KINDS = ("head", "rows", "both")


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """How drafts are trained.

    kind        what drafts: a "head", "rows" behind the text, or "both"
    width       inner width of the draft head
    rank        of the low-rank weights of rows
    matrices    those that low-rank weights are added to: of qkv, out, gate_up and down
    multiplier  what their product is multiplied by: it makes steps larger
    row_rate    their learning rate
    groups      how many places of a text have rows behind them, in a step
    growth      share of the budget in which drafts by rows grow from 2 tokens to `depth`
    vocabulary  how many tokens drafts consist of: the most frequent ones of the model's own text
    depth       the longest draft
    kept        share of the drafts of a depth that go on to the next
    texts       texts of a step
    rate        learning rate of AdamW, for a head
    drafts      budget: drafts in all; the rate falls to 0 over the last `decay` of it
    stop        after so many drafts the run says whether it is worth going on
    seed        of the weights and the order of texts
    """

    begins: ClassVar = ("kind", "width", "rank", "matrices", "multiplier", "vocabulary", "seed")
    kind: str = "head"
    width: int = 768
    rank: int = 8
    matrices: str = "qkv,out,down"
    multiplier: float = 16.0
    row_rate: float = 2e-4
    groups: int = 64
    growth: float = 0.2
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
        check_positive(self, ("seed", "decay", "stop", "growth"))
        if self.kept > 1 or self.decay > 1 or self.growth > 1:
            raise InputError("kept, decay and growth are shares, at most 1")
        if self.kind not in KINDS:
            raise unknown("kind", self.kind, KINDS)
        for name in self.low_rank_matrices:
            if name not in DRAFT_PARTS:
                raise unknown("matrix", name, DRAFT_PARTS)

    @property
    def low_rank_matrices(self) -> tuple[str, ...]:
        """The names of `matrices`."""
        return tuple(name.strip() for name in self.matrices.split(","))

    def shape(self) -> dict[str, Any]:
        """The fields of a model's config that such drafts add, but for the tokens."""
        head: dict[str, Any] = {"draft_head": self.width} if self.kind != "rows" else {}
        if self.kind == "head":
            return head
        return head | {"draft_rows": "learned", "draft_rank": self.rank, "draft_matrices": self.low_rank_matrices}
