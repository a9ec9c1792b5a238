"""Self-generated tokens in a batch, put there before its forward: the model's greedy text, and its wrong guesses.

Both are functions of the weights and the batch alone, so a resumed run sees them again.

Letters: B sequences, R rows, K noisy spans of a sequence, S tokens of the longest span.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from daguerre.models.core.attention import Block
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import CLEAN, PADDING, BatchCache, BatchLayout, Rows, run_batch
from daguerre.train.batch import Batch


@torch.no_grad()
def with_self_generated_tokens(model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> Batch:
    """The batch as its objective needs it: self-generated text in its spans, or wrong guesses as planted errors."""
    if batch.teacher == "self":
        batch = _with_self_generated_text(model, batch, attn_impl)
    if bool(batch.guess.any()):
        batch = _with_wrong_guesses(model, batch, attn_impl)
    return batch


def _with_wrong_guesses(model: Backbone, batch: Batch, attn_impl: str) -> Batch:
    """Where `guess` is set, the most likely wrong token: that position masked, the true token and ends left out.

    With a shift, the row before a token is the one that predicts it.
    """
    config = model.config
    guessed = batch.guess.bool()
    predicting = torch.roll(guessed, -1, dims=1) if config.noisy_offset else guessed
    masked = torch.where(guessed, config.placeholder, batch.tokens)
    logits = model.logits(run_batch(model, masked, batch.layout, attn_impl=attn_impl)[predicting])
    logits.scatter_(1, batch.target[predicting][:, None], float("-inf"))
    logits[:, config.ends] = float("-inf")
    tokens = batch.tokens.clone()
    tokens[guessed] = logits.argmax(-1)  # rows in the order of `predicting`, which is that of `guessed`
    return replace(batch, tokens=tokens)


@dataclass(frozen=True)
class Branches(BatchLayout):
    """Rows that continue a text from several places: each sees the text up to its horizon, and its branch so far.

    The text is segment 0; branch k is segment k + 1.
    """

    def blocks(self, cached: Rows | None, window: int | None = None) -> list[Block]:
        keys = self.rows if cached is None else Rows.cat([cached, self.rows])
        same_branch = keys.segment[:, None] == self.rows.segment[:, :, None]
        same_branch &= keys.position[:, None] <= self.rows.position[:, :, None]
        text = (keys.segment == 0) & (keys.span != PADDING)
        before = text[:, None] & (keys.position[:, None] < self.rows.horizon[:, :, None])
        seen = same_branch | before
        if window is not None:
            seen &= keys.position[:, None] > self.rows.position[:, :, None] - window
        return [(slice(0, self.rows.num_rows), slice(0, keys.num_rows), seen[:, None])]


def _with_self_generated_text(model: Backbone, batch: Batch, attn_impl: str) -> Batch:
    """Spans continue with the model's greedy text: targets, and the visible tokens among the inputs."""
    rows, noisy = batch.layout.rows, slice(batch.layout.num_clean, None)
    span, position = rows.span[:, noisy], rows.position[:, noisy]
    if not bool((span >= 0).any()):
        return batch
    anchor, length = _spans(span, position)
    text_BKS = greedy_branches(model, batch, anchor, length, attn_impl)
    sequence = torch.arange(len(span), device=span.device)[:, None]
    index = span.clamp(min=0)
    place = (position - anchor[sequence, index]).clamp(min=0)
    predicted = text_BKS[sequence, index, place]
    read = text_BKS[sequence, index, (place - 1).clamp(min=0)]
    target, tokens = batch.target.clone(), batch.tokens.clone()
    inside = span >= 0
    has_target = inside & (target[:, noisy] >= 0)
    visible = inside & (place > 0) & (tokens[:, noisy] != model.config.placeholder)
    target[:, noisy] = torch.where(has_target, predicted, target[:, noisy])
    tokens[:, noisy] = torch.where(visible, read, tokens[:, noisy])
    return replace(batch, target=target, tokens=tokens)


def _spans(span_BR: Tensor, position_BR: Tensor) -> tuple[Tensor, Tensor]:
    """(position of the anchor row, number of rows), int64 (B, K) each, of the spans 0 .. K-1; a missing one has 0."""
    num = int(span_BR.max()) + 1
    numbers = torch.arange(num, device=span_BR.device)
    member = span_BR[:, None, :] == numbers[None, :, None]
    length = member.sum(-1)
    far = torch.iinfo(torch.int64).max
    anchor = torch.where(member, position_BR[:, None, :], far).amin(-1)
    return torch.where(length > 0, anchor, 0), length


def greedy_branches(model: Backbone, batch: Batch, anchor_BK: Tensor, length_BK: Tensor, attn_impl: str) -> Tensor:
    """Greedy text (B, K, S) of the batch's clean stream, continued behind each anchor; zeros behind a branch's length.

    Equal to decoding each branch alone, one cached row a step; all branches of a step go through one forward.
    """
    num_clean = batch.layout.num_clean
    num, longest = anchor_BK.shape[1], int(length_BK.max())
    order = length_BK.argsort(dim=1, descending=True, stable=True)  # those that still grow come first
    anchor, length = anchor_BK.gather(1, order), length_BK.gather(1, order)
    steps = [int((length > step).sum(1).max()) for step in range(1, longest)]
    cache = BatchCache(model.config, num_clean + sum(steps), len(anchor), compute_dtype(model), anchor.device)
    text = replace(batch.layout, rows=batch.layout.rows[:num_clean])
    hidden = run_batch(model, batch.tokens[:, :num_clean], text, cache, attn_impl)
    sequence = torch.arange(len(anchor), device=anchor.device)[:, None]
    out = anchor.new_zeros(len(anchor), num, longest)
    out[:, :, 0] = model.logits(hidden[sequence, anchor]).argmax(-1)
    for step, alive in enumerate(steps, start=1):
        segment = torch.arange(1, alive + 1, device=anchor.device).expand(len(anchor), -1)
        branch = Rows.make(anchor[:, :alive] + step, CLEAN, segment=segment, horizon=anchor[:, :alive] + 1)
        hidden = run_batch(model, out[:, :alive, step - 1], Branches(branch, num_clean=alive), cache, attn_impl)
        out[:, :alive, step] = model.logits(hidden).argmax(-1)
    out = torch.where(torch.arange(longest, device=anchor.device) < length[:, :, None], out, 0)
    return torch.empty_like(out).scatter_(1, order[:, :, None].expand_as(out), out)


def compute_dtype(model: Backbone) -> torch.dtype:
    """The type that the model's matrices are multiplied in."""
    weight = model.embedding.weight
    autocast = torch.is_autocast_enabled(weight.device.type)
    return torch.get_autocast_dtype(weight.device.type) if autocast else weight.dtype
