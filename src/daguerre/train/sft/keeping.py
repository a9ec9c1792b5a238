"""Fine-tuning that keeps what a model can do: on plain text it learns to predict what it did before the run.

Learning without Forgetting (Li and Hoiem, arXiv 1606.09282) with plain text as the inputs of the old task.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from daguerre.models.core.backbone import Backbone
from daguerre.train.batch import Batch, LossReport, batch_loss, hidden_states, loss_of_hidden
from daguerre.train.distill.answers import sequences_of
from daguerre.train.distill.methods import kl
from daguerre.train.earlier import Reference
from daguerre.train.noising import IGNORE


class KeepingLoss:
    """`batch_loss`, but rows of plain text (`Batch.plain`) cost `weight` times KL(start || model) in place of their
    own loss. The loss is reported with theirs.
    """

    def __init__(self, weight: float, model: nn.Module) -> None:
        self.weight, self.reference = weight, Reference(model)

    def __call__(self, model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
        assert batch.plain is not None
        rows = batch.plain & (batch.target != IGNORE)
        if not rows.any():
            return batch_loss(model, batch, attn_impl)
        some = rows.any(1)
        with self.reference.in_place(model):
            before = hidden_states(model, sequences_of(batch, some), attn_impl)
            taught = model.logits(before[rows[some]]).log_softmax(-1)
        hidden = hidden_states(model, batch, attn_impl)
        answers = replace(batch, weight=batch.weight.masked_fill(rows, 0.0))
        away = kl(taught, model.logits(hidden[rows]).log_softmax(-1))
        report = loss_of_hidden(model, answers, hidden)
        return replace(report, loss=report.loss + self.weight * (batch.weight[rows] * away).sum() / batch.norm)
