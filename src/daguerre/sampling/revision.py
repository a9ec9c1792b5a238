"""Token-to-token editing: committed tokens that the model no longer believes in are replaced (LLaDA2.1, T2T).

A model is asked for logits at positions that are committed; it sees the tokens there, and may find others likelier.
"""

from __future__ import annotations

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.errors import InputError
from daguerre.sampling.logits import softmax


def revise(
    canvas: Canvas, positions: np.ndarray, logits: np.ndarray, threshold: float, limit: int | None = None
) -> Decision:
    """Replace committed tokens where another is the most likely, with a probability above `threshold`.

    positions  int64 (A,), committed in a gap, ascending
    logits     float64 (A, V), after bias and bans
    limit      the most tokens to replace, those of highest gain (below) first, the leftmost among equals; None: all

    The decision may be empty. Its confidence is the gain: the probability of the new token less that of the old. The
    decision cannot be applied where a position is open or was given. InputError for a threshold that is no probability.
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold must be a probability, from 0 to 1, not {threshold}")
    index = np.arange(len(positions))
    probs = softmax(logits)
    best, old = probs.argmax(axis=-1), canvas.tokens[positions]
    gain = probs[index, best] - probs[index, old]
    chosen = (best != old) & (probs[index, best] > threshold)
    order = np.argsort(-np.where(chosen, gain, -1.0), kind="stable")[: chosen.sum()]
    kept = np.sort(order[:limit])
    return Decision(positions[kept], best[kept], probs[kept, best[kept]], gain[kept], replace=positions[kept])
