"""Confidence-and-trajectory distillation: masked rows learn to commit more tokens in one forward of mode "block".

The trajectory is the model's own: of a group of masked rows behind a clean row, policy "chain" and a verification at
temperature 0 would commit the tokens up to the first one that is not the model's most likely. By where a place is:

    committed in this forward   made more certain: entropy at CERTAIN_TEMPERATURE (dParallel, arXiv 2509.26488)
    ... and the place after     cross-entropy to the model's most likely token
    later, or off the most      cross-entropy to the model's distribution (trajectory-aware distillation, arXiv
    likely text                 2605.09536)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from daguerre.models.core.backbone import Backbone
from daguerre.train.acceptance import drafted, reached_by, reported
from daguerre.train.batch import Batch, LossReport, entropy

CERTAIN_TEMPERATURE = 0.5


def trajectory_loss(model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
    """The mean over groups and places of the losses above, the entropy times `batch.certainty`; and the loss of the
    confidence. See `batch_loss`.
    """
    found = drafted(model, batch, attn_impl)
    wanted = found.teacher.argmax(-1)
    right = (found.log_draft.argmax(-1) == wanted).float()
    near = reached_by(right) * found.likely(wanted)
    hard = F.nll_loss(found.log_draft.flatten(0, 1), wanted.flatten(), reduction="none").view_as(right)
    certain = entropy(found.log_draft / CERTAIN_TEMPERATURE)
    loss = torch.where(near > 0, hard, found.cross_entropy()) + batch.certainty * near * right * certain
    return reported(model, batch, found, loss.mean())
