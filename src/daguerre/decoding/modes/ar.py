"""Mode "ar": one token after the other, by the autoregressive distribution; and mode "speculative": the same tokens in
fewer forwards, each of which verifies a draft and drafts the tokens after it.

Where masks are in place (`ModelConfig.masks_in_place`) the last token written is a row of the draft, so a draft takes a
forward of its own, and the next forward verifies it: linear self-speculation (Nemotron-Labs-Diffusion, arXiv
2607.05722).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import ClassVar

import numpy as np

from daguerre.canvas import Canvas, Decision, Span
from daguerre.decoding.denoise import Run, Stop, commit_first, commit_forced, draw_one, heal
from daguerre.decoding.drafters import (
    MIN_ACCEPTED,
    MIN_GAIN,
    NO_DRAFT,
    Alignment,
    Apart,
    Drafted,
    LookedUp,
    best,
    given_by_caller,
    look_up,
    worth_drafting,
)
from daguerre.decoding.modes import taken
from daguerre.decoding.modes.beside import Beside
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.plan import SAMPLING, Distribution, Mode, Plan, Steps
from daguerre.decoding.sampler import TokenSampler, evidence_at, proposals_of
from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Draws, Logits, acceptance_of
from daguerre.models.processor import head_time, row_time
from daguerre.models.rows import index_range
from daguerre.models.session import Asking, Counts, NextLogits
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import commit_all
from daguerre.sampling.rules import Rule, complete
from daguerre.trace import Event


class Autoregressive(Mode):
    """The two modes of the autoregressive distribution."""

    options = SAMPLING | {"accept_draft"}
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
        return plan.healing_forwards + plan.max_tokens * (1 + drafts_apart) + taken.bound(plan)

    def verify(self, run: Run, canvas: Canvas, stops: Stop | None = None) -> Steps:
        """Fill the rest of the healed canvas by verifying the caller's draft, or drafts of other tokens where the mode
        has any. stops: whether a canvas has all that is needed; None: once the text has ended.
        """
        config, rules, spans = run.plan.config, run.plan.rules(canvas), run.plan.spans(canvas)
        size = 1  # the most tokens of a forward
        if "drafter" in self.options:
            own = config.block_size if config.masks_in_place else None
            if config.draft_rows != "none":
                own = 1 + len(config.draft_acceptance[0]) if config.draft_acceptance else None
            size = run.plan.decode.block_size or own or DEFAULT_SIZE
        given = None
        if run.plan.draft is not None:
            start, draft = run.plan.drafted(canvas)
            run.counts.rejected_prediction_tokens = len(draft)
            given = Alignment(draft) if len(draft) else None
            canvas = yield from taken.take_draft(run, canvas, start, draft)
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
            return (yield from self.verify(run, canvas))
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
        return (yield from self.verify(run, canvas))


# ---- speculation ----------------------------------------------------------------------------------------------------


def speculate(
    run: Run, canvas: Canvas, rules: Sequence[Rule], size: int, should_stop: Stop, given: Alignment | None = None
) -> Steps:
    """Fill the active span with the tokens that mode "ar" draws, in fewer forwards.

    A forward verifies a draft against the autoregressive distribution: the tokens that this draws are committed, up to
    and including the first that differs from the draft. The same forward drafts fewer than `size` tokens, as many as
    are worth their time, after each place where that is likely. So it commits at least one token, and none that mode
    "ar" would not draw. Of this draft, what the text itself has after an earlier match (`drafters.look_up`), and the
    caller's draft, the next forward verifies the one that is likely to commit the most tokens in its time. With a
    `size` of 1 there is no other than the caller's.
    """
    assert canvas.span is not None
    (start, end), following, settings = canvas.span, NO_DRAFT, run.plan.decode
    fast = run.session.draws and run.sampler.constraint is None
    cycle, looks_up = _cycle if fast else _cycle_slowly, size > 1 and settings.drafter in ("auto", "lookup")
    crowd, first, looked = 0, start, LookedUp()
    beside = None if run.second is None or size == 1 else Beside.of(run, size)
    apart, counts = _apart(run, size - 1) if run.plan.config.masks_in_place else None, run.counts
    right, tried = 1, 2  # of places in the caller's draft that were guessed after a difference
    while start < end and not should_stop(canvas):
        if crowd != run.crowd or run.row_times is not None:
            crowd = run.crowd
            time = row_time(crowd) if run.row_times is None else run.row_times.share(crowd)
            ahead = 0 if apart is not None else _masked_rows(run, size - 1, time)
        if run.sampler.constraint is not None:
            canvas, num = yield from _commit_forced(run, canvas.at((start, end)), rules, should_stop)
            start, following = start + num, following.after(canvas.tokens[start : start + num])
            if start == end or should_stop(canvas):
                break
        drafts = [following]
        if looks_up:
            drafts.append(looked.judged(look_up(canvas.tokens[:start], settings.temperature), crowd))
        if given is not None:
            drafts.append(given_by_caller(given, end - start - 1, 1.0 if not given.misses else right / tried))
        draft, active = best(drafts, end - start - 1, time), canvas.at((start, end))
        if beside is not None:
            draft = yield from beside.choose(run, active, rules, drafts)
        if apart is not None and run.sampler.constraint is None and start > first and apart.worth(draft, time):
            drafts.append((yield from _draft_apart(run, active, rules, min(apart.num, end - start - 1))))
            draft = best([draft, *drafts], end - start - 1, time)
        if ahead or len(draft):
            step, masked = counts.forwards, (ahead, draft.ends(min(0.5, ahead * time / MIN_GAIN)) if ahead else ())
            canvas, event, following = yield from cycle(run, active, draft, rules, masked, should_stop, step)
            yield event
            written = event.decision.tokens
        else:  # as in mode "ar"
            canvas, following = (yield from draw_one(run, active.at((start, start + 1)), rules)), NO_DRAFT
            written = canvas.tokens[start : start + 1]
        num = len(written)
        agreed = num - int(num > len(draft) or written[-1] != draft.tokens[num - 1])  # all but perhaps the last
        _count(counts, draft, agreed, looked, apart, beside)
        start += num
        if given is not None:
            if draft.source == "caller" and given.misses:
                right, tried = right + (num > 1), tried + 1
            earlier, given = given, given.after(canvas.tokens[canvas.gaps[0][0] : start], num)
            counts.accept(given.accepted - earlier.accepted)
    return canvas


def _count(
    counts: Counts, draft: Drafted, accepted: int, looked: LookedUp, apart: Apart | None, beside: Beside | None
) -> None:
    """Count a draft that was verified."""
    num = len(draft)
    counts.drafted += num
    counts.accepted += accepted
    if draft.source == "lookup":
        counts.lookup_drafted += num
        counts.lookup_accepted += accepted
        looked.count(draft, accepted)
    elif draft.source != "caller":
        counts.head_drafted += num
        counts.head_accepted += accepted
    if beside is not None and draft.source == "second":
        beside.count(draft, accepted)
    if apart is not None and draft.source == "head" and num:
        apart.count(accepted)


def _commit_forced(
    run: Run, canvas: Canvas, rules: Sequence[Rule], should_stop: Stop
) -> Generator[Event, None, tuple[Canvas, int]]:
    """Commit the first tokens of the active span, one by one and without a forward, as long as the constraint leaves no
    choice; returns how many.
    """
    assert canvas.span is not None and run.sampler.constraint is not None
    start, end = canvas.span
    for position in range(start, end):
        canvas = canvas.at((position, position + 1))
        decision = run.sampler.constraint.forced(canvas)
        if should_stop(canvas) or not len(decision):
            return canvas, position - start
        decision = complete(rules, canvas, decision)
        canvas = canvas.apply(decision)
        yield Event(run.counts.forwards, decision, canvas)
    return canvas, end - start


def _masked_rows(run: Run, most: int, time: float) -> int:
    """How many masked rows follow a place of a draft, each of which takes this share of a step of mode "ar"."""
    config, settings, num = run.plan.config, run.plan.decode, most
    if settings.drafter in ("lookup", "second") or not (config.has_draft_rows or config.draft_head):
        return 0
    if settings.drafter == "auto":
        num = worth_drafting(config, settings.temperature, num, time, head_time(run.crowd))
    return num


def _apart(run: Run, most: int) -> Apart:
    """When a draft takes a forward of its own."""
    settings, num = run.plan.decode, _masked_rows(run, most, row_time(run.crowd))
    return Apart(run.plan.config, settings.temperature, num, num > 0 and settings.drafter == "head")


Masked = tuple[int, tuple[int, ...]]
"""How many masked rows follow a place of the draft, and which places: `ahead` and `ends` of `Session.verify`."""
Cycled = tuple[Canvas, Event, Drafted]
"""The canvas after a cycle, its event, and the model's draft of what follows."""


