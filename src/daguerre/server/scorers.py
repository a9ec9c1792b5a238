"""Scorers of requests: penalties of repetition, and the record of alternatives.

Letters: A wanted positions, V vocabulary, K alternatives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.models.guidance import Scorer
from daguerre.sampling.logits import log_softmax

Alternatives = list[tuple[int, float]]


@dataclass(frozen=True)
class Penalties:
    """OpenAI's penalties: a token that the new text has c times, c > 0, loses frequency * c + presence.

    The text is all that is committed at that moment, whether before or after the position; `ends`, which no text has,
    are not counted.
    """

    frequency: float
    presence: float
    ends: tuple[int, ...] = ()

    def __call__(self, canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """What is added to the logits, float32 (1, V)."""
        written = canvas.tokens[canvas.in_gap & ~canvas.open]
        counts = np.bincount(written, minlength=logits.shape[-1]).astype(np.float32)
        counts[list(self.ends)] = 0
        return -(np.float32(self.frequency) * counts + np.float32(self.presence) * (counts > 0))[None]


@dataclass(eq=False)
class LogprobRecorder:
    """Adds what `inner` adds, and notes the K most likely tokens of each position of each forward.

    Their log-probabilities are those at temperature 1 over the vocabulary, `bias` and penalties included. They are kept
    by what the canvas had, so samples of a request may share one recorder.
    """

    num: int
    inner: Scorer | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    _seen: dict[bytes, dict[int, tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)

    def __call__(self, canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """What `inner` adds; else 0."""
        added = np.zeros((1, 1), np.float32) if self.inner is None else self.inner(canvas, positions, logits)
        with np.errstate(invalid="ignore"):
            logp = logits + added
        for token, bias in self.bias.items():
            logp[:, token] += bias
        logp = log_softmax(logp)
        num = min(self.num, logp.shape[-1])
        best = np.argpartition(-logp, num - 1, axis=-1)[:, :num]
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(logp, best, axis=-1), axis=-1), axis=-1)
        found = self._seen.setdefault(_key(canvas), {})
        for row, position in enumerate(positions.tolist()):
            found[position] = best[row].astype(np.int32), logp[row, best[row]].astype(np.float32)
        return added

    def alternatives(self, canvas: Canvas, decision: Decision, place: int) -> Alternatives:
        """The alternatives to commit number `place` of a decision about a canvas: (token, log-probability), the most
        likely first. Empty for a token that no forward was asked for.

        A decision of mode "speculative" has tokens of which each was drawn given those before it.
        """
        position = int(decision.positions[place])
        for num in dict.fromkeys((0, place)):
            kept = np.zeros(len(decision), dtype=bool)
            kept[:num] = True
            before = canvas if num == 0 else canvas.apply(decision.keep(kept))
            found = self._seen.get(_key(before), {}).get(position)
            if found is not None:
                ids, logp = found
                able = np.isfinite(logp)
                return list(zip(ids[able].tolist(), logp[able].tolist(), strict=True))
        return []


def _key(canvas: Canvas) -> bytes:
    """Equal for canvases that have the same tokens at the same positions, and nothing elsewhere."""
    return hashlib.blake2b(np.where(canvas.open, -1, canvas.tokens).tobytes(), digest_size=16).digest()
