"""Mode "ar": one token after the other, by the autoregressive distribution; and mode "speculative": the same tokens,
several a forward, by verifying drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from daguerre.canvas import Canvas, Span
from daguerre.decoding.denoise import Run, Stop, commit_forced, heal
from daguerre.decoding.drafters import Alignment
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.plan import SAMPLING, Distribution, Mode, Plan, Steps, needs_next_token
from daguerre.decoding.sampler import evidence_of
from daguerre.decoding.speculate import speculate
from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.sampling.policies.base import commit_all
from daguerre.sampling.rules import complete
from daguerre.trace import Event


class Autoregressive(Mode):
    """The two modes of the autoregressive distribution."""

    options = SAMPLING
    autoregressive = True
    infills = False

    def check_model(self, config: ModelConfig) -> None:
        """Causal context with a shift."""
        super().check_model(config)
        needs_next_token(self, config)

    def check_draft(self, settings: DecodeOptions) -> None:
        """No pins at fixed positions together with a draft."""
        if any(not pin.floats for pin in settings.pins):
            raise UnsupportedError(
                f'mode "{self.name}" cannot use a draft together with pins: leave out one of the two'
            )

    def bound(self, plan: Plan) -> int:
        """A forward for each token, healed ones included."""
        return plan.healing_forwards + plan.max_tokens

    def verify(self, run: Run, canvas: Canvas, size: int, stops: Stop | None = None) -> Steps:
        """Fill the rest of the healed canvas by verifying the caller's draft, or drafts of fewer than `size` tokens.
        stops: whether a canvas has all that is needed; None: once the text has ended.
        """
        rules, spans = run.plan.rules(canvas), run.plan.spans(canvas)
        _, draft = run.plan.drafted(canvas)
        run.counts.rejected_prediction_tokens = len(draft)
        if not spans or run.has_ended(canvas):
            return canvas
        given = Alignment(draft) if len(draft) else None
        opened = run.plan.opened(canvas)
        if not len(opened):
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
        if run.plan.drafted(canvas)[1].size:
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
        if not canvas.open[span[0]]:
            continue
        step = run.counts.forwards
        proposals = yield from sampler.propose(run.session, canvas, rules, step)
        decision = complete(rules, canvas, commit_all(proposals))
        canvas = canvas.apply(decision)
        yield Event(step, decision, canvas, evidence_of(decision, proposals))
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