def _cycle(
    run: Run, canvas: Canvas, draft: Drafted, rules: Sequence[Rule], masked: Masked, should_stop: Stop, step: int
) -> Asking[Cycled]:
    """A cycle in one answer (`models.forward.Cycle`)."""
    assert canvas.span is not None
    start = canvas.span[0]
    drawing = run.sampler.rules(canvas, rules, 0)
    answer = yield from run.session.cycle(canvas, draft.tokens, *masked, drawing, MIN_ACCEPTED)
    proposals = proposals_of(index_range(start, start + len(draft) + 1), answer)
    canvas, decision = _agreed(canvas, draft.tokens, proposals, rules, should_stop)
    assert answer.draft is not None and answer.acceptance is not None
    event = Event(step, decision, canvas, evidence_at(decision, proposals.positions, proposals.evidence))
    return canvas, event, Drafted.of(answer.draft, answer.acceptance.tolist())


def _cycle_slowly(
    run: Run, canvas: Canvas, draft: Drafted, rules: Sequence[Rule], masked: Masked, should_stop: Stop, step: int
) -> Asking[Cycled]:
    """A cycle from logits: the reference, and what constraints, guidance and scorers need."""
    assert canvas.span is not None
    (start, end), sampler = canvas.span, run.sampler
    verified = yield from run.session.verify(canvas, draft.tokens, *masked)
    positions, said = start + np.arange(len(verified.logits)), verified.evidence
    if sampler.constraint is not None:
        canvas, decision, drawn = _agreed_sequentially(
            sampler, canvas, draft.tokens, verified.logits, rules, should_stop
        )
        positions, said = positions[drawn], None if said is None else said[drawn]
    else:
        proposals = sampler.from_logits(canvas, positions, verified.logits, rules, 0)
        canvas, decision = _agreed(canvas, draft.tokens, proposals, rules, should_stop)
    event = Event(step, decision, canvas, evidence_at(decision, positions, said))
    num = len(decision)
    if start + num == end or should_stop(canvas):
        return canvas, event, NO_DRAFT
    following = yield from _draft(sampler, canvas, start + num, verified.following(num - 1), rules)
    return canvas, event, following


