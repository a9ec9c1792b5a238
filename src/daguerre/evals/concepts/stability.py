"""Stability: are the discovered concepts of two trainings, which differ in their seed, the same?

Concept c of one model is found again in the other if some discovered vector of the other has a cosine of COSINE or more
with K_c. Shares are of the concepts that some held-out row keeps. The share by chance is shown beside
it: with the other model's vectors turned by a random rotation.

Letters: M discovered concepts, D width, A rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import DataError, InputError
from daguerre.models.core.concept_heads import ConceptHeads

COSINE = 0.7


@torch.inference_mode()
def used(heads: ConceptHeads, hidden: Tensor) -> Tensor:
    """Which discovered concepts some of the hidden states (A, D) keeps, bool (M,)."""
    out = torch.zeros(heads.shape.discovered, dtype=torch.bool)
    for some in hidden.split(1024):
        out[heads.decompose(some).discovered_ids.unique() - heads.shape.known] = True
    return out


@torch.inference_mode()
def nearest(
    heads: ConceptHeads, other: ConceptHeads, some: Tensor, others: Tensor, turn: Tensor | None = None
) -> Tensor:
    """For each of some discovered concepts, bool (M,), the largest cosine with one of some of the other's."""
    one, two = (
        F.normalize(each.vectors(each.shape.known + torch.nonzero(which)[:, 0]), dim=-1)
        for each, which in ((heads, some), (other, others))
    )
    return (one @ (two if turn is None else two @ turn).T).amax(dim=-1)


def random_rotation(width: int, seed: int) -> Tensor:
    """A random orthogonal matrix, float32 (D, D)."""
    normal = torch.from_numpy(np.random.default_rng(seed).normal(size=(width, width)))
    return torch.linalg.qr(normal).Q.float()


def measure_stability(
    heads: ConceptHeads, other: ConceptHeads, hidden: Tensor, hidden_of_other: Tensor, seed: int = 0
) -> dict[str, Any]:
    """The part "stability" of the report; hidden states (A, D) of the two models. InputError for models of unlike
    widths, DataError where no discovered concept is used.
    """
    if hidden.shape[1] != hidden_of_other.shape[1]:
        raise InputError("the two models have unlike widths: their concepts cannot be compared")
    some, others = used(heads, hidden), used(other, hidden_of_other)
    if not (some.any() and others.any()):
        raise DataError("no discovered concept is used in held-out text, so none can be found again")
    found = nearest(heads, other, some, others)
    back = nearest(other, heads, others, some)
    turned = nearest(heads, other, some, others, random_rotation(hidden.shape[1], seed))
    return {
        "discovered": [len(some), len(others)],
        "used": [int(some.sum()), int(others.sum())],
        "share": float((found >= COSINE).float().mean()),
        "share_back": float((back >= COSINE).float().mean()),
        "share_by_chance": float((turned >= COSINE).float().mean()),
        "median_cosine": float(found.median()),
        "median_by_chance": float(turned.median()),
    }
