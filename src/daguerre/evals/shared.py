"""Many requests on one prompt: what they have in common is computed once."""

from __future__ import annotations

import numpy as np

from daguerre.canvas import Canvas, Span
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.denoiser import BackboneDenoiser, CacheMode
from daguerre.models.forward import Backend, Logits
from daguerre.models.session import compute


class SharedSession:
    """A `Denoiser` whose requests, one after the other, use the same session, for canvases as long as `canvas`.

    Exact, since a session's answer depends on the canvas alone. Counts start at zero with each request.

    backend  what computes the forwards; None: the denoiser's backend
    """

    def __init__(self, denoiser: BackboneDenoiser, canvas: Canvas, backend: Backend | None = None) -> None:
        self.config, self.backend = denoiser.config, backend or denoiser.backend
        self._session = denoiser.session(canvas)

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> BackboneSession:
        """The session as the last request left it."""
        self._session.restart()
        return self._session

    def prefill(self, canvas: Canvas, span: Span) -> None:
        """Leave the session with the clean rows that `span` of the canvas needs, and no others."""
        compute(self.session(canvas).ask(canvas.at(span), np.array([span[0]]), Logits()), self.backend)