def _agreed(
    canvas: Canvas, draft: np.ndarray, proposals: Proposals, rules: Sequence[Rule], should_stop: Stop
) -> tuple[Canvas, Decision]:
    """The drawn tokens that equal the draft (D,), and one token more, up to the token at which the run should stop. All
    D + 1 are drawn at once: without a constraint a draw depends on its position and distribution alone.
    """
    differs = proposals.tokens[: len(draft)] != draft
    num = 1 + (int(differs.argmax()) if differs.any() else len(draft))
    filled, decision = commit_first(canvas, proposals, num, rules)
    if num > 1 and should_stop(filled):
        firsts = (commit_first(canvas, proposals, count, rules) for count in range(1, num))
        return next((first for first in firsts if should_stop(first[0])), (filled, decision))
    return filled, decision


def _agreed_sequentially(
    sampler: TokenSampler,
    canvas: Canvas,
    draft: np.ndarray,
    logits: np.ndarray,
    rules: Sequence[Rule],
    should_stop: Stop,
) -> tuple[Canvas, Decision, list[int]]:
    """`_agreed` under a constraint: a position is drawn once those before it are committed. Also returns which rows of
    the logits, (A, V), were drawn from: of the others the constraint leaves one token.
    """
    assert sampler.constraint is not None and canvas.span is not None
    start = canvas.span[0]
    decisions, rows_drawn = list[Decision](), list[int]()
    for position, row in enumerate(logits, start):
        canvas = canvas.at((position, position + 1))
        decision = sampler.constraint.forced(canvas)  # which "ar" commits without a forward
        if not len(decision):
            rows_drawn.append(position - start)
            decision = commit_all(sampler.from_logits(canvas, canvas.active_positions(), row[None], rules, 0))
        decisions.append(complete(rules, canvas, decision))
        canvas = canvas.apply(decisions[-1])
        if not np.array_equal(decisions[-1].tokens, draft[position - start :][:1]) or should_stop(canvas):
            break
    return canvas.at((start, start + len(decisions))), Decision.join(decisions), rows_drawn


