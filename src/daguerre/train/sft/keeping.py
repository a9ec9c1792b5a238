"""Fine-tuning that keeps what a model can do: of plain text it learns its own law from before the run, not the data.

Learning without Forgetting (Li and Hoiem, arXiv 1606.09282) with plain text as the inputs of the old task.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, Rows, run_batch
from daguerre.train.batch import Batch, LossReport, batch_loss, loss_of_hidden
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
        time = batch.time if model.config.time_input else None
        some = rows.any(1)
        with self.reference.in_place(model):
            hidden = run_batch(
                model,
                batch.tokens[some],
                _sequences(batch.layout, some),
                attn_impl=attn_impl,
                time_BR=None if time is None else time[some],
            )
            taught = model.logits(hidden[rows[some]]).log_softmax(-1)
        hidden = run_batch(model, batch.tokens, batch.layout, attn_impl=attn_impl, time_BR=time)
        answers = replace(batch, weight=batch.weight.masked_fill(rows, 0.0))
        away = kl(taught, model.logits(hidden[rows]).log_softmax(-1))
        report = loss_of_hidden(model, answers, hidden)
        return replace(report, loss=report.loss + self.weight * (batch.weight[rows] * away).sum() / batch.norm)


def _sequences(layout: BatchLayout, some: Tensor) -> BatchLayout:
    """The layout of some sequences of a batch, bool (B,)."""
    rows = Rows(**{name: label[some] for name, label in vars(layout.rows).items()})
    return replace(layout, rows=rows)
