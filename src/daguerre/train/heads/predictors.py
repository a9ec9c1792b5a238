"""The two linear maps that tell which concepts a row has, those to come and those that were read, and what they learn.

They learn from labels alone, before all else: what each concept's vector is depends on them, and they on nothing. Each
concept is a decision of its own, so the problem is convex, and its loss is divided by what is known of it without any
row, the entropy of its prevalence: a rare concept is learned as far as a frequent one. One part of the loss is each
row's, the other that of the probability that some row of a span has the concept, by which files are searched and heads
are measured; spans are cut elsewhere in each step. The second pulls a concept's logits up in all rows of a span, so at
the end `calibrate` moves them back: a concept is as likely, over rows, as it is frequent.

What the weight of the rows' part buys, of 97 concepts to come in held-out text, SmolLM2-135M, 150,000 tokens: of .1,
.5, .9 the mean area over spans is .950, .942, .930, and over tokens .862, .900, .912.

Letters: A rows, D width, N known concepts, W windows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.concepts.labels import CHUNK
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.train.concept_heads import RAREST
from daguerre.train.concept_loss import any_losses
from daguerre.train.heads.windows import ChosenWindows

OF_ROWS = 0.5
"""The weight of the rows' loss; the spans' has the rest."""
SHRINKING = 0.03
"""Half of it, times the squared weights of a concept, is added to its loss."""
SPANS = 64
"""Of a step."""
RATE = 0.03
"""Of Adam at first; it falls to 0 as a cosine."""
MOST_MOVED, HALVINGS = 20.0, 20
"""How far a bias is moved, at most, and how often that interval is halved to find it."""


def rate_at(share: float) -> float:
    """The rate at a share of the steps."""
    return RATE * (1 + math.cos(math.pi * min(1.0, share))) / 2


@dataclass(frozen=True, eq=False)
class Prevalence:
    """The entropies in nats, float32 (N,), of whether a row has a concept, and a span of CHUNK rows."""

    row: Tensor
    span: Tensor

    @classmethod
    def of(cls, rows: np.ndarray, windows: ChosenWindows) -> Prevalence:
        """Of the share of rows with each concept (N,), and the windows that are learned from."""
        learned = windows.take(np.flatnonzero(~windows.held))
        spans = -(-learned.sizes.astype(np.int64) // CHUNK)
        return cls(_entropy(rows), _entropy(learned.counts().sum(axis=0, dtype=np.int64) / spans.sum()))


def _entropy(share: np.ndarray) -> Tensor:
    rate = torch.from_numpy(share).float().clamp(RAREST, 1 - RAREST)
    return -(rate * rate.log() + (1 - rate) * torch.log1p(-rate))


def drawn_spans(
    windows: ChosenWindows, rng: np.random.Generator, held: bool, num: int = SPANS
) -> tuple[np.ndarray, Tensor]:
    """Rows (A,) of so many spans of windows that are held out, or of the others, and the span of each, int64 (A,). A
    span has CHUNK rows, or what the window has; all rows are drawn alike. The last row of a window is in none: the
    token that follows it is not known.
    """
    some = np.flatnonzero((windows.held == held) & (windows.sizes > 1))
    sizes, starts = windows.sizes[some].astype(np.int64) - 1, windows.starts[some]
    places = sizes + CHUNK - 1
    drawn = rng.choice(len(some), num, p=places / places.sum())
    begins = rng.integers(1 - CHUNK, sizes[drawn])
    first, end = begins.clip(0), np.minimum(begins + CHUNK, sizes[drawn])
    rows = [starts[one] + np.arange(*span) for one, *span in zip(drawn, first, end, strict=True)]
    return np.concatenate(rows), torch.from_numpy(np.repeat(np.arange(num), end - first))


def predictors_loss(
    heads: ConceptHeads, hidden: Tensor, come: Tensor, read: Tensor, span: Tensor, prevalence: Prevalence
) -> tuple[Tensor, dict[str, float]]:
    """The loss of both maps on normal rows (A, D) with the concepts that come and were read, bool (A, N), and its parts
    by name, each a mean over concepts, in entropies.
    """
    assert heads.read_predictor is not None
    total, parts = hidden.new_zeros(()), dict[str, float]()
    for name, layer, labels in (("come", heads.known_predictor, come), ("read", heads.read_predictor, read)):
        z, y = layer(hidden), labels.float()
        row = (F.binary_cross_entropy_with_logits(z, y, reduction="none").mean(dim=0) / prevalence.row).mean()
        some = (any_losses(z, y, span) / prevalence.span).mean()
        total = total + OF_ROWS * row + (1 - OF_ROWS) * some
        total = total + SHRINKING / 2 * layer.weight.square().sum() / len(layer.weight)
        parts |= {f"{name} of rows": float(row.detach()), f"{name} of spans": float(some.detach())}
    return total, parts


@torch.no_grad()
def calibrate(layer: torch.nn.Linear, hidden: Tensor, labels: Tensor) -> None:
    """Move each bias so that the mean probability over rows (A, D) is the share with the label, bool (A, N)."""
    z, share = layer(hidden), labels.float().mean(dim=0).clamp(RAREST, 1 - RAREST)
    low, high = torch.full_like(share, -MOST_MOVED), torch.full_like(share, MOST_MOVED)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = (z + middle).sigmoid().mean(dim=0) > share
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    layer.bias.add_((low + high) / 2)
