"""Revision of committed tokens: those that the model no longer prefers are replaced.

There are two readings of a text. "unmasked": one forward sees all tokens (token-to-token editing, LLaDA2.1); only a
model that was trained on wrong tokens doubts a token that it sees. "leave_one_out": one forward for each token, with
that token masked, as in a pseudo-likelihood (arXiv 1910.14659); any model that fills masks can do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from daguerre.canvas import NO_POSITIONS, Canvas, Decision
from daguerre.errors import InputError
from daguerre.sampling.logits import softmax

RevisionReading = Literal["unmasked", "leave_one_out"]
ODDS: dict[RevisionReading, float] = {"unmasked": 1.0, "leave_one_out": 3000.0}
"""How many times as likely as the old token a new one must be, by the reading. A right token that is masked is often
not the most likely one, so with leave_one_out the old one must also be unlikely; docs/log.md has the measurement.
"""
NOTHING = Decision(NO_POSITIONS, NO_POSITIONS, np.zeros(0), np.zeros(0))


def readings(canvas: Canvas, positions: np.ndarray, reading: RevisionReading) -> Iterator[tuple[Canvas, np.ndarray]]:
    """The canvases to read, each with the committed positions, int64 (A,), whose logits are needed: the canvas itself
    with all of them, or one canvas for each, where that position is masked.
    """
    if reading == "unmasked":
        yield canvas, positions
        return
    for index in range(len(positions)):
        yield canvas.apply(replace(NOTHING, reopen=positions[[index]])), positions[[index]]


def revise(
    canvas: Canvas,
    positions: np.ndarray,
    logits: np.ndarray,
    threshold: float,
    limit: int | None = None,
    *,
    reading: RevisionReading = "unmasked",
) -> Decision:
    """Replace committed tokens where another one is the most likely, with a probability above `threshold`, and at least
    ODDS[reading] times as likely as the old one.

    positions  int64 (A,), committed in a gap, ascending
    logits     float64 (A, V), after bias and bans, of that reading
    limit      the most tokens to replace, highest gain (below) first, the leftmost of equal ones; None: all

    The decision may be empty. Its confidence is the gain: the probability of the new token less that of the old one. It
    cannot be applied where a position is open or was given. InputError for a threshold that is not a probability.
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold must be a probability, from 0 to 1, not {threshold}")
    index = np.arange(len(positions))
    probs = softmax(logits)
    best, old = probs.argmax(axis=-1), canvas.tokens[positions]
    gain = probs[index, best] - probs[index, old]
    likely = (probs[index, best] > threshold) & (probs[index, best] >= ODDS[reading] * probs[index, old])
    chosen = (best != old) & likely
    order = np.argsort(-np.where(chosen, gain, -1.0), kind="stable")[: chosen.sum()]
    kept = np.sort(order[:limit])
    return Decision(positions[kept], best[kept], probs[kept, best[kept]], gain[kept], replace=positions[kept])
