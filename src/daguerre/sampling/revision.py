"""Revision of committed tokens: those that the model no longer believes in are replaced.

There are two readings of a text. "shown": one forward for all tokens, each in sight at its own place (token-to-token
editing, LLaDA2.1); only a model that was trained on wrong tokens doubts one that it sees. "masked": one forward for
each token, with just that one masked, as in a pseudo-likelihood (arXiv 1910.14659); any model that fills masks can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from daguerre.canvas import NO_POSITIONS, Canvas, Decision
from daguerre.errors import InputError
from daguerre.sampling.logits import softmax

Reading = Literal["shown", "masked"]
ODDS: dict[Reading, float] = {"shown": 1.0, "masked": 3000.0}
"""How many times as likely as the old token a new one must be, by the reading. A token that is masked is often not the
most likely one though it is right, so there it must also be an unlikely one; see docs/log.md for the number.
"""
NOTHING = Decision(NO_POSITIONS, NO_POSITIONS, np.zeros(0), np.zeros(0))


def readings(canvas: Canvas, positions: np.ndarray, reading: Reading) -> Iterator[tuple[Canvas, np.ndarray]]:
    """The canvases whose logits are asked for, and at which of the committed positions, int64 (A,): the canvas at all
    of them, or for each a canvas where that one is masked.
    """
    if reading == "shown":
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
    reading: Reading = "shown",
) -> Decision:
    """Replace committed tokens where another is the most likely, with a probability above `threshold`, and at least
    ODDS of the `reading` times as likely as the old one.

    positions  int64 (A,), committed in a gap, ascending
    logits     float64 (A, V), after bias and bans, of that reading
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
    likely = (probs[index, best] > threshold) & (probs[index, best] >= ODDS[reading] * probs[index, old])
    chosen = (best != old) & likely
    order = np.argsort(-np.where(chosen, gain, -1.0), kind="stable")[: chosen.sum()]
    kept = np.sort(order[:limit])
    return Decision(positions[kept], best[kept], probs[kept, best[kept]], gain[kept], replace=positions[kept])
