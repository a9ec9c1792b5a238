"""Mode "speculative": the tokens of mode "ar", several a forward, by verifying the model's drafts."""

from __future__ import annotations

from daguerre.canvas import Canvas
from daguerre.decoding.denoise import heal
from daguerre.decoding.mode import Steps
from daguerre.decoding.modes.ar import Autoregressive
from daguerre.decoding.run import Run

DEFAULT_SIZE = 5
"""The most tokens of a forward that verifies drafts of the model."""


class Speculative(Autoregressive):
    """Drafts of fewer than `block_size` tokens, verified as they are drafted."""

    name = "speculative"
    options = Autoregressive.options | {"block_size", "drafter"}
    shapes = changeable = keeps_drafts = False

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """Heal, then cycles of verifying and drafting."""
        canvas = yield from heal(run, canvas)
        if not run.plan.healed(canvas):
            return canvas
        return (yield from self.verify(run, canvas, run.plan.decode.block_size or DEFAULT_SIZE))
