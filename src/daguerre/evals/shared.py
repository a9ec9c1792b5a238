"""Many requests on one prompt: what they have in common is computed once."""

from __future__ import annotations

import time

import numpy as np

from daguerre.canvas import Canvas, Span
from daguerre.decoding.plan import Plan
from daguerre.decoding.sample import Sample, drive
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

    def prefill(self, plan: Plan, span: Span | None = None) -> None:
        """Leave the session with the clean rows that a span of the request needs, and no others. None: the whole gap of
        an infilling, the first token of a completion.
        """
        start, end = plan.canvas.gaps[0]
        span = span or (start, end if plan.infilling else start + 1)
        compute(self.session(plan.canvas).ask(plan.canvas.at(span), np.array([span[0]]), Logits()), self.backend)

    def timed(self, plan: Plan) -> tuple[float, int]:
        """Seconds and forwards of a request, which computes what the session lacks of the text around its gap."""
        started = time.perf_counter()
        request = Sample(self, plan, 0, None)
        for _ in drive(request):
            pass
        return time.perf_counter() - started, request.result().usage.forwards
