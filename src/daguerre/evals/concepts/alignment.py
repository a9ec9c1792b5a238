"""Alignment: are the tokens that a concept's vector promotes those that go with the concept?

The top tokens of concept c are the ten largest of W K_c among the tokens that can be predicted. A token goes with the
concept if its lift, P(token | concept) / P(token), is LIFT or more in training text, where the tokens of a concept are
those that are labeled with it, and the two occur together at least FEWEST times. Precision at ten is the share of the
top tokens that go with the concept. Left out are concepts that fewer than TEN tokens go with, since even a perfect
vector could not reach a precision of one, and concepts with fewer than FEWEST_LABELED labeled tokens.

Letters: N concepts, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from daguerre.concepts.taxonomy import taxonomy
from daguerre.evals.concepts.cases import Labeled
from daguerre.models.core.backbone import Backbone

TEN, LIFT, FEWEST, FEWEST_LABELED = 10, 2.0, 5, 200
LEAST_MEDIAN = 0.7


def token_counts(texts: Sequence[Labeled], vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each token occurs, int64 (V,), and how often with each concept, int64 (N, V)."""
    num = taxonomy().num_ids
    alone, together = np.zeros(vocab_size, dtype=np.int64), np.zeros(num * vocab_size, dtype=np.int64)
    for text in texts:
        alone += np.bincount(text.tokens, minlength=vocab_size)
        tokens = np.repeat(text.tokens, np.diff(text.labels.ends, prepend=0))
        places = text.labels.concepts.astype(np.int64) * vocab_size + tokens
        together += np.bincount(places, minlength=num * vocab_size)
    return alone, together.reshape(num, vocab_size)


def lifted(alone: np.ndarray, together: np.ndarray) -> np.ndarray:
    """Which tokens go with which concept, bool (N, V)."""
    of_concept, everywhere = together.sum(axis=1, keepdims=True), alone.sum()
    ratio = together * everywhere / (np.maximum(of_concept, 1) * np.maximum(alone, 1.0))
    out: np.ndarray = (ratio >= LIFT) & (together >= FEWEST)
    return out


@torch.inference_mode()
def top_tokens(backbone: Backbone, num: int) -> np.ndarray:
    """The tokens that each of `num` known concepts promotes most, int64 (num, TEN), the first of equals first."""
    heads = backbone.concepts
    assert heads is not None
    logits = backbone.logits(heads.vectors(torch.arange(num)))
    return logits.argsort(dim=-1, descending=True, stable=True)[:, :TEN].numpy()


def measure_alignment(backbone: Backbone, texts: Sequence[Labeled], spell: Any) -> dict[str, Any]:
    """The part "alignment" of the report. spell: from a token to its text."""
    known = taxonomy()
    alone, together = token_counts(texts, backbone.config.vocab_size)
    found, best = lifted(alone, together), top_tokens(backbone, known.num_ids)
    rows, rates = [], list[float]()
    for one in known.concepts:
        if together[one.id].sum() < FEWEST_LABELED or found[one.id].sum() < TEN:
            continue
        rates.append(float(found[one.id][best[one.id]].mean()))
        top = [spell(token) for token in best[one.id].tolist()]
        rows.append({"name": one.name, "lexical": one.lexical, "precision": rates[-1], "top": top})
    chance = [float(found[one.id].mean()) for one in known.concepts if found[one.id].sum() >= TEN]
    return {
        "concepts": len(rows),
        "left_out": len(known.concepts) - len(rows),
        "tokens": int(alone.sum()),
        "median": float(np.median(rates)) if rates else None,
        "mean": float(np.mean(rates)) if rates else None,
        "by_chance": float(np.mean(chance)) if chance else None,
        "rows": rows,
    }
