"""Modes "block" and "full": the open positions of a span are denoised together, under a policy."""

from __future__ import annotations

import numpy as np

from daguerre.canvas import Canvas, Span
from daguerre.decoding.denoise import Run, denoise, denoise_and_edit, heal, read_draft
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.plan import SAMPLING, Mode, Plan, Steps
from daguerre.decoding.revision import readings, revise
from daguerre.decoding.sampler import evidence_at
from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Logits
from daguerre.sampling.logits import biased
from daguerre.sampling.policies import POLICIES
from daguerre.sampling.rules import Rule
from daguerre.trace import Event

DEFAULT_BLOCK = 16
DENOISING = frozenset({"policy", "rank_by", "revise", "end_of_text"}).union(
    *(policy.options for policy in POLICIES.values())
)
"""Options of the modes in which a policy chooses what to commit."""


class Block(Mode):
    """Spans of `block_size` open positions; a gap is one span unless a size is given. Or a window that slides."""

    name = "block"
    options = SAMPLING | DENOISING | {"block_size", "sliding"}
    distribution = "canvas"

    def check_draft(self, settings: DecodeOptions) -> None:
        """A draft is read span by span, which a window has not."""
        if settings.sliding:
            raise UnsupportedError("sliding reads no draft: leave out one of the two")

    def span_size(self, settings: DecodeOptions, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        """The option's, the model's, or DEFAULT_BLOCK."""
        if infilling and settings.block_size is None and not settings.sliding:
            return max_tokens
        return settings.block_size or config.block_size or DEFAULT_BLOCK

    def bound(self, plan: Plan) -> int:
        """The bounds of all spans by their policy, and forwards that read drafts and finished spans."""
        size, decode, num_spans = min(plan.span_size, plan.max_tokens), plan.decode, plan.num_spans
        readings = plan.num_readings(num_spans, plan.max_tokens) + num_spans * int(plan.draft is not None)
        policy = decode.commit_policy
        extra = num_spans * policy.num_extra
        return plan.healing_forwards + min(num_spans * policy.bound(size), plan.max_tokens) + readings + extra

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """Heal, then one span after the other."""
        begun = 0 if canvas.span is None else canvas.span[0]
        canvas = yield from heal(run, canvas)
        if not run.plan.healed(canvas):
            return canvas
        if run.plan.decode.sliding:
            return (yield from denoise_in_window(run, canvas))
        return (yield from denoise_spans(run, canvas, begun))


class Full(Block):
    """All open positions are one span."""

    name = "full"
    options = SAMPLING | DENOISING

    def check_model(self, config: ModelConfig) -> None:
        """No grid of blocks."""
        super().check_model(config)
        if config.context == "block":
            raise UnsupportedError('mode "full" is beyond a model with block context: use mode "block"')

    def span_size(self, settings: DecodeOptions, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        """The whole budget."""
        return max_tokens


def denoise_spans(run: Run, canvas: Canvas, begun: int) -> Steps:
    """Fill the healed canvas one span after the other, until the text, the budget or the time ends. Spans that end
    before position `begun` are finished.

    Where time is short a span is widened, so that the remaining forwards reach the end of the budget.
    """
    plan, reached = run.plan, 0
    rules, (origin, draft) = plan.rules(canvas), plan.drafted(canvas)
    run.counts.rejected_prediction_tokens = len(draft)
    for span in plan.spans(canvas):
        if run.has_ended(canvas):
            break
        if span[1] <= max(begun, reached):
            continue
        given = draft[max(0, span[0] - origin) : max(0, span[1] - origin)]
        if given.size:
            canvas = yield from read_draft(run, canvas.at(span), given, rules)
        canvas = yield from _fill(run, canvas.at((max(span[0], reached), span[1])), rules)
        reached = canvas.span[1] if canvas.span else reached
        canvas = yield from _revise(run, canvas)
    if draft.size:
        run.accept_draft(canvas)
    return canvas


def denoise_in_window(run: Run, canvas: Canvas) -> Steps:
    """Fill the healed canvas through a window that begins at the first open position in every step (WeDLM, arXiv
    2512.22737). Where time is short it is widened, as spans are.
    """
    plan, rules = run.plan, run.plan.rules(canvas)

    def window(now: Canvas) -> Span:
        return plan.widened(now, plan.window(now), run.min_commits(now))

    def moves(now: Canvas) -> bool:
        return run.has_ended(now) or plan.finished(now) or window(now) != now.span

    while not (run.has_ended(canvas) or plan.finished(canvas)):
        canvas = yield from denoise(run, canvas.at(window(canvas)), rules, moves)
    return canvas


def _fill(run: Run, canvas: Canvas, rules: list[Rule]) -> Steps:
    """Denoise the active span, which is widened once time is too short for the spans after it."""
    edits = run.policy.edits
    fill, changes = denoise_and_edit if edits else denoise, edits or run.plan.decode.revise > 0

    def should_stop(now: Canvas) -> bool:  # a span that is read again is finished first
        return run.deadline.late() if changes else run.has_ended(now)

    if run.fixed_pace:
        return (yield from fill(run, canvas, rules, should_stop))

    def widened(now: Canvas) -> Span:
        assert now.span is not None
        return run.plan.widened(now, now.span, run.min_commits(now))

    def too_narrow(now: Canvas) -> bool:  # a full span may still be edited
        return should_stop(now) or (now.active_positions().size > 0 and widened(now) != now.span)

    while canvas.active_positions().size and not should_stop(canvas):
        canvas = canvas.at(widened(canvas))
        canvas = yield from fill(run, canvas, rules, too_narrow)
    return canvas


def _revise(run: Run, canvas: Canvas) -> Steps:
    """Read the finished span again, up to `revise` times, and replace tokens that the model no longer prefers."""
    decode, never = run.plan.decode, run.plan.config.ends
    for _ in range(decode.revise):
        positions, step, found = run.plan.revisable(canvas), run.counts.forwards, list[np.ndarray]()
        evidence = list[np.ndarray]()
        if not positions.size:
            break
        for now, wanted in readings(canvas, positions, decode.revise_reading):
            if run.deadline.late():
                return canvas
            answer = yield from run.session.ask(now, wanted, Logits())
            assert answer.logits is not None
            found.append(biased(answer.logits, run.sampler.params))
            evidence += [] if answer.evidence is None else [answer.evidence]
        logits = np.concatenate(found)
        logits[:, never] = -np.inf
        decision = revise(canvas, positions, logits, decode.revise_threshold, reading=decode.revise_reading)
        if not len(decision):
            break
        canvas = canvas.apply(decision)
        said = evidence_at(decision, positions, np.concatenate(evidence) if evidence else None)
        yield Event(step, decision, canvas, said)
    return canvas
