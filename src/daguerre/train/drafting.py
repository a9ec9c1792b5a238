"""The loss of a draft head (`models.draft_head`): its laws against the autoregressive ones, all else at rest.

A batch of drafts has a clean stream, whose rows are the teacher, and fully masked spans. Along a span the head is told
the text's own tokens; the teacher has read them too. A span begins from the state of its seed: in every other span that
of the clean row there, as a verifying forward has it, else that of the open row, as a draft of its own has it.

Letters: B sequences, R rows, D width, N spans, A rows of one step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.backbone import Backbone
from daguerre.train.batch import Batch, LossReport
from daguerre.train.examples import NUM_LEVELS
from daguerre.train.objectives import Objective

DECAY = 0.8
"""A place of a draft weighs this much less than the one before it, which it needs to be accepted (as Medusa's heads,
arXiv 2401.10774)."""


def with_draft_head(model: Backbone, width: int, seed: int) -> Backbone:
    """The model with a draft head of this inner width, a fresh one if it has none, and all else frozen.

    UnsupportedError for a model that cannot have one, InputError where it has one of another width.
    """
    config = model.config
    if config.context != "causal" or not config.shift:
        raise UnsupportedError("a draft head drafts for a model of causal context with a shift, which this one is not")
    if config.draft_head not in (0, width):
        raise InputError(f"the model's draft head has width {config.draft_head}: set draft_head to that, not {width}")
    if not config.draft_head:
        grown = Backbone(replace(config, draft_head=width)).initialize(seed)
        grown.load_state_dict(model.state_dict(), strict=False)
        model = grown
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.startswith("draft_head."))
    return model


def check_drafts(objectives: Mapping[str, Objective]) -> None:
    """InputError for a mixture that a draft head cannot learn from."""
    for name, objective in objectives.items():
        if (objective.layout, objective.times, objective.teacher) != ("drafts", "full", "data"):
            raise InputError(
                f'mixture.{name}: a draft head learns from layout = "drafts", times = "full" and the data\'s own text'
            )


def draft_head_loss(model: Backbone, batch: Batch, backend: str = "sdpa") -> LossReport:
    """Cross-entropy of the head's laws under the autoregressive ones, by place of the draft weighed by DECAY; see
    `batch_loss`.
    """
    head, embedding, settled = model.draft_head, model.embedding.weight, batch.layout.num_settled
    assert head is not None and batch.layout.plain
    with torch.no_grad():
        hidden = model(batch.tokens, batch.layout, backend=backend)
    sequence, first, length = longest_first(batch.layout.rows.span, settled)
    seed = batch.layout.rows.position[sequence, first]
    clean = torch.arange(len(first), device=first.device) % 2 == 0
    state = torch.where(clean[:, None], hidden[sequence, seed], hidden[sequence, first])
    total, weights, nats, count = hidden.new_zeros((), dtype=torch.float32), 0.0, 0.0, 0
    for place in range(1, int(length.max(initial=0))):
        num = int((length > place).sum())
        at, row = sequence[:num], first[:num] + place
        state = head(hidden[at, row], embedding[batch.target[at, row - 1]], state[:num])
        with torch.no_grad():
            teacher = F.softmax(model.logits(hidden[at, seed[:num] + place]), dim=-1)
        own = F.log_softmax(model.logits(state), dim=-1)
        ce = -(teacher * own.masked_fill(teacher == 0, 0.0)).sum(-1)
        total = total + DECAY**place * ce.sum()
        weights += DECAY**place * num
        nats += float(ce.detach().sum())
        count += num
    level_sum, level_count = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS, dtype=np.int64)
    level_sum[-1], level_count[-1] = nats, count
    return LossReport(total / max(weights, 1.0), 0.0, 0, level_sum, level_count)


def longest_first(span: Tensor, settled: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """Of the labels (B, R) of rows, open ones from `settled` on: the sequence, the first row and the number of rows of
    each span (N,), the longest first.
    """
    labels = span.cpu().numpy()
    begins = labels >= 0
    begins[:, 1:] &= labels[:, 1:] != labels[:, :-1]
    begins[:, :settled] = False
    sequence, first = np.nonzero(begins)
    length = np.array([(labels[b] == labels[b, r]).sum() for b, r in zip(sequence, first, strict=True)], dtype=np.int64)
    order = np.argsort(-length, kind="stable")
    places = torch.from_numpy(np.stack([sequence, first])[:, order]).to(span.device)
    return places[0], places[1], length[order]
