"""What a run watches: held-out loss by noise level, and how well one-shot drafts match the model's own greedy text.

Letters: B prompts, P prompt tokens, S drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from daguerre.models.backbone import Backbone
from daguerre.models.cache import Cache
from daguerre.models.layout import Layout, Rows
from daguerre.train.batch import Batch, BatchLoss, batch_loss
from daguerre.train.examples import IGNORE, NUM_LEVELS


@dataclass(frozen=True)
class Held:
    """Held-out figures: clean loss in bits per byte (NaN when no batch has any), mean masked loss by level in bits per
    token, draft match by position and tokens accepted a cycle (none and NaN for a model that cannot draft).
    """

    clean_bpb: float
    masked_by_level: tuple[float, ...]
    draft_match: tuple[float, ...]
    accepted: float


@torch.no_grad()
def greedy_text(model: Backbone, prompts_BP: Tensor, num: int, cache: Cache) -> Tensor:
    """Greedy continuation (B, num), one cached row a step. The cache is left with all prompt rows but the last."""
    batch, length = prompts_BP.shape
    device = prompts_BP.device
    model(prompts_BP[:, :-1], Layout.causal(length - 1, batch=batch, device=device), cache)
    row, out = prompts_BP[:, -1:], []
    for step in range(num):
        hidden = model(row, Layout.causal(1, start=length - 1 + step, batch=batch, device=device), cache)
        row = model.logits(hidden).argmax(-1)
        out.append(row)
    cache.truncate(length - 1)
    return torch.cat(out, dim=1)


@torch.no_grad()
def one_shot_draft(model: Backbone, seed_B1: Tensor, start: int, num: int, cache: Cache) -> Tensor:
    """The argmax (B, num) of `num` open positions from `start` on, all masked, in one forward on the cached prompt;
    with a draft head each given the one before.
    """
    masks = torch.full((len(seed_B1), num - 1), model.config.mask_id, device=seed_B1.device)
    position = torch.arange(start - 1, start - 1 + num, device=seed_B1.device).expand(len(seed_B1), -1)
    layout = Layout(Rows.make(position, span=0, horizon=start - 1), num_settled=0)
    hidden = model(torch.cat([seed_B1, masks], dim=1), layout, cache)
    if model.draft_head is None:
        return model.logits(hidden).argmax(-1)
    state, out = hidden[:, 0], [model.logits(hidden[:, 0]).argmax(-1)]
    for place in range(1, num):
        state = model.draft_head(hidden[:, place], model.embedding.weight[out[-1]].to(state.dtype), state)
        out.append(model.logits(state).argmax(-1))
    return torch.stack(out, dim=1)


def draft_equals(model: Backbone, prompts_BP: Tensor, num: int = 16) -> np.ndarray:
    """Where the draft of each prompt equals the model's own greedy text, bool (B, num)."""
    batch, length = prompts_BP.shape
    cache = Cache(model.config, length + num, batch=batch, dtype=model.embedding.weight.dtype, device=prompts_BP.device)
    greedy = greedy_text(model, prompts_BP, num, cache)
    draft = one_shot_draft(model, prompts_BP[:, -1:], length, num, cache)
    return (draft == greedy).cpu().numpy()


def accepted_a_cycle(equal_BS: np.ndarray) -> np.ndarray:
    """Tokens that a cycle of self-speculation gains, int64 (B,): the longest matching start of the draft and one bonus
    token, which the verifying forward gives; no more than were drafted.
    """
    return np.minimum(np.cumprod(equal_BS, axis=1).sum(1) + 1, equal_BS.shape[1])


def draft_match(model: Backbone, prompts_BP: Tensor, num: int = 16) -> tuple[np.ndarray, float]:
    """(share of prompts whose draft equals the greedy text, by position (num,); mean tokens accepted a cycle)."""
    equal = draft_equals(model, prompts_BP, num)
    return equal.mean(0), float(accepted_a_cycle(equal).mean())


def mean_by_level(sums: np.ndarray, counts: np.ndarray) -> list[float]:
    """Mean of each noise level; NaN where nothing was masked at that level."""
    return [float(total / count) if count else float("nan") for total, count in zip(sums, counts, strict=True)]


@torch.no_grad()
def held_out(
    model: Backbone,
    batches: Sequence[Batch],
    prompts_BP: Tensor,
    token_bytes_V: Tensor,
    backend: str,
    loss: BatchLoss = batch_loss,
) -> Held:
    """Figures on fixed held-out batches and prompts; the model is used as it is (pass the averaged weights).

    `token_bytes_V` holds the UTF-8 bytes of each token, `loss` is what is trained. Next-token loss is taken where the
    text is read as a whole: an infilling batch has segments that are blind to one another.
    """
    clean_nats, num_bytes = 0.0, 0
    sums, counts = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS)
    for batch in batches:
        report = loss(model, batch, backend)
        if report.clean_count and batch.layout.plain:
            clean_nats += report.clean_sum
            num_bytes += int(token_bytes_V[batch.target[(batch.target != IGNORE) & (batch.level == IGNORE)]].sum())
        sums += report.level_sum
        counts += report.level_count
    drafts = model.config.context == "causal" and model.config.shift
    match, accepted = draft_match(model, prompts_BP) if drafts else (np.zeros(0), float("nan"))
    return Held(
        clean_bpb=float(clean_nats / np.log(2) / num_bytes) if num_bytes else float("nan"),
        masked_by_level=tuple(nats / np.log(2) for nats in mean_by_level(sums, counts)),
        draft_match=tuple(match.tolist()),
        accepted=accepted,
    )
