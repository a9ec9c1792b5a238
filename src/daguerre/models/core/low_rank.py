"""Low-rank weights that act on the masked rows of drafts alone (gated LoRA: Samragh et al., arXiv 2507.11851, "Your LLM
Knows the Future").

All other rows are computed as without them, to the bit, so the model's distributions stay what they were.

Letters: R rows, I and O numbers before and after a matrix, D numbers of the rank.
"""

from __future__ import annotations

from types import EllipsisType

import torch
from torch import Tensor, nn

DraftRows = Tensor | EllipsisType | None
"""Rows of a forward that low-rank weights act on: a boolean mask of the rows' shape, all, or none."""


class LowRank(nn.Module):
    """A matrix (O, I) of a low rank that is added to another one, as the product of `b` (O, D) and `a` (D, I),
    and while it is trained of a `scale`.
    """

    scale = 1.0

    def __init__(self, num_in: int, num_out: int, rank: int) -> None:
        super().__init__()
        self.a = nn.Linear(num_in, rank, bias=False)
        self.b = nn.Linear(rank, num_out, bias=False)

    @torch.no_grad()
    def nearest(self, rank: int) -> tuple[Tensor, Tensor]:
        """The matrices A (rank, I) and B (O, rank) whose product is nearest to this one (Eckart and Young, 1936)."""
        u, s, v = torch.linalg.svd(self.b.weight.float() @ self.a.weight.float(), full_matrices=False)
        root = s[:rank].sqrt()
        return root[:, None] * v[:rank], u[:, :rank] * root

    def forward(self, x: Tensor) -> Tensor:
        """What is added to a matrix's results, (..., O), for its inputs (..., I)."""
        out: Tensor = self.b(self.a(x))
        return out if self.scale == 1 else out * self.scale


def add_low_rank(y: Tensor, x: Tensor, low_rank: LowRank | None, rows: DraftRows) -> Tensor:
    """A matrix's results y (..., R, O) for its inputs x (..., R, I), those of `rows` with the low-rank weights."""
    if low_rank is None or rows is None:
        return y
    if rows is ...:
        return y + low_rank(x)
    return y.index_put((rows,), y[rows] + low_rank(x[rows]))


def draft_rows(drafting: Tensor | None) -> DraftRows:
    """The rows that a boolean mask names; all of them and none are named as such, which is faster."""
    if drafting is None or not bool(drafting.any()):
        return None
    return ... if bool(drafting.all()) else drafting
