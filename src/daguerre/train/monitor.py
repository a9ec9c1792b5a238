"""What a run watches: held-out loss by noise level, how well one-shot drafts match the model's greedy text, and whether
gaps end where they should.

Letters: B prompts, P prompt tokens, S drafted tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from daguerre.canvas import Canvas
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchCache, BatchLayout, Rows, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Logits
from daguerre.models.session import compute, together
from daguerre.train.batch import Batch, BatchLoss, batch_loss
from daguerre.train.noising import IGNORE, NUM_LEVELS

DRAFT = 16
"""Tokens of the drafts that are compared with greedy text."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out figures: clean loss in bits per byte (NaN when no batch has any), mean masked loss by level in bits per
    token, draft match by position and tokens accepted a cycle (none and NaN for a model that cannot draft), and how
    likely a gap is ended where its text does, and one token before (`gap_ends`; NaN for a model without a gap filler).
    `acceptance`, for a run on groups: the share of drafted tokens that are accepted, by measure and place
    (`acceptance.MEASURES`), given the text's tokens before them. `parts`: means over the batches of what the loss
    reports besides.
    """

    clean_bpb: float
    masked_by_level: tuple[float, ...]
    draft_match: tuple[float, ...] = ()
    accepted: float = float("nan")
    ended: float = float("nan")
    ended_early: float = float("nan")
    acceptance: tuple[tuple[float, ...], ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)


@torch.no_grad()
def greedy_text(model: Backbone, prompts_BP: Tensor, num: int, cache: BatchCache) -> Tensor:
    """Greedy continuation (B, num), one cached row a step. The cache is left with all prompt rows but the last."""
    batch, length = prompts_BP.shape
    device = prompts_BP.device
    run_batch(model, prompts_BP[:, :-1], BatchLayout.causal(length - 1, batch=batch, device=device), cache)
    row, out = prompts_BP[:, -1:], []
    for step in range(num):
        layout = BatchLayout.causal(1, start=length - 1 + step, batch=batch, device=device)
        row = model.logits(run_batch(model, row, layout, cache)).argmax(-1)
        out.append(row)
    cache.truncate(length - 1)
    return torch.cat(out, dim=1)


@torch.no_grad()
def one_shot_draft(model: Backbone, anchor_B1: Tensor, start: int, num: int, cache: BatchCache) -> Tensor:
    """The argmax (B, num) of `num` positions from `start` on, all masked, in one forward on the cached prompt; with a
    draft head each given the one before.
    """
    masks = torch.full((len(anchor_B1), num - 1), model.config.placeholder, device=anchor_B1.device)
    position = torch.arange(start - 1, start - 1 + num, device=anchor_B1.device).expand(len(anchor_B1), -1)
    layout = BatchLayout(Rows.make(position, span=0, horizon=start - 1), num_clean=0)
    hidden = run_batch(model, torch.cat([anchor_B1, masks], dim=1), layout, cache)
    if model.draft_head is None:
        return model.logits(hidden).argmax(-1)
    state, out = hidden[:, 0], [model.logits(hidden[:, 0]).argmax(-1)]
    for place in range(1, num):
        state = model.draft_head(hidden[:, place], model.embedding.weight[out[-1]].to(state.dtype), state)
        out.append(model.logits(state).argmax(-1))
    return torch.stack(out, dim=1)


def draft_equals(model: Backbone, prompts_BP: Tensor, num: int = DRAFT) -> np.ndarray:
    """Where the draft of each prompt equals the model's greedy text, bool (B, num)."""
    batch, length = prompts_BP.shape
    cache = BatchCache(model.config, length + num, batch, model.embedding.weight.dtype, prompts_BP.device)
    greedy = greedy_text(model, prompts_BP, num, cache)
    draft = one_shot_draft(model, prompts_BP[:, -1:], length, num, cache)
    return (draft == greedy).cpu().numpy()


def accepted_a_cycle(equal_BS: np.ndarray) -> np.ndarray:
    """Tokens that a cycle of self-speculation gains, int64 (B,): the longest matching start of the draft and one bonus
    token, which the verifying forward gives; no more than were drafted.
    """
    return np.minimum(np.cumprod(equal_BS, axis=1).sum(1) + 1, equal_BS.shape[1])


def draft_match(model: Backbone, prompts_BP: Tensor, num: int = DRAFT) -> tuple[np.ndarray, float]:
    """(share of prompts whose draft equals the greedy text, by position (num,); mean tokens accepted a cycle)."""
    equal = draft_equals(model, prompts_BP, num)
    return equal.mean(0), float(accepted_a_cycle(equal).mean())


GAP, SLACK = 8, 8
"""Tokens of the gaps that `gap_ends` looks at, and surplus positions behind them."""


def ends_gaps(config: ModelConfig, prompt_tokens: int) -> bool:
    """Whether `gap_ends` has anything to measure for such a model, on prompts of so many tokens."""
    known = config.null_id is not None and config.context != "block" and not config.time_input
    return known and min(prompt_tokens, config.max_positions - SLACK) // 2 > GAP