def _draft_apart(run: Run, canvas: Canvas, rules: Sequence[Rule], num: int) -> Asking[Drafted]:
    """A draft of the next `num` tokens, in one forward, drawn with the random numbers with which they will be verified;
    without a constraint.
    """
    if not num:
        return NO_DRAFT
    assert canvas.span is not None and run.sampler.constraint is None
    sampler, positions = run.sampler, index_range(canvas.span[0], canvas.span[0] + num)
    if run.session.draws:
        answer = yield from run.session.draft(canvas, num, Draws(sampler.rules(canvas, rules, 0), positions))
        tokens, probabilities = answer.tokens, answer.probabilities
    else:
        answer = yield from run.session.draft(canvas, num, Logits())
        assert answer.logits is not None
        made = sampler.from_logits(canvas, positions, answer.logits, rules, 0)
        tokens, probabilities = made.tokens, made.probabilities
    assert tokens is not None and probabilities is not None
    num = num if tokens.min() >= 0 else int((tokens < 0).argmax())  # no token is allowed there
    chances = [acceptance_of(chance, sampler.params.temperature) for chance in probabilities[:num].tolist()]
    return Drafted.of(tokens[:num], chances)


def _draft(
    sampler: TokenSampler, canvas: Canvas, start: int, behind: NextLogits, rules: Sequence[Rule]
) -> Asking[Drafted]:
    """A draft for the positions from `start` on, given the tokens before them, drawn with the random numbers with which
    its tokens will be verified; under a constraint each after those before it, which it allows.
    """
    temperature, constraint = sampler.params.temperature, sampler.constraint
    tokens, acceptance, product = list[int](), list[float](), 1.0
    token, num_open = int(canvas.tokens[start - 1]), len(canvas) if constraint is None else canvas.gaps[-1][1] - start
    while len(tokens) < num_open and (logits := (yield from behind.after(token))) is not None:
        position = start + len(tokens)
        if constraint is not None:
            canvas = canvas.at((position, position + 1))
        proposal = sampler.from_logits(canvas, np.array([position]), logits[None], rules, 0)
        token, chance = int(proposal.tokens[0]), acceptance_of(float(proposal.probabilities[0]), temperature)
        product *= chance
        if product < MIN_ACCEPTED:
            break
        if constraint is not None:
            canvas = canvas.apply(commit_all(proposal))
        tokens.append(token)
        acceptance.append(chance)
    return Drafted.of(np.array(tokens, dtype=np.int64), acceptance)
