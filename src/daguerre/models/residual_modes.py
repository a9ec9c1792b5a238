"""What becomes of the residual when concepts of a hidden state are given other weights.

With h = known + discovered + residual (`models.core.concept_heads`), and primes for the sums after the edit:

    keep       known' + discovered' + residual                     only what was edited changes: the default everywhere
    drop       known' + discovered'                                differs from h even if nothing is edited
    recompute  known' + discovered' + (h - known - discovered')    for diagnosis: discovered' cancels

Steerling's published code drops the residual where a known concept is edited, and computes it again where only
discovered ones are, so that such an edit does nothing. An edit there of one of more than 50,000 concepts is measured
from its weight even if it was not kept, and so contributes nothing to h; here what is not kept has the weight 0.

Letters: A rows, D width, K kept concepts, J edited concepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from daguerre.errors import InputError, unknown
from daguerre.models.core.concept_heads import ConceptHeads

ResidualMode = Literal["keep", "drop", "recompute"]
RESIDUAL_MODES: tuple[ResidualMode, ...] = ("keep", "drop", "recompute")
Weights = Mapping[int, float]


def composed(
    heads: ConceptHeads, hidden: Tensor, known: Weights, discovered: Weights, residual: ResidualMode = "keep"
) -> Tensor:
    """Hidden states, float32 (A, D), of `hidden` (A, D) in which concepts have the given weights, whether they were
    kept or not. All others stay as they are.

    known, discovered  the new weight of each edited concept, by its number; discovered ones are numbered from
                       `heads.shape.known` on

    InputError for a concept that the heads do not have, and for an unknown mode.
    """
    if residual not in RESIDUAL_MODES:
        raise unknown("residual mode", residual, RESIDUAL_MODES)
    first, end = heads.shape.known, heads.shape.known + heads.shape.discovered
    _check("known", known, 0, first)
    _check("discovered", discovered, first, end)
    h, parts = hidden.float(), heads.decompose(hidden)
    of_known = _change(heads, parts.known_ids, parts.known_weights, known)
    of_discovered = _change(heads, parts.discovered_ids, parts.discovered_weights, discovered)
    if residual == "keep":
        return h + of_known + of_discovered
    edited = parts.discovered + of_discovered
    rest = h - parts.known - edited if residual == "recompute" else 0.0
    return parts.known + of_known + edited + rest


def _check(kind: str, weights: Weights, first: int, end: int) -> None:
    for concept in weights:
        if not first <= concept < end:
            raise InputError(f"there is no {kind} concept {concept}: their numbers are {first} to {end - 1}")


def _change(heads: ConceptHeads, kept: Tensor, held: Tensor, weights: Weights) -> Tensor:
    """What an edit adds to hidden states, (A, D), whose `kept` concepts (A, K) have the weights `held` (A, K)."""
    concepts = torch.tensor(list(weights), dtype=torch.int64, device=held.device)
    values = torch.tensor(list(weights.values()), dtype=torch.float32, device=held.device)
    before = (held[:, :, None] * (kept[:, :, None] == concepts)).sum(1)
    return (values - before) @ heads.vectors(concepts)
