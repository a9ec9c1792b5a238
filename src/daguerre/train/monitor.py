"""What a run watches: held-out loss by noise level, how well one-shot drafts match the model's own greedy text, and
whether gaps end where they should.

Letters: B prompts, P prompt tokens, S drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from daguerre.canvas import Canvas
from daguerre.models.backbone import Backbone
from daguerre.models.cache import Cache
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.layout import Layout, Rows
from daguerre.train.batch import Batch, BatchLoss, batch_loss
from daguerre.train.examples import IGNORE, NUM_LEVELS


@dataclass(frozen=True)
class Held:
    """Held-out figures: clean loss in bits per byte (NaN when no batch has any), mean masked loss by level in bits per
    token, draft match by position and tokens accepted a cycle (none and NaN for a model that cannot draft), and how
    likely a gap is ended where its text does, and one token before (`gap_ends`; NaN for a model without a null).
    """

    clean_bpb: float
    masked_by_level: tuple[float, ...]
    draft_match: tuple[float, ...]
    accepted: float
    ended: float
    ended_early: float


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


GAP, SLACK = 8, 8
"""Tokens of the gaps that `gap_ends` looks at, and places too many."""


@torch.no_grad()
def gap_ends(model: Backbone, prompts_BP: Tensor) -> tuple[float, float]:
    """Mean probability of <null> in gaps in the middle of each prompt: where the gap's text, which is there, ends; and
    where its last token belongs, with those before it there.

    (NaN, NaN) for a model that does not end gaps, and prompts that are too short. Nothing else that a run watches tells
    how a gap ends, and plain text, which has no null, unteaches it.
    """
    prompts_BP = prompts_BP[:, : model.config.max_positions - SLACK]
    null, start = model.config.null_id, prompts_BP.shape[1] // 2
    if null is None or model.config.context == "block" or model.config.time_input or start <= GAP:
        return float("nan"), float("nan")
    denoiser, ended = BackboneDenoiser(model, "reference"), np.zeros(2)
    for prompt in prompts_BP.cpu().numpy():
        canvas = Canvas.lay_out([prompt[:start], prompt[start + GAP :]], [GAP + SLACK], model.config.mask_id)
        for place, written in enumerate((GAP, GAP - 1)):
            tokens, opened, asked = canvas.tokens.copy(), canvas.open.copy(), start + written
            tokens[start:asked], opened[start:asked] = prompt[start:asked], False
            filled = replace(canvas, tokens=tokens, open=opened, span=canvas.gaps[0])
            (law,) = denoiser.session(filled).logits(filled, np.array([asked]))
            ended[place] += np.exp(law[null] - np.logaddexp.reduce(law))
    after, before = (ended / len(prompts_BP)).tolist()
    return after, before


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

    Figures of two runs compare only where the batches are the same, and a run draws its own from its mixture.
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
    ended, ended_early = gap_ends(model, prompts_BP)
    return Held(
        clean_bpb=float(clean_nats / np.log(2) / num_bytes) if num_bytes else float("nan"),
        masked_by_level=tuple(nats / np.log(2) for nats in mean_by_level(sums, counts)),
        draft_match=tuple(match.tolist()),
        accepted=accepted,
        ended=ended,
        ended_early=ended_early,
    )
