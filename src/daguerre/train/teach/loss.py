"""KL to a teacher and cross-entropy over the whole vocabulary, by a few rows at a time.

The loss of a chunk of rows and its gradients are computed together, in the forward pass, and only the gradients are
kept: those of the rows' hidden states, and the sum of those of the projection. So no tensor has more numbers than a
chunk has logits, or the projection weights, however many rows there are.

Letters: N rows, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.train.batch import Batch, LossReport, hidden_states
from daguerre.train.distill.methods import kl
from daguerre.train.noising import IGNORE, NUM_LEVELS, REVISED
from daguerre.train.teach.options import Teaching
from daguerre.train.teach.teacher import FrozenTeacher, TaughtRows

Terms = tuple[Tensor, Tensor]
"""KL to the teacher (0 where there is none) and cross-entropy, in nats, float32 (N,) each."""


@dataclass(frozen=True)
class TaughtTokens:
    """What rows learn: states of the teacher (N, D'), whether they have any, bool (N,), tokens (N,), and the weights of
    the two terms, float32 (N,) each.
    """

    states: Tensor
    taught: Tensor
    target: Tensor
    of_kl: Tensor
    of_data: Tensor

    def __getitem__(self, part: slice) -> TaughtTokens:
        return TaughtTokens(*(value[part] for value in vars(self).values()))


def terms_of(student: Backbone, teacher: Backbone, hidden: Tensor, told: TaughtTokens) -> Terms:
    """The terms of rows, from the student's hidden states (N, D): all their distributions at once. What the student
    never predicts counts for nothing in the teacher; tokens that the teacher does not have are improbable in it.
    """
    log_q = student.logits(hidden).log_softmax(-1)
    data = F.nll_loss(log_q, told.target, reduction="none")
    with torch.no_grad():
        taught = teacher.logits(told.states)
        ids = torch.tensor(student.config.unpredictable_ids, dtype=torch.int64, device=taught.device)
        never = ids[ids < taught.shape[-1]]
        log_p = taught.index_fill_(-1, never, float("-inf")).log_softmax(-1)
    return torch.where(told.taught, kl(log_p, log_q[:, : log_p.shape[-1]]), 0.0), data


def taught_terms(
    student: Backbone, teacher: Backbone, hidden: Tensor, told: TaughtTokens, rows: int
) -> tuple[Tensor, Terms]:
    """The sum of both terms by their weights, with gradient, and the terms: `rows` rows at a time."""
    head = student.output
    weights = [student.projection] if head is None else [*head.parameters()]
    learns = torch.is_grad_enabled() and (hidden.requires_grad or any(weight.requires_grad for weight in weights))
    loss, away, data = _Streamed.apply(hidden, (student, teacher, told, rows, learns), *weights)
    return loss, (away, data)


class _Streamed(torch.autograd.Function):
    """The sum, and the terms. Its gradients are known when it has been computed."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, given: tuple[Backbone, Backbone, TaughtTokens, int, bool], *weights: Tensor
    ) -> Any:
        student, teacher, told, rows, learns = given
        wanted = [weight for weight in weights if learns and weight.requires_grad]
        sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in wanted]
        total, states, terms = hidden.new_zeros((), dtype=torch.float32), list[Tensor](), list[Terms]()
        for start in range(0, len(hidden), rows):
            part = told[start : start + rows]
            with torch.set_grad_enabled(learns):
                state = hidden[start : start + rows].detach().requires_grad_()
                away, data = terms_of(student, teacher, state, part)
                loss = (part.of_kl * away + part.of_data * data).sum()
            if learns:
                found = torch.autograd.grad(loss, [state, *wanted])
                states.append(found[0])
                for held, more in zip(sums, found[1:], strict=True):
                    held += more
            total += loss.detach()
            terms.append((away.detach(), data.detach()))
        ctx.found = [torch.cat(states) if states else None, *sums]
        ctx.wanted = [weight.dtype if weight.requires_grad else None for weight in weights]
        away, data = (torch.cat([one[i] for one in terms]) if terms else hidden.new_zeros(0) for i in range(2))
        ctx.mark_non_differentiable(away, data)
        return total, away, data

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Any:
        state, *sums = ctx.found
        left = iter(sums)
        weights = [(gradient * next(left)).to(kind) if kind else None for kind in ctx.wanted]
        return None if state is None else gradient * state, None, *weights


@dataclass(frozen=True)
class TaughtLoss:
    """Called as `BatchLoss` is: the loss of `Teaching`, with the weights and the norm of the batch.

    The report has cross-entropies, as `batch_loss` has them, and as parts the mean KL of masked tokens and that of next
    tokens.
    """

    options: Teaching
    teacher: FrozenTeacher

    def __call__(self, model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
        rows = TaughtRows.of(batch)
        states = self.teacher.hidden(batch, attn_impl)[rows.sequence, rows.teacher]
        hidden = hidden_states(model, batch, attn_impl)[rows.sequence, rows.row]
        target, weight, level = (each[rows.sequence, rows.row] for each in (batch.target, batch.weight, batch.level))
        weight = weight / batch.norm
        alone = self.options.kl + self.options.data
        of_data = weight * torch.where(rows.taught, self.options.data, alone)
        told = TaughtTokens(states, rows.taught, target, weight * self.options.kl * rows.taught, of_data)
        loss, (away, data) = taught_terms(model, self.teacher.model, hidden, told, self.options.rows)
        return report_of(loss, away, data, level, rows.taught)


def report_of(loss: Tensor, away: Tensor, data: Tensor, level: Tensor, taught: Tensor) -> LossReport:
    """The report of a loss of rows at these noise levels (N,), `IGNORE` for clean ones."""
    bins = torch.where(level == IGNORE, NUM_LEVELS, torch.where(level == REVISED, NUM_LEVELS + 1, level))
    sums = data.new_zeros(NUM_LEVELS + 2).index_add_(0, bins, data).cpu().numpy()
    counts = torch.bincount(bins, minlength=NUM_LEVELS + 2).cpu().numpy()
    clean = level == IGNORE
    parts = {"kl": mean_where(away, taught & ~clean), "kl_next": mean_where(away, taught & clean)}
    by_level = slice(0, NUM_LEVELS)
    return LossReport(
        loss, float(sums[NUM_LEVELS]), int(counts[NUM_LEVELS]), sums[by_level], counts[by_level], parts=parts
    )


def mean_where(values: Tensor, chosen: Tensor) -> float:
    """The mean of chosen values; NaN of none."""
    return float(values[chosen].mean()) if bool(chosen.any()) else float(np.nan)
