"""The loss of drafts as mode "speculative" verifies them: how likely each drafted token is accepted.

A batch of groups has a clean stream, whose rows are the teacher, and behind some of its rows a group of masked rows:
those after the clean row at position a are at a+1 .. a+K, and see the clean rows up to a and each other, nothing else.
The clean row at a has given token a+1. Then the draft head goes along the group: its k-th state is computed from the
masked row at a+k, the token at a+k and the state before it, of which the first is that of the clean row at a. The state
has the draft's distribution q_k of the token at a+k+1, and the clean row at a+k the model's own, p_k.

Letters: B sequences, N groups, K masked rows of a group, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchCache, BatchLayout, run_batch
from daguerre.models.core.draft_head import DraftHead
from daguerre.train.batch import Batch, LossReport
from daguerre.train.noising import NUM_LEVELS
from daguerre.train.self_generated import compute_dtype

CROSS_ENTROPY = 0.1
"""Share of the cross-entropy in the loss; the rest is the total variation distance (DSpark, DeepSpec)."""
SMOOTHING = 0.5
"""Share of an acceptance that `suffix_weights` counts; the rest is taken as certain (D-PACE, arXiv 2605.18810)."""
RACED = 4
"""In training, tokens are drawn for one group in so many, which is enough for the confidence."""
TINY = 1e-7
MEASURES = ("greedy", "overlap", "race")


@dataclass(frozen=True)
class GroupDrafts:
    """States of the draft head (N, K, D), log q and the teacher's p (N, K, V), float32; the tokens that the head `read`
    (N, K), and the one that was most likely in place of the `first` of them (N,).
    """

    state: Tensor
    log_draft: Tensor
    teacher: Tensor
    read: Tensor
    first: Tensor

    def overlap(self) -> Tensor:
        """How often drafted tokens can be accepted at most, (N, K): sum min(p, q)."""
        return torch.minimum(self.teacher, self.log_draft.exp()).sum(-1)

    def cross_entropy(self) -> Tensor:
        """Cross-entropy of q under p in nats, (N, K)."""
        return -(self.teacher * self.log_draft.masked_fill(self.teacher == 0, 0.0)).sum(-1)

    def likely(self, wanted: Tensor) -> Tensor:
        """Whether all that the head has read up to each place is the most likely text, float (N, K); `wanted` (N, K):
        the model's most likely tokens.
        """
        likely = torch.cat([self.first[:, None], wanted[:, :-1]], dim=1)
        return torch.cumprod((self.read == likely).float(), dim=1)

    def every(self, step: int) -> GroupDrafts:
        """One group in `step`, detached."""
        return GroupDrafts(**{name: values[::step].detach() for name, values in self.__dict__.items()})


def drafted(model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> GroupDrafts:
    """What the model drafts in a batch of groups. Gradients pass through the masked rows and the head alone."""
    head, rows, num_clean = model.draft_head, batch.layout.rows, batch.layout.num_clean
    assert head is not None and batch.layout.plain
    with torch.no_grad():
        cache = BatchCache(model.config, num_clean, len(batch.tokens), compute_dtype(model), batch.tokens.device)
        text = replace(batch.layout, rows=rows[:num_clean])
        clean = run_batch(model, batch.tokens[:, :num_clean], text, cache, attn_impl)
    masked = BatchLayout(rows[num_clean:], num_clean=0)
    hidden = run_batch(model, batch.tokens[:, num_clean:], masked, cache, attn_impl, drafting=True)
    sequence, row = (index.view(-1, batch.group) for index in torch.nonzero(masked.rows.span >= 0, as_tuple=True))
    position = masked.rows.position[sequence, row]
    read = batch.tokens[sequence, position]
    before, state, states = model.embedding.weight[read], clean[sequence[:, 0], position[:, 0] - 1], []
    first = model.logits(state).argmax(-1)
    for place in range(batch.group):
        state = head(hidden[sequence[:, place], row[:, place]], before[:, place], state)
        states.append(state)
    with torch.no_grad():
        teacher = F.softmax(model.logits(clean[sequence, position]), dim=-1)
    every = torch.stack(states, dim=1)
    return GroupDrafts(every, F.log_softmax(model.logits(every), dim=-1), teacher, read, first)


def acceptance_loss(model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
    """The mean over groups and places of  w_k [c CE(p_k, q_k) + (1-c) 2 (1 - a_k)],  a_k = sum min(p_k, q_k), c =
    CROSS_ENTROPY, w_k as in `suffix_weights`, its mean made one; and the loss of the confidence. See `batch_loss`.
    """
    found = drafted(model, batch, attn_impl)
    overlap, ce = found.overlap(), found.cross_entropy()
    weight = suffix_weights(overlap.detach())
    loss = (weight / weight.mean() * (CROSS_ENTROPY * ce + (1 - CROSS_ENTROPY) * 2 * (1 - overlap))).mean()
    return reported(model, batch, found, loss)


def reported(model: Backbone, batch: Batch, found: GroupDrafts, loss: Tensor) -> LossReport:
    """The loss of drafts with that of the confidence added, and how many drafted tokens are accepted."""
    step = RACED if torch.is_grad_enabled() else 1
    some = found.every(step)
    drawn, wanted = race(some, batch.seed)
    matches = (drawn == wanted).float()
    if model.draft_head is not None and model.draft_head.confidence is not None:
        loss = loss + confidence_loss(model.draft_head, some, drawn, wanted)
    with torch.no_grad():
        ce = found.cross_entropy()
    level_sum, level_count = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS, dtype=np.int64)
    level_sum[-1], level_count[-1] = float(ce.sum()), ce.numel()
    sums = torch.stack([matches[..., 0], some.overlap(), matches[..., 1]]).sum(1)
    return LossReport(loss, 0.0, 0, level_sum, level_count, sums.double().cpu().numpy(), len(matches))


def suffix_weights(acceptance: Tensor) -> Tensor:
    """Weights (N, K) of the places of a draft from their acceptances (N, K): w_k = sum over j >= k of s_1 ... s_j with
    s_j = 1 - SMOOTHING + SMOOTHING a_j, the derivative of the expected length by log s_k (D-PACE, arXiv 2605.18810).
    """
    reached = torch.cumprod(1 - SMOOTHING + SMOOTHING * acceptance, dim=-1)
    return reached.flip(-1).cumsum(-1).flip(-1)


def race(found: GroupDrafts, seed: int) -> tuple[Tensor, Tensor]:
    """The drafted tokens (N, K, 2) at temperatures 0 and 1, and the model's own, which accept equal ones.

    At temperature 1 both are the winners of one race (Gumbel-max with shared noise; Daliri, Musco and Suresh, arXiv
    2408.07978): the least of E_v / p_v and of E_v / q_v, exponential E_v of that seed.
    """
    draft, teacher = found.log_draft.exp(), found.teacher
    generator = torch.Generator(draft.device).manual_seed(seed)
    noise = torch.rand(draft.shape, generator=generator, device=draft.device).clamp_(TINY, 1 - TINY).log_().neg_()
    drawn = torch.stack([draft.argmax(-1), (draft / noise).argmax(-1)], dim=-1)
    wanted = torch.stack([teacher.argmax(-1), (teacher / noise).argmax(-1)], dim=-1)
    return drawn, wanted


def confidence_loss(head: DraftHead, found: GroupDrafts, drawn: Tensor, wanted: Tensor) -> Tensor:
    """Binary cross-entropy of the confidence, the sum of those at temperatures 0 and 1, for tokens (N, K, 2) that were
    drafted and those of the model. `found` is detached.

    A place counts where all before it are accepted; at temperature 0 if also all that the head has read is the most
    likely text, as it then is in decoding.
    """
    matches = (drawn == wanted).float()
    reached = reached_by(matches)
    reached[..., 0] *= found.likely(wanted[..., 0])
    log_prob = found.log_draft.gather(-1, drawn)
    logits = [head.acceptance_logits(found.state, log_prob[..., kind])[..., kind] for kind in range(2)]
    each = F.binary_cross_entropy_with_logits(torch.stack(logits, dim=-1), matches, reduction="none")
    return ((reached * each).sum((0, 1)) / reached.sum((0, 1)).clamp(min=1)).sum()


def reached_by(matches: Tensor) -> Tensor:
    """Whether all places before each place match, float, of the shape of `matches` (N, K, ...)."""
    return torch.cumprod(torch.cat([torch.ones_like(matches[:, :1]), matches[:, :-1]], dim=1), dim=1)
