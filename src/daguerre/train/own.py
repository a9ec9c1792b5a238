"""What the model itself says, put into a batch before its forward: its own greedy text, and its own wrong guesses.

Both are functions of the weights and the batch alone, so a resumed run sees them again.

Letters: B sequences, R rows, T settled rows, K open spans of a sequence, S tokens of the longest span.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from daguerre.models.backbone import Backbone
from daguerre.models.cache import Cache
from daguerre.models.layout import PADDING, SETTLED, Layout, Rows
from daguerre.train.batch import Batch


@torch.no_grad()
def with_own_words(model: Backbone, batch: Batch, backend: str = "sdpa") -> Batch:
    """The batch as its objective asks: own greedy text in its spans, or own guesses for its planted errors."""
    if batch.teacher == "own":
        batch = _with_own_text(model, batch, backend)
    if bool(batch.guess.any()):
        batch = _with_own_guesses(model, batch, backend)
    return batch


def _with_own_guesses(model: Backbone, batch: Batch, backend: str) -> Batch:
    """Where `guess` is set, the most likely wrong token: that position masked, the true token and ends left out.

    The row before one that shows a token is the one that predicts it (shift).
    """
    config = model.config
    wanted = batch.guess.bool()
    asked = torch.roll(wanted, -1, dims=1)
    masked = torch.where(wanted, config.mask_id, batch.tokens)
    logits = model.logits(model(masked, batch.layout, backend=backend)[asked])
    logits.scatter_(1, batch.target[asked][:, None], float("-inf"))
    logits[:, config.ends] = float("-inf")
    tokens = batch.tokens.clone()
    tokens[wanted] = logits.argmax(-1)  # rows in the order of `asked`, which is that of `wanted`
    return replace(batch, tokens=tokens)


@dataclass(frozen=True)
class Branches(Layout):
    """Rows that continue a text from several places: each sees the text up to its horizon, and its own branch so far.

    The text is segment 0; branch k is segment k + 1.
    """

    def blocks(self, cached: Rows | None) -> list[tuple[slice, int, Tensor | None]]:
        keys = self.rows if cached is None else Rows.cat([cached, self.rows])
        own = (keys.segment[:, None] == self.rows.segment[:, :, None]) & (
            keys.position[:, None] <= self.rows.position[:, :, None]
        )
        text = (keys.segment == 0) & (keys.span != PADDING)
        before = text[:, None] & (keys.position[:, None] < self.rows.horizon[:, :, None])
        return [(slice(0, self.rows.num_rows), keys.num_rows, (own | before)[:, None])]


def _with_own_text(model: Backbone, batch: Batch, backend: str) -> Batch:
    """Spans continue with the model's greedy text: targets, and the visible tokens among the inputs."""
    rows, settled = batch.layout.rows, batch.layout.num_settled
    span, position = rows.span[:, settled:], rows.position[:, settled:]
    if not bool((span >= 0).any()):
        return batch
    seed, length = _spans(span, position)
    text_BKS = greedy_branches(model, batch, seed, length, backend)
    sequence = torch.arange(len(span), device=span.device)[:, None]
    index = span.clamp(min=0)
    place = (position - seed[sequence, index]).clamp(min=0)
    predicted = text_BKS[sequence, index, place]
    shown = text_BKS[sequence, index, (place - 1).clamp(min=0)]
    target, tokens = batch.target.clone(), batch.tokens.clone()
    inside = span >= 0
    asked = inside & (target[:, settled:] >= 0)
    visible = inside & (place > 0) & (tokens[:, settled:] != model.config.mask_id)
    target[:, settled:] = torch.where(asked, predicted, target[:, settled:])
    tokens[:, settled:] = torch.where(visible, shown, tokens[:, settled:])
    return replace(batch, target=target, tokens=tokens)


def _spans(span_BR: Tensor, position_BR: Tensor) -> tuple[Tensor, Tensor]:
    """(position of the seed, number of rows), int64 (B, K) each, of the spans 0 .. K-1; a missing one has no rows."""
    num = int(span_BR.max()) + 1
    numbers = torch.arange(num, device=span_BR.device)
    member = span_BR[:, None, :] == numbers[None, :, None]
    length = member.sum(-1)
    far = torch.iinfo(torch.int64).max
    seed = torch.where(member, position_BR[:, None, :], far).amin(-1)
    return torch.where(length > 0, seed, 0), length


def greedy_branches(model: Backbone, batch: Batch, seed_BK: Tensor, length_BK: Tensor, backend: str) -> Tensor:
    """Greedy text (B, K, S) of the batch's clean stream, continued behind each seed; zeros behind a branch's length.

    Equal to decoding each branch by itself, one cached row a step; all branches of a step go through one forward.
    """
    settled = batch.layout.num_settled
    num, longest = seed_BK.shape[1], int(length_BK.max())
    order = length_BK.argsort(dim=1, descending=True, stable=True)  # those that still grow come first
    seed, length = seed_BK.gather(1, order), length_BK.gather(1, order)
    steps = [int((length > step).sum(1).max()) for step in range(1, longest)]
    weight = model.embedding.weight
    compute = (
        torch.get_autocast_dtype(weight.device.type) if torch.is_autocast_enabled(weight.device.type) else weight.dtype
    )
    size = settled + sum(steps)
    cache = Cache(model.config, size, batch=len(seed), dtype=compute, device=weight.device)
    rows = batch.layout.rows[:settled]
    hidden = model(batch.tokens[:, :settled], replace(batch.layout, rows=rows), cache, backend)
    sequence = torch.arange(len(seed), device=seed.device)[:, None]
    out = seed.new_zeros(len(seed), num, longest)
    out[:, :, 0] = model.logits(hidden[sequence, seed]).argmax(-1)
    for step, alive in enumerate(steps, start=1):
        segment = torch.arange(1, alive + 1, device=seed.device).expand(len(seed), -1)
        place = seed[:, :alive] + step
        branch = Rows.make(place, SETTLED, segment=segment, horizon=seed[:, :alive] + 1)
        hidden = model(out[:, :alive, step - 1], Branches(branch, num_settled=alive), cache, backend)
        out[:, :alive, step] = model.logits(hidden).argmax(-1)
    out = torch.where(torch.arange(longest, device=seed.device) < length[:, :, None], out, 0)
    return torch.empty_like(out).scatter_(1, order[:, :, None].expand_as(out), out)
