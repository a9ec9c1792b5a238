"""The loss of concept heads that read the hidden states of a model that they do not change.

It is that of `train.concept_loss` on rows without their residual, with two changes. The loss over words is KL(p || q)
of the model's own distribution p of a row and that of its concepts alone, q, both over a few thousand tokens: those
that follow rows of the step, and others, drawn anew. Its least is where the logits are equal up to a constant,
whatever was drawn, so no correction is needed; over all words a step would take twenty times as long. And a map of its
own learns the concepts of the token that a row has read; it and the logits of concepts to come are learned beforehand
(`predictors`).

Rows are normal: h = mean + scale x, number by number, so that all numbers of x are alike. `folded` makes of heads of x
those of h; one discovered concept that is always on is the mean.

Letters: A rows, D width, N known concepts, V vocabulary, S drawn tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.core.shapes import CLAMP, ConceptShape
from daguerre.train.concept_heads import RAREST, SPARSE, ConceptCounts
from daguerre.train.concept_loss import ConceptLoss, TokensOf

TINY = 1e-3
"""The least scale of a number of hidden states, as a share of the mean one."""


@dataclass(frozen=True, eq=False)
class NormalRows:
    """hidden float32 (A, D), normal; token int64 (A,), which follows; read, come bool (A, N): the concepts of the token
    that was read, and of the one that follows.
    """

    hidden: Tensor
    token: Tensor
    read: Tensor
    come: Tensor


@dataclass(frozen=True, eq=False)
class Normal:
    """What makes hidden states normal: the mean and scale of each number, float32 (D,)."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, hidden: Tensor) -> Normal:
        """Of a sample of hidden states (A, D)."""
        scale = hidden.std(dim=0)
        return cls(hidden.mean(dim=0), scale.clamp_min(TINY * float(scale.mean())))

    def __call__(self, hidden: Tensor) -> Tensor:
        """Normal rows of hidden states (A, D)."""
        return (hidden - self.mean) / self.scale


