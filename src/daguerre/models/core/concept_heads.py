"""Concept heads: a hidden state as a sum of known concepts, discovered concepts, and a residual.

    h = known + discovered + residual,   known = sum over kept c of sigmoid(z_c) K_c

z_c = P_c h is the logit of concept c, K_c its vector, and kept are the concepts of the largest weights. Discovered
concepts are the same, with matrices of low rank. The residual is what is left, so the sum is h itself, and logits are
those of the backbone: heads explain a distribution and do not change it. (Steerling-8B, arXiv 2608.07594, sections on
the concept heads; restated in tests/models/test_concept_heads.py.)

Concepts are numbered together: known ones from 0, and after them the discovered ones.

Letters: A rows, D width, N known concepts, M discovered ones, C = N + M, R rank, K kept concepts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.shapes import CLAMP as CLAMP
from daguerre.models.core.shapes import SMALL as SMALL
from daguerre.models.core.shapes import ConceptShape


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Rows as sums, all float32 but the numbers: known + discovered + residual = h.

    known_ids, known_weights            (A, K): the kept known concepts, in ascending order, and their weights
    discovered_ids, discovered_weights  (A, K'): the same of discovered ones, whose numbers begin at N
    known, discovered, residual         (A, D)
    """

    known_ids: Tensor
    known_weights: Tensor
    discovered_ids: Tensor
    discovered_weights: Tensor
    known: Tensor
    discovered: Tensor
    residual: Tensor


class ConceptHeads(nn.Module):
    """The heads of one model. They compute in float32, whatever the type of their weights."""

    def __init__(self, width: int, shape: ConceptShape) -> None:
        super().__init__()
        self.shape = shape
        known, discovered = shape.known + shape.spare_known, shape.discovered + shape.spare_discovered
        self.known_predictor = nn.Linear(width, known, bias=shape.bias)
        self.known_embedding = nn.Embedding(known, width)
        self.discovered_down = nn.Linear(width, shape.rank, bias=False)
        self.discovered_up = nn.Linear(shape.rank, discovered, bias=shape.bias)
        self.discovered_coefficients = nn.Embedding(discovered, shape.rank)
        self.discovered_basis = nn.Linear(shape.rank, width, bias=False)
        self.read_predictor = nn.Linear(width, known, bias=shape.bias) if shape.reads else None

    def known_logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., N) of the known concepts of hidden states (..., D)."""
        return _linear(self.known_predictor, hidden.float())[..., : self.shape.known].clamp(-CLAMP, CLAMP)

    def discovered_logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., M) of the discovered concepts of hidden states (..., D)."""
        inner = _linear(self.discovered_down, hidden.float())
        return _linear(self.discovered_up, inner)[..., : self.shape.discovered].clamp(-CLAMP, CLAMP)

    def read_logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., N) of the known concepts of the tokens that rows with hidden states (..., D) have read. They are
        outside of the decomposition. Only where the shape `reads`.
        """
        assert self.read_predictor is not None
        return _linear(self.read_predictor, hidden.float())[..., : self.shape.known].clamp(-CLAMP, CLAMP)

    def known_sum(self, weights: Tensor) -> Tensor:
        """sum_c w_c K_c, (..., D), of weights (..., N) of all known concepts."""
        return weights @ self.known_embedding.weight[: self.shape.known].float()

    def discovered_sum(self, weights: Tensor) -> Tensor:
        """The sum of the discovered concepts' embeddings, (..., D), with weights (..., M) of all of them."""
        inner = weights @ self.discovered_coefficients.weight[: self.shape.discovered].float()
        return _linear(self.discovered_basis, inner)

    def vectors(self, concepts: Tensor) -> Tensor:
        """The vectors, float32 (J, D), of concepts by their numbers, int64 (J,)."""
        known = concepts < self.shape.known
        of_known = self.known_embedding.weight[concepts.where(known, 0)].float()
        inner = self.discovered_coefficients.weight[(concepts - self.shape.known).clamp_min(0)].float()
        return torch.where(known[:, None], of_known, _linear(self.discovered_basis, inner))

    def weights(self, hidden: Tensor) -> Tensor:
        """The weights (A, C) of all concepts in hidden states (A, D): 0 for those that are not kept."""
        shape = self.shape
        known = kept_weights(self.known_logits(hidden), shape.kept_known)
        discovered = kept_weights(self.discovered_logits(hidden), shape.kept_discovered)
        return torch.cat([known, discovered], dim=-1)

    def decompose(self, hidden: Tensor) -> Decomposition:
        """Hidden states (A, D) as sums."""
        shape, h = self.shape, hidden.float()
        known_ids, known_logits = largest(self.known_logits(h), shape.kept_known)
        found_ids, found_logits = largest(self.discovered_logits(h), shape.kept_discovered)
        known_weights, found_weights = known_logits.sigmoid(), found_logits.sigmoid()
        known = _combined(known_weights, known_ids, self.known_embedding.weight)
        inner = _combined(found_weights, found_ids, self.discovered_coefficients.weight)
        discovered = _linear(self.discovered_basis, inner)
        residual = h - known - discovered
        return Decomposition(
            known_ids, known_weights, found_ids + shape.known, found_weights, known, discovered, residual
        )


def _combined(weights: Tensor, ids: Tensor, table: Tensor) -> Tensor:
    """sum_k w_ak table[i_ak], (A, D), of weights and numbers (A, K): one product with the whole table where that is
    small, since rows that are gathered take more time than zeros.
    """
    if len(table) <= SMALL:
        return weights.new_zeros(len(weights), len(table)).scatter(-1, ids, weights) @ table.float()
    return torch.einsum("ak,akd->ad", weights, table[ids].float())


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """A layer in float32."""
    return F.linear(x, layer.weight.float(), None if layer.bias is None else layer.bias.float())


def largest(weights: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The places and values (A, num) of the largest of each row (A, C), in ascending places; of equals the first."""
    if num >= weights.shape[-1]:
        kept = torch.ones_like(weights, dtype=torch.bool)
    else:
        least = _nth_largest(weights.detach(), num)
        kept = weights >= least
        if (over := kept.sum(dim=-1) > num).any():  # too many are equal to the least
            first = weights[over].argsort(dim=-1, descending=True, stable=True)[..., :num]
            kept[over] = torch.zeros_like(kept[over]).scatter(-1, first, value=True)
    places = kept.nonzero()[:, -1].view(*weights.shape[:-1], min(num, weights.shape[-1]))
    return places, weights.gather(-1, places)


def _nth_largest(weights: Tensor, num: int) -> Tensor:
    """The value (A, 1) that `num` of each row (A, C) reach. On a processor NumPy's partition takes a third of the time
    of `topk`.
    """
    if weights.device.type == "cpu" and weights.dtype == torch.float32:
        return torch.from_numpy(np.partition(weights.numpy(), -num, axis=-1)[..., -num, None])
    return weights.topk(num, dim=-1).values[..., -1:]


def kept_weights(logits: Tensor, num: int) -> Tensor:
    """The weights (A, C) of logits (A, C), 0 for all but the `num` largest of each row."""
    places, values = largest(logits, num)
    return torch.zeros_like(logits).scatter(-1, places, values.sigmoid())
