"""Mode "ar": one token after the other, by the autoregressive distribution; and mode "speculative": the same tokens,
several a forward, by verifying drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from daguerre.canvas import Canvas, Span
from daguerre.decoding.denoise import Run, Stop, commit_forced, draw_one, heal
from daguerre.decoding.drafters import Alignment
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.plan import SAMPLING, Distribution, Mode, Plan, Steps
from daguerre.decoding.speculate import speculate
from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig


class Autoregressive(Mode):
    """The two modes of the autoregressive distribution."""

    options = SAMPLING
    autoregressive = needs_next_token = True
    infills = False

    def check_draft(self, settings: DecodeOptions) -> None:
        """No pins at fixed positions together with a draft."""
        if any(not pin.floats for pin in settings.pins):
            raise UnsupportedError(
                f'mode "{self.name}" cannot use a draft together with pins: leave out one of the two'
            )

    def bound(self, plan: Plan) -> int:
        """A forward for each token, and one for its draft where that takes one of its own."""
        drafts_apart = "drafter" in self.options and plan.config.masks_in_place
        return plan.healing_forwards + plan.max_tokens * (1 + drafts_apart)

    def verify(self, run: Run, canvas: Canvas, size: int, stops: Stop | None = None) -> Steps:
        """Fill the rest of the healed canvas by verifying the caller's draft, or drafts of fewer than `size` tokens.
        stops: whether a canvas has all that is needed; None: once the text has ended.
        """
        rules, spans = run.plan.rules(canvas), run.plan.spans(canvas)
        given = None
        if run.plan.draft is not None:
            _, draft = run.plan.drafted(canvas)
            run.counts.rejected_prediction_tokens = len(draft)
            given = Alignment(draft) if len(draft) else None
        opened = run.plan.opened(canvas)
        if not (spans and len(opened)) or run.has_ended(canvas):
            return canvas
        whole = canvas.at((int(opened[0]), spans[-1][1]))
        return (yield from speculate(run, whole, rules, size, stops or run.has_ended, given))


class Ar(Autoregressive):
    """One token after the other; a draft of the caller's is verified, several tokens a forward."""

    name = "ar"
    distribution = "left"

    def span_size(self, settings: DecodeOptions, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        """One."""
        return 1

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """Heal, then one token after the other."""
        canvas = yield from heal(run, canvas)
        if not run.plan.healed(canvas):
            return canvas
        if run.plan.draft is not None and run.plan.drafted(canvas)[1].size:
            return (yield from self.verify(run, canvas, 1))
        return (yield from one_by_one(run, canvas))


def one_by_one(run: Run, canvas: Canvas) -> Steps:
    """Fill the healed canvas one token after the other, until the text, the budget or the time ends."""
    rules, sampler = run.plan.rules(canvas), run.sampler
    for span in run.plan.spans(canvas):
        if run.has_ended(canvas):
            break
        canvas = canvas.at(span)
        if sampler.constraint is not None:
            canvas = yield from commit_forced(run.session, sampler, canvas, rules)
        if canvas.open[span[0]]:
            canvas = yield from draw_one(run, canvas, rules)
    return canvas


DEFAULT_SIZE = 5
"""The most tokens of a forward that verifies drafts of the model."""


class Speculative(Autoregressive):
    """Drafts of fewer than `block_size` tokens, verified as they are drafted; or after, where masks are in place."""

    name = "speculative"
    distribution: ClassVar[Distribution | None] = "left"
    options = Autoregressive.options | {"block_size", "drafter"}
    changeable = keeps_drafts = False

    def check_canvas(
        self, settings: DecodeOptions, config: ModelConfig, canvas: Canvas, budgets: Sequence[Span]
    ) -> None:
        """No pins at fixed positions: a draft would have to go on behind them."""
        if any(not pin.floats for pin in settings.pins):
            raise UnsupportedError(
                f'mode "{self.name}" cannot honor the option pins: use mode "ar", which has the same tokens'
            )

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """Heal, then cycles of verifying and drafting."""
        canvas = yield from heal(run, canvas)
        if not run.plan.healed(canvas):
            return canvas
        return (yield from self.verify(run, canvas, draft_size(run.plan)))


def draft_size(plan: Plan) -> int:
    """The most tokens of a forward that verifies drafts."""
    own = plan.config.block_size if plan.config.masks_in_place else None
    return plan.decode.block_size or own or DEFAULT_SIZE