class DrawnWords(nn.Module):
    """Concept heads of normal rows, with the vocabulary projection to some tokens: as much of a backbone as
    `ConceptLoss.losses_of` asks.

    projection   float32 (V, D)
    bias         float32 (V,), or None
    """

    def __init__(self, concepts: ConceptHeads, projection: Tensor, bias: Tensor | None, normal: Normal) -> None:
        super().__init__()
        self.concepts = concepts
        self.normal = normal
        self._projection, self._bias = projection, bias
        self._mean = projection.mean(dim=0) * normal.scale
        self._words = torch.zeros(0, dtype=torch.int64)

    def draw(self, words: Tensor) -> None:
        """From now on logits are those of these tokens, int64 (S,)."""
        rows = self._projection[words]
        self._words, self._rows = words, rows * self.normal.scale
        self._at_mean = rows @ self.normal.mean + (0 if self._bias is None else self._bias[words])

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (A, S) of normal rows (A, D)."""
        return hidden @ self._rows.T + self._at_mean

    def promoted(self, vectors: Tensor) -> Tensor:
        """How far vectors (J, D) raise each drawn token above the mean of all, (J, S)."""
        return vectors @ (self._rows - self._mean).T


def heads_loss(loss: ConceptLoss, model: DrawnWords, rows: NormalRows, words: int) -> tuple[Tensor, dict[str, float]]:
    """The loss of rows, and its parts; what `predictors` learn is known. words: of so many rows, the first, the loss
    over words is taken.
    """
    weights = loss.options
    losses, _, alone = loss.losses_of(model, rows.hidden, rows.come.float(), rows.token < 0, 0)  # type: ignore[arg-type]
    total = torch.stack([getattr(weights, name) * value for name, value in losses.items()]).sum()
    words_loss = word_loss(model, rows.hidden[:words], alone[:words])
    parts = losses | {"words": words_loss}
    return total + words_loss, {name: float(value.detach()) for name, value in parts.items()}


def word_loss(model: DrawnWords, hidden: Tensor, alone: Tensor) -> Tensor:
    """KL(p || q) over the drawn tokens, a mean over rows: p of hidden states (A, D), q of their concepts alone."""
    with torch.no_grad():
        own = F.log_softmax(model.logits(hidden), dim=-1)
    return F.kl_div(F.log_softmax(model.logits(alone), dim=-1), own, reduction="batchmean", log_target=True)


class WordsOf:
    """What windows say of the tokens of concepts (`ConceptCounts`), for any tokens that are drawn.

    tokens, labels  int64 (T,) and bool (T, N) of rows, in parts
    """

    def __init__(self, parts: Iterable[tuple[np.ndarray, np.ndarray]], num: int, vocab_size: int) -> None:
        together = np.zeros((vocab_size, num), np.int32)
        self.tokens = np.zeros(vocab_size, np.int64)
        for tokens, labels in parts:
            row, concept = np.nonzero(labels)
            np.add.at(together, (tokens[row], concept), 1)
            self.tokens += np.bincount(tokens, minlength=vocab_size)
        seen = np.flatnonzero(self.tokens)
        self._place = np.full(vocab_size, len(seen))  # a row of zeros
        self._place[seen] = np.arange(len(seen))
        counts = ConceptCounts(together[seen].T.astype(np.int64), self.tokens[seen])
        self.prevalence = counts.prevalence
        with_zeros = ((0, 1), (0, 0))
        lift = np.log(np.where(counts.liked, counts.lift, 1.0)).T.astype(np.float32)
        self._lift, self._together = np.pad(lift, with_zeros), np.pad(counts.together.T, with_zeros)

    def drawn(self, words: np.ndarray) -> TokensOf:
        """What they say of the drawn tokens (S,), as if there were no others."""
        places = self._place[words]
        usual = self.tokens[words] / max(1, self.tokens[words].sum())
        together, lift = self._together[places].T, self._lift[places].T
        given = together / np.maximum(1, together.sum(axis=1, keepdims=True))
        each = usual.astype(np.float32), given.astype(np.float32), lift > 0, lift.max(axis=1)
        return TokensOf(*(torch.from_numpy(np.ascontiguousarray(part)) for part in each))


def inner_shape(shape: ConceptShape) -> ConceptShape:
    """The shape of heads of normal rows: without the concept that is the mean."""
    return replace(
        shape, discovered=shape.discovered - 1, rank=shape.rank - 1, kept_discovered=shape.kept_discovered - 1
    )


@torch.no_grad()
def fresh_heads(width: int, shape: ConceptShape, come: np.ndarray, read: np.ndarray, seed: int) -> ConceptHeads:
    """Heads of normal rows that predict each concept as often as it occurs, (N,) each, with small vectors."""
    heads, generator = ConceptHeads(width, shape), torch.Generator().manual_seed(seed)
    assert heads.read_predictor is not None
    for weight, scale in (
        (heads.known_predictor.weight, 0.1 * width**-0.5),
        (heads.read_predictor.weight, 0.1 * width**-0.5),
        (heads.known_embedding.weight, 0.1),
        (heads.discovered_down.weight, width**-0.5),
        (heads.discovered_up.weight, shape.rank**-0.5),
        (heads.discovered_coefficients.weight, shape.rank**-0.5),
        (heads.discovered_basis.weight, 0.5),
    ):
        weight.copy_(torch.empty(weight.shape).normal_(0, scale, generator=generator))
    for layer, share in ((heads.known_predictor, come), (heads.read_predictor, read)):
        layer.bias.copy_(torch.logit(torch.from_numpy(share).clamp(RAREST, 1 - RAREST)).float())
    heads.discovered_up.bias.fill_(SPARSE)
    return heads


def folded(heads: Mapping[str, Tensor], normal: Normal) -> dict[str, Tensor]:
    """The weights of heads of h, of those of heads of normal rows; see the module. Biases are made of the weights as
    they are rounded to 16 bits, so that rounding moves no logit of the mean row.
    """
    out: dict[str, Any] = {}

    def rounded(weight: Tensor) -> Tensor:
        return (weight / normal.scale).bfloat16().float()

    for name in ("known_predictor", "read_predictor"):
        weight = out[f"{name}.weight"] = rounded(heads[f"{name}.weight"])
        out[f"{name}.bias"] = heads[f"{name}.bias"] - weight @ normal.mean
    down, up = rounded(heads["discovered_down.weight"]), heads["discovered_up.weight"].bfloat16().float()
    basis, coefficients = heads["discovered_basis.weight"], heads["discovered_coefficients.weight"]
    unit = F.one_hot(torch.tensor([coefficients.shape[1]])).float()
    size = normal.mean.abs().mean().clamp_min(1e-6)
    out["known_embedding.weight"] = heads["known_embedding.weight"] * normal.scale
    out["discovered_down.weight"] = F.pad(down, (0, 0, 0, 1))
    out["discovered_up.weight"] = F.pad(up, (0, 1, 0, 1))
    bias = heads["discovered_up.bias"] - up @ (down @ normal.mean)
    out["discovered_up.bias"] = torch.cat([bias, torch.tensor([CLAMP])])
    out["discovered_coefficients.weight"] = torch.cat([F.pad(coefficients, (0, 1)), size * unit])
    out["discovered_basis.weight"] = torch.cat([basis * normal.scale[:, None], (normal.mean / size)[:, None]], dim=1)
    return {f"concepts.{name}": weight for name, weight in out.items()}
