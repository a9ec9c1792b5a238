"""The training of drafts: which weights learn, and the loss of the draft head (`models.core.draft_head`) on a draft of
its own: its distributions against the autoregressive ones. `train/acceptance.py` has the loss of verified drafts.

A batch of drafts has a clean stream, whose rows are the teacher, and fully masked spans. Along a span the head reads
the text's tokens, which the teacher has read too. A span begins from the state of its anchor row: in every other span
that of the clean row at its position, as in a verifying forward, else that of the noisy row, as in a separate draft.

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
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import run_batch
from daguerre.models.core.low_rank import LowRank
from daguerre.train.acceptance import acceptance_loss
from daguerre.train.batch import Batch, LossReport
from daguerre.train.noising import NUM_LEVELS
from daguerre.train.objectives import Objective
from daguerre.train.optim import LOW_RANK
from daguerre.train.trajectory import trajectory_loss

DECAY = 0.8
"""A position of a draft weighs this much less than the one before it, which it needs to be accepted (as Medusa's heads,
arXiv 2401.10774)."""


def with_draft_head(model: Backbone, width: int, seed: int, rank: int = 0) -> Backbone:
    """The model with a draft head of this inner width, and low-rank weights of this rank for drafts unless it is 0,
    fresh ones where it has none and the nearest ones where it has some of a higher rank, and all else frozen.

    UnsupportedError for a model that cannot have them, InputError where it has a head of another width or a lower rank.
    """
    config = model.config
    if not config.can_draft:
        raise UnsupportedError("a draft head drafts for a model of causal context with a shift, which this one is not")
    if config.draft_head not in (0, width):
        raise InputError(f"the model's draft head has width {config.draft_head}: set draft_head to that, not {width}")
    if 0 < config.draft_rank < rank:
        raise InputError(
            f"the model's low-rank weights have rank {config.draft_rank}: set draft_rank to that, or to less"
        )
    wanted = replace(config, draft_head=width, draft_rank=rank or config.draft_rank)
    if config != wanted:
        grown = Backbone(wanted).initialize(seed)
        weights = model.state_dict()
        if config.draft_rank > wanted.draft_rank:
            for name, matrices in model.named_modules():
                if isinstance(matrices, LowRank):
                    weights[f"{name}.a.weight"], weights[f"{name}.b.weight"] = matrices.nearest(wanted.draft_rank)
        grown.load_state_dict(weights, strict=False)
        model = grown
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.startswith("draft_head.") or bool(rank and LOW_RANK in name))
    return model


def check_drafts(objectives: Mapping[str, Objective], rank: int = 0) -> None:
    """InputError for a mixture that a draft head, or low-rank weights of drafts, cannot learn from."""
    for name, objective in objectives.items():
        fits = objective.layout in ("drafts", "groups") and objective.times == "full" and objective.teacher == "data"
        if not fits:
            raise InputError(
                f'mixture.{name}: a draft head learns from layout = "drafts" or "groups", times = "full" and teacher = '
                '"data"'
            )
    if len({objective.num_drafted for objective in objectives.values() if objective.num_drafted}) > 1:
        raise InputError('mixture: the layout "groups" needs the same `group` in all its objectives')
    if rank and not any(objective.num_drafted for objective in objectives.values()):
        raise InputError('draft_rank: low-rank weights learn from layout = "groups": add it to the mixture')


def drafting_loss(model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
    """The loss of a batch of the layout "groups" (`acceptance_loss`, or with `certainty` `trajectory_loss`) or "drafts"
    (`draft_head_loss`).
    """
    if not batch.group:
        return draft_head_loss(model, batch, attn_impl)
    return (trajectory_loss if batch.certainty else acceptance_loss)(model, batch, attn_impl)


def draft_head_loss(model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
    """Cross-entropy of the head's distributions under the autoregressive ones, weighed by DECAY along the draft; see
    `batch_loss`.
    """
    head, embedding, num_clean = model.draft_head, model.embedding.weight, batch.layout.num_clean
    assert head is not None and batch.layout.plain
    with torch.no_grad():
        hidden = run_batch(model, batch.tokens, batch.layout, attn_impl=attn_impl)
    sequence, first, length = longest_first(batch.layout.rows.span, num_clean)
    anchor = batch.layout.rows.position[sequence, first]
    clean = torch.arange(len(first), device=first.device) % 2 == 0
    state = torch.where(clean[:, None], hidden[sequence, anchor], hidden[sequence, first])
    total, weights, nats, count = hidden.new_zeros((), dtype=torch.float32), 0.0, 0.0, 0
    for place in range(1, int(length.max(initial=0))):
        num = int((length > place).sum())
        example, row = sequence[:num], first[:num] + place
        state = head(hidden[example, row], embedding[batch.target[example, row - 1]], state[:num])
        with torch.no_grad():
            teacher = F.softmax(model.logits(hidden[example, anchor[:num] + place]), dim=-1)
        student = F.log_softmax(model.logits(state), dim=-1)
        ce = -(teacher * student.masked_fill(teacher == 0, 0.0)).sum(-1)
        total = total + DECAY**place * ce.sum()
        weights += DECAY**place * num
        nats += float(ce.detach().sum())
        count += num
    level_sum, level_count = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS, dtype=np.int64)
    level_sum[-1], level_count[-1] = nats, count
    return LossReport(total / max(weights, 1.0), 0.0, 0, level_sum, level_count)


def longest_first(span: Tensor, num_clean: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """The example, the first row and the number of rows of each noisy span, (N,) each, the longest first.

    span: labels (B, R) of rows, noisy ones from `num_clean` on.
    """
    labels = span.cpu().numpy()
    begins = labels >= 0
    begins[:, 1:] &= labels[:, 1:] != labels[:, :-1]
    begins[:, :num_clean] = False
    sequence, first = np.nonzero(begins)
    length = np.array([(labels[b] == labels[b, r]).sum() for b, r in zip(sequence, first, strict=True)], dtype=np.int64)
    order = np.argsort(-length, kind="stable")
    places = torch.from_numpy(np.stack([sequence, first])[:, order]).to(span.device)
    return places[0], places[1], length[order]
