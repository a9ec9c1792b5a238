"""Many requests on one prompt: what they have in common is computed once."""

from __future__ import annotations

from daguerre.canvas import Canvas
from daguerre.models.denoiser import CacheMode, Counts, Denoiser, Session


class SharedSession:
    """A denoiser whose requests, one after the other, go on with one session for canvases as long as `canvas`.

    Exact, since a session's answer is a function of the canvas alone. Counts begin anew with each request.
    """

    def __init__(self, denoiser: Denoiser, canvas: Canvas) -> None:
        self.config = denoiser.config
        self._own = denoiser.session(canvas)

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> Session:
        """The session that the last request left."""
        self._own.counts = Counts()
        return self._own
