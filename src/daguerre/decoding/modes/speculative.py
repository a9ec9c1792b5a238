"""Mode "speculative": the tokens of mode "ar", several a forward, by verifying the model's drafts."""

from __future__ import annotations

from collections.abc import Sequence

from daguerre.canvas import Canvas, Span
from daguerre.decoding.denoise import Run, heal
from daguerre.decoding.modes.ar import Autoregressive
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.plan import Plan, Steps
from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig

DEFAULT_SIZE = 5
"""The most tokens of a forward that verifies drafts of the model."""


class Speculative(Autoregressive):
    """Drafts of fewer than `block_size` tokens, verified as they are drafted; or after, where masks are in place."""

    name = "speculative"
    distribution = "left"
    options = Autoregressive.options | {"block_size", "drafter"}
    changeable = keeps_drafts = False

    def check_canvas(
        self, settings: DecodeOptions, config: ModelConfig, canvas: Canvas, budgets: Sequence[Span]
    ) -> None:
        """No pins at fixed positions: a draft would have to go on behind them."""
        super().check_canvas(settings, config, canvas, budgets)
        if any(not pin.floats for pin in settings.pins):
            raise UnsupportedError(
                f'mode "{self.name}" cannot honor the option pins: use mode "ar", which has the same tokens'
            )

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """Heal, then cycles of verifying and drafting."""
        canvas = yield from heal(run, canvas)
        if not run.plan.healed(canvas):
            return canvas
        return (yield from self.verify(run, canvas, self.draft_size(run.plan)))

    @staticmethod
    def draft_size(plan: Plan) -> int:
        """The most tokens of a forward that verifies drafts."""
        config = plan.config
        size = (config.block_size if config.masks_in_place else None) or DEFAULT_SIZE
        return plan.decode.block_size or size

    def bound(self, plan: Plan) -> int:
        """A forward for each token, and one for its draft where that takes one of its own."""
        return super().bound(plan) + plan.max_tokens * plan.config.masks_in_place
