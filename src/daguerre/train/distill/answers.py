"""The answers of a batch in which all of their tokens are masked, and its states: some tokens visible, others not.

Letters: B sequences, R rows, N tokens of answers, G groups: texts, or blocks, that are decoded each on its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import Rows, run_batch
from daguerre.train.batch import TENSORS, Batch
from daguerre.train.noising import IGNORE


@dataclass(frozen=True)
class AnswerTokens:
    """Of each token of an answer, int64 (N,): the row that predicts it, the row that reads it (-1: none does), both as
    places in (B, R) flattened, its group, from 0, and the data's token. `sizes` (G,): tokens of each group.
    """

    predicts: Tensor
    reads: Tensor
    group: Tensor
    target: Tensor
    sizes: Tensor

    @property
    def num_groups(self) -> int:
        return len(self.sizes)

    def per_group(self, values: Tensor) -> Tensor:
        """Sums (G,) of values (N,), float32."""
        return values.new_zeros(self.num_groups, dtype=torch.float32).index_add_(0, self.group, values.float())

    def all_of_group(self, flags: Tensor) -> Tensor:
        """Whether flags (N,) are true for every token of a group, bool (G,)."""
        return self.per_group(~flags) == 0


def answers_of(batch: Batch, offset: int) -> AnswerTokens:
    """The answers' tokens of a batch. `offset` is the model's `noisy_offset`."""
    rows, num_rows = batch.layout.rows, batch.tokens.shape[1]
    flat = torch.nonzero(((batch.target != IGNORE) & (rows.span >= 0)).flatten())[:, 0]
    reads = flat + offset
    if offset:
        inside = (flat + 1) % num_rows != 0
        next_row = torch.where(inside, flat + 1, flat)
        for name, more in (("span", 0), ("document", 0), ("position", 1)):
            label = getattr(rows, name).flatten()
            inside &= label[next_row] == label[flat] + more
        reads = torch.where(inside, next_row, -1)
    sequence = flat // num_rows
    labels = torch.stack([sequence, rows.document.flatten()[flat], rows.span.flatten()[flat]])
    _, group = torch.unique(labels, dim=1, return_inverse=True)
    return AnswerTokens(flat, reads, group, batch.target.flatten()[flat], torch.bincount(group))


def with_visible(batch: Batch, answers: AnswerTokens, visible: Tensor, tokens: Tensor) -> Tensor:
    """The rows' tokens (B, R) where some of the answers' tokens (N,) are visible."""
    shown = visible & (answers.reads >= 0)
    out = batch.tokens.flatten().clone()
    out[answers.reads[shown]] = tokens[shown]
    return out.view_as(batch.tokens)


def logits_of(model: Backbone, batch: Batch, rows: Tensor, tokens: Tensor, attn_impl: str) -> Tensor:
    """Float32 logits of rows, places in (B, R) flattened, in a state."""
    hidden = run_batch(model, tokens, batch.layout, attn_impl=attn_impl)
    return model.logits(hidden.flatten(0, 1)[rows])


def times(batch: Batch, num: int) -> Batch:
    """The batch `num` times, one behind the other: so are its answers' tokens and groups."""
    return sequences_of(batch, torch.arange(len(batch.tokens), device=batch.tokens.device).repeat(num))


def sequences_of(batch: Batch, index: Tensor) -> Batch:
    """Some of the sequences of a batch, in this order, or those that are chosen, bool (B,)."""
    rows = Rows(**{name: label[index] for name, label in vars(batch.layout.rows).items()})
    seen = batch.layout.seen
    seen = seen if seen is None or len(seen) == 1 else seen[index]
    values = {name: getattr(batch, name)[index] for name in TENSORS}
    return replace(batch, layout=replace(batch.layout, rows=rows, seen=seen), **values)
