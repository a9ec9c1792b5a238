"""Explaining: a wrapper of a denoiser whose answers have the hidden state that each token was computed from.

Evidence of a token is a number of parts, float32 (P, E). Here P is 1, and the part is

    weight  hidden state

that is 1 and the D numbers of the state h, before any edit. The logit of token y is the sum over parts of their weights
times what they say of y: W_y h here. `models.wrappers.steering` appends what it added to h and took from the logits,
and under guidance (`models.wrappers.guidance`) there are two parts. Temperature, bias, bans and what a scorer adds are
not in it.

Letters: A wanted positions, P parts, D width.
"""

from __future__ import annotations

import numpy as np

from daguerre.canvas import Canvas
from daguerre.models.denoiser import CacheMode, Denoiser
from daguerre.models.forward import Answer, Backend, DraftStep, Forward
from daguerre.models.wrappers.rewriting import About, Finish, RewritingSession


class Explained:
    """A `Denoiser` that wraps `denoiser`, innermost of all wrappers."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.config, self._denoiser = denoiser.config, denoiser

    @property
    def backend(self) -> Backend:
        """The backend of the wrapped denoiser."""
        return self._denoiser.backend

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> ExplainedSession:
        """A fresh session."""
        return ExplainedSession(self.config, self._denoiser.session(canvas, cache), canvas)


class ExplainedSession(RewritingSession):
    """A `Session` whose answers have evidence."""

    @property
    def explains(self) -> bool:
        return True

    def change(self, one: Forward | DraftStep, about: About) -> Finish:
        """Ask for the hidden states."""
        one.explain = True
        return _in_parts


def _in_parts(answer: Answer) -> Answer:
    """The answer with its evidence (A, D) in parts (A, 1, 1 + D)."""
    assert answer.evidence is not None
    num, width = answer.evidence.shape
    parts = np.empty((num, 1, 1 + width), dtype=np.float32)
    parts[..., 0], parts[:, 0, 1:] = 1, answer.evidence
    answer.evidence = parts
    return answer
