"""A mixture of experts: a few of many small MLPs for each token, chosen by a router.

The choice is made for each token by itself. There is no capacity, so what is in a batch does not change a token's
experts. Router and weights are computed in float32, whatever the type of the model.

Letters: R rows, D width, E experts, K experts of a token, I inner width of an expert, O outputs of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.config import Experts
from daguerre.models.core.low_rank import DraftRows

TINY = 1e-20
"""Added to sums of scores, so that none is zero (as in DeepSeek-V3 and LLaDA2.0)."""


class Stack(nn.Module):
    """A matrix for each expert, (E, O, D)."""

    def __init__(self, num: int, num_out: int, num_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num, num_out, num_in))
        nn.init.normal_(self.weight, std=num_in**-0.5)


def largest(scores: Tensor, num: int) -> Tensor:
    """The places of the largest numbers of each row, int64 (..., num), the first of equals first: `topk` promises no
    order of equals, and answers on two backends would differ.
    """
    return scores.argsort(dim=-1, descending=True, stable=True)[..., :num]


class Mixture(nn.Module):
    """Experts in place of an MLP, and an MLP that all tokens go through, too, if `shared` is given."""

    def __init__(
        self, width: int, experts: Experts, activation: Callable[[Tensor], Tensor], shared: nn.Module | None
    ) -> None:
        super().__init__()
        self.experts, self.activation, self.shared = experts, activation, shared
        self.router = nn.Linear(width, experts.num, bias=False)
        # Only the choice depends on it, so it never gets a gradient, and training leaves it as it is.
        self.expert_bias = nn.Parameter(torch.zeros(experts.num)) if experts.bias else None
        self.gate_up = Stack(experts.num, 2 * experts.width, width)
        self.down = Stack(experts.num, width, experts.width)

    def forward(self, x: Tensor, drafts: DraftRows = None) -> Tensor:
        """Results (..., D) of rows (..., D). There are no low-rank weights: `drafts` changes nothing."""
        rows = x.reshape(-1, x.shape[-1])
        chosen, weights = self.choose(rows)
        out = self.routed(rows, chosen, weights).view(x.shape)
        return out if self.shared is None else out + self.shared(x)

    def choose(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each row, int64 (R, K), ascending; and their weights, float32 (R, K)."""
        experts = self.experts
        with torch.autocast(rows.device.type, enabled=False):
            logits = F.linear(rows.float(), self.router.weight.float())
        scores = logits.softmax(-1) if experts.score == "softmax" else logits.sigmoid()
        biased = scores if self.expert_bias is None else scores + self.expert_bias.float()
        chosen = largest(self._in_kept_groups(biased), experts.per_token).sort(-1).values
        weights = scores.gather(-1, chosen)
        if experts.normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + TINY)
        return chosen, weights * experts.scale

    def _in_kept_groups(self, biased: Tensor) -> Tensor:
        """Scores (R, E), minus infinity outside the groups whose two best scores have the largest sums."""
        experts = self.experts
        if experts.kept_groups == experts.num_groups:
            return biased
        groups = biased.unflatten(-1, (experts.num_groups, -1))
        kept = largest(groups.topk(2, -1).values.sum(-1), experts.kept_groups)
        others = torch.ones(groups.shape[:-1], dtype=torch.bool, device=biased.device).scatter_(-1, kept, False)
        return groups.masked_fill(others[..., None], float("-inf")).flatten(-2)

    def routed(self, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Weighted sums (R, D) of what the chosen experts make of each row. Every expert computes its rows at once."""
        num_rows, per_token = chosen.shape
        by_expert = chosen.flatten().argsort(stable=True)
        sizes = chosen.flatten().bincount(minlength=self.experts.num).tolist()
        parts = rows[by_expert // per_token].split(sizes)
        made = [self._expert(number, part) for number, part in enumerate(parts) if len(part)]
        if not made:
            return torch.zeros_like(rows)
        out = torch.cat(made)
        by_row = torch.empty_like(out).index_copy(0, by_expert, out).view(num_rows, per_token, -1)
        return (by_row.float() * weights[..., None]).sum(1).to(rows.dtype)

    def _expert(self, number: int, rows: Tensor) -> Tensor:
        gate, up = F.linear(rows, self.gate_up.weight[number]).chunk(2, dim=-1)
        return F.linear(self.activation(gate) * up, self.down.weight[number])
