"""How well heads tell each concept from the rest, token by token, on held-out text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from daguerre.models.catalog import NamedConcept
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.scoring.agreement import roc_auc
from daguerre.train.heads.loss import NormalRows


@dataclass(frozen=True)
class ConceptArea:
    """The area under the ROC curve over tokens, of a concept to come and of one that was read; and of how many tokens
    how many have it. NaN where none or all have it.
    """

    name: str
    come: float
    read: float
    having: int
    tokens: int

    def __str__(self) -> str:
        if not self.having:
            return f"{self.name}: in no held-out token"
        areas = f"AUC {self.read:.3f} of tokens that were read, {self.come:.3f} of tokens to come"
        return f"{self.name}: {areas} ({self.having:,} of {self.tokens:,} held-out tokens)"


@torch.no_grad()
def held_out_areas(heads: ConceptHeads, rows: NormalRows, concepts: Iterable[NamedConcept]) -> list[ConceptArea]:
    """The areas of concepts in held-out rows."""
    come, read = (each(rows.hidden).numpy() for each in (heads.known_logits, heads.read_logits))
    to_come, were_read = rows.come.numpy().astype(bool), rows.read.numpy().astype(bool)
    return [
        ConceptArea(
            one.name,
            roc_auc(come[:, one.number], to_come[:, one.number]),
            roc_auc(read[:, one.number], were_read[:, one.number]),
            int(np.count_nonzero(were_read[:, one.number])),
            len(were_read),
        )
        for one in concepts
    ]
