"""The loss of drafts: how likely each of their tokens is accepted; and the drafts of a head that reads clean rows.

The clean row at place a of a text has the state h_a, and the text goes on with the token x_a. The head's k-th state
s_k, k = 1 .. K, is computed from h_a, the token x_(a+k-1) and the state before it, s_0 = h_a; it has the draft's
distribution q_k of the token x_(a+k) over the draft tokens. The model's own, p_k, is that of the row a+k. Of the rows
that a depth reaches, a random share goes on to the next.

Letters: R rows, N drafts of a depth, D width, S draft tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.core.draft_head import DraftHead
from daguerre.train.acceptance import CROSS_ENTROPY, SMOOTHING, TINY

RACED = 4
"""Tokens at temperature 1 are drawn for one row in so many: enough for the confidence."""


@dataclass(frozen=True)
class Frozen:
    """What the head reads of the frozen model: the embedding (V, D), the draft tokens (S,), int64, and the rows of the
    vocabulary projection that are theirs (S, D).
    """

    embedding: Tensor
    tokens: Tensor
    projection: Tensor

    def teacher(self, hidden: Tensor, log_sum: Tensor) -> Tensor:
        """The model's probabilities of the draft tokens, (R, S), from states (R, D) and logs of sums (R,)."""
        return (hidden @ self.projection.T - log_sum[:, None]).exp_()


@dataclass(frozen=True)
class StateRows:
    """Rows of texts, one text after the other: states (R, D), the tokens that follow, the logs of sums, the most likely
    tokens, and the end of the row's text, (R,) each.
    """

    hidden: Tensor
    token: Tensor
    log_sum: Tensor
    top: Tensor
    end: Tensor

    @classmethod
    def of(cls, records: np.ndarray, sizes: list[int]) -> StateRows:
        """The rows of records (`train.drafts.states`) of texts of these sizes."""
        end = np.repeat(np.cumsum(sizes), sizes)
        hidden, log_sum = (torch.from_numpy(records[name].astype(np.float32)) for name in ("hidden", "log_sum"))
        token, top = (torch.from_numpy(records[name].astype(np.int64)) for name in ("token", "top"))
        return cls(hidden, token, log_sum, top, torch.from_numpy(end))


@dataclass(frozen=True)
class DepthDrafts:
    """Drafts of depth k: the rows that have their teacher, (N,); the states of the head (N, D), log q and p, (N, S)."""

    row: Tensor
    state: Tensor
    log_draft: Tensor
    teacher: Tensor

    def overlap(self) -> Tensor:
        """How often drafted tokens can be accepted at most, (N,): sum min(p, q)."""
        return torch.minimum(self.teacher, self.log_draft.exp()).sum(-1)


def drafted(
    head: DraftHead,
    frozen: Frozen,
    rows: StateRows,
    depth: int,
    kept: float = 1.0,
    generator: torch.Generator | None = None,
) -> Iterator[DepthDrafts]:
    """The drafts of each depth; of a depth a share `kept` goes on to the next."""
    teacher = frozen.teacher(rows.hidden, rows.log_sum)
    at, state = torch.arange(len(rows.token)), rows.hidden
    for k in range(1, depth + 1):
        stays = at + k < rows.end[at]
        if k > 1 and kept < 1:
            stays &= torch.rand(len(at), generator=generator) < kept
        at, state = at[stays], state[stays]
        if not len(at):
            return
        state = head(rows.hidden[at], frozen.embedding[rows.token[at + k - 1]], state)
        yield DepthDrafts(at + k, state, F.log_softmax(state @ frozen.projection.T, dim=-1), teacher[at + k])


@dataclass(frozen=True)
class DraftLoss:
    """The loss, how many drafts it is of, and the sum of their overlaps."""

    loss: Tensor
    num: int
    overlap: float


def drafting_loss(
    depths: Sequence[DepthDrafts],
    head: DraftHead | None,
    frozen: Frozen,
    rows: StateRows,
    generator: torch.Generator,
) -> DraftLoss:
    """The mean over drafts of  w_k [c CE(p_k, q_k) + (1-c) 2 (1 - a_k)],  a_k = sum min(p_k, q_k), and the loss of the
    head's confidence. w_k, of mean 1, is the expected number of tokens that depend on depth k by the mean acceptance of
    each depth (`train.acceptance.suffix_weights`, over the batch).
    """
    overlaps = [one.overlap() for one in depths]
    weights = reach_weights([float(each.detach().mean()) for each in overlaps])
    scale = sum(w * len(each) for w, each in zip(weights, overlaps, strict=True))
    total = rows.hidden.new_zeros(())
    for weight, one, overlap in zip(weights, depths, overlaps, strict=True):
        ce = -(one.teacher * one.log_draft).sum(-1)
        total = total + weight / scale * (CROSS_ENTROPY * ce + (1 - CROSS_ENTROPY) * 2 * (1 - overlap)).sum()
        if head is not None:
            total = total + confidence_loss(head, frozen, rows, one, generator) / len(depths)
    return DraftLoss(total, sum(map(len, overlaps)), float(sum(each.detach().sum() for each in overlaps)))


def reach_weights(acceptance: list[float]) -> list[float]:
    """w_k = sum over j >= k of s_1 ... s_j, s_j = 1 - SMOOTHING + SMOOTHING a_j."""
    reached = np.cumprod([1 - SMOOTHING + SMOOTHING * a for a in acceptance])
    out: list[float] = np.cumsum(reached[::-1])[::-1].tolist()
    return out


def race(
    frozen: Frozen, rows: StateRows, one: DepthDrafts, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens at temperatures 0 and 1 as indices of draft tokens, (N, 2); whether they are the model's own, and the logs
    of their probabilities, float (N, 2) each.

    At temperature 1 both are winners of one race (`train.acceptance.race`); all tokens that are no draft tokens run as
    one.
    """
    noise = torch.rand(one.teacher.shape, generator=generator).clamp_(TINY, 1 - TINY).log_().neg_()
    others = torch.rand(len(one.row), generator=generator).clamp_(TINY, 1 - TINY).log_().neg_()
    drawn = torch.stack([one.log_draft.argmax(-1), (one.log_draft.exp() / noise).argmax(-1)], dim=-1)
    own = one.teacher / noise
    rest = (1 - one.teacher.sum(-1)).clamp(min=0) / others
    most, winner = own.max(-1)
    matches = torch.stack(
        [frozen.tokens[drawn[:, 0]] == rows.top[one.row], (winner == drawn[:, 1]) & (most > rest)], dim=-1
    )
    return drawn, matches.float(), one.log_draft.gather(-1, drawn)


def confidence_loss(
    head: DraftHead, frozen: Frozen, rows: StateRows, one: DepthDrafts, generator: torch.Generator
) -> Tensor:
    """Binary cross-entropy of the confidence at temperatures 0 and 1, the sum of both, for one row in RACED; no
    gradient passes to the head's states.
    """
    some = DepthDrafts(*(value[::RACED].detach() for value in (one.row, one.state, one.log_draft, one.teacher)))
    _, matches, log_prob = race(frozen, rows, some, generator)
    logits = [head.acceptance_logits(some.state, log_prob[:, kind])[:, kind] for kind in range(2)]
    return F.binary_cross_entropy_with_logits(torch.stack(logits, dim=-1), matches, reduction="none").sum(-1).mean()