@torch.no_grad()
def gap_ends(model: Backbone, prompts_BP: Tensor) -> tuple[float, float]:
    """Mean probability of the gap filler in gaps in the middle of each prompt: where the gap's text, which is there,
    ends; and where its last token belongs, with those before it there.

    (NaN, NaN) for a model that does not end gaps, and prompts that are too short. No other figure of a run shows how
    gaps end, and training on plain text, which has no gap filler, unteaches it.
    """
    if not ends_gaps(model.config, prompts_BP.shape[1]):
        return float("nan"), float("nan")
    denoiser = BackboneDenoiser(model, backend="torch")
    prompts = prompts_BP.tolist()
    canvases = [_partly_filled(model.config, prompt, num) for prompt in prompts for num in (GAP, GAP - 1)]
    first = [canvas.active_positions()[:1] for canvas in canvases]
    asks = [
        denoiser.session(canvas, "none").ask(canvas, position, Logits())
        for canvas, position in zip(canvases, first, strict=True)
    ]
    logits = np.stack([answer.logits[0] for answer in compute(together(*asks), denoiser.backend)]).astype(np.float64)
    probability = np.exp(logits[:, model.config.null_id] - np.logaddexp.reduce(logits, axis=1))
    ended, early = probability.reshape(-1, 2).mean(0).tolist()
    return ended, early


def _partly_filled(config: ModelConfig, prompt: list[int], num: int) -> Canvas:
    """A prompt with a gap of GAP + SLACK positions in its middle, the first `num` of them filled with its text."""
    prompt = prompt[: config.max_positions - SLACK]
    start = len(prompt) // 2
    canvas = Canvas.lay_out([prompt[:start], prompt[start + GAP :]], [GAP + SLACK], config.placeholder)
    tokens, masked = canvas.tokens.copy(), canvas.open.copy()
    tokens[start : start + num], masked[start : start + num] = prompt[start : start + num], False
    return replace(canvas, tokens=tokens, open=masked, span=canvas.gaps[0])


def mean_by_level(sums: np.ndarray, counts: np.ndarray) -> list[float]:
    """Mean of each noise level; NaN where nothing was masked at that level."""
    return [float(total / count) if count else float("nan") for total, count in zip(sums, counts, strict=True)]


@torch.no_grad()
def held_losses(
    model: Backbone,
    batches: Sequence[Batch],
    token_bytes_V: Tensor,
    attn_impl: str,
    loss: BatchLoss,
    *,
    whole_texts: bool = False,
) -> HeldOut:
    """The losses of fixed held-out batches; `token_bytes_V` holds the UTF-8 bytes of each token.

    whole_texts: next-token loss is taken where a text is read as a whole alone, since an infilling batch has segments
    that are blind to one another.
    """
    clean_nats, num_bytes = 0.0, 0
    sums, counts = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS)
    accepted_sums, num_drafts, parts = np.zeros(()), 0, dict[str, float]()
    for batch in batches:
        report = loss(model, batch, attn_impl)
        if report.clean_count and (batch.layout.plain or not whole_texts):
            clean_nats += report.clean_sum
            num_bytes += int(token_bytes_V[batch.target[(batch.target != IGNORE) & (batch.level == IGNORE)]].sum())
        sums += report.level_sum
        counts += report.level_count
        for name, value in report.parts.items():
            parts[name] = parts.get(name, 0.0) + value / len(batches)
        if report.accepted is not None:
            accepted_sums, num_drafts = accepted_sums + report.accepted, num_drafts + report.num_drafts
    return HeldOut(
        clean_bpb=float(clean_nats / np.log(2) / num_bytes) if num_bytes else float("nan"),
        masked_by_level=tuple(nats / np.log(2) for nats in mean_by_level(sums, counts)),
        acceptance=tuple(map(tuple, (accepted_sums / num_drafts).tolist())) if num_drafts else (),
        parts=parts,
    )


@torch.no_grad()
def held_out(
    model: Backbone,
    batches: Sequence[Batch],
    prompts_BP: Tensor,
    token_bytes_V: Tensor,
    attn_impl: str,
    loss: BatchLoss = batch_loss,
) -> HeldOut:
    """Figures on fixed held-out batches and prompts; the model is used as it is (pass the averaged weights).

    Figures of two runs compare only where the batches are the same, and a run draws them from its mixture.
    """
    held = held_losses(model, batches, token_bytes_V, attn_impl, loss, whole_texts=True)
    match, accepted = draft_match(model, prompts_BP) if model.config.can_draft else (np.zeros(0), float("nan"))
    ended, ended_early = gap_ends(model, prompts_BP)
    return replace(held, draft_match=tuple(match.tolist()), accepted=accepted, ended=ended, ended_early=ended_early)
