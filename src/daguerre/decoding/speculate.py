"""The tokens of mode "ar" in fewer forwards: a forward verifies a draft and drafts the tokens after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.denoise import Stop
from daguerre.decoding.draft import Alignment
from daguerre.decoding.mode import Steps
from daguerre.decoding.run import Run
from daguerre.decoding.sampler import TokenSampler, evidence_at, evidence_of, proposals_of
from daguerre.models.session import Asking, NextLogits
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import commit, commit_all
from daguerre.sampling.rules import Rule, complete
from daguerre.trace import Event

MIN_DRAFT_PROB = 0.05
"""A draft ends before the token with which the product of its probabilities falls below this."""


def speculate(
    run: Run, canvas: Canvas, rules: Sequence[Rule], size: int, should_stop: Stop, given: Alignment | None = None
) -> Steps:
    """Fill the active span with the tokens that mode "ar" draws, in fewer forwards.

    A forward verifies a draft of fewer than `size` tokens against the autoregressive distribution: the tokens that this
    draws are committed, up to and including the first that differs from the draft. The same forward drafts what follows
    each place where that may be. So it commits at least one token, and none that mode "ar" would not draw. A `given`
    draft is verified as long as the text follows it; with a `size` of 1 the model drafts nothing.
    """
    assert canvas.span is not None
    (start, end), draft = canvas.span, np.zeros(0, dtype=np.int64)
    while start < end and not should_stop(canvas):
        step = run.counts.forwards
        if given is not None and given.ahead(end - start - 1).size:
            draft = given.ahead(end - start - 1)
        active = canvas.at((start, end))
        cycle = _cycle if run.session.draws and run.sampler.constraint is None else _cycle_slowly
        canvas, event, following = yield from cycle(run, active, draft, rules, size, should_stop, step)
        yield event
        num = len(event.decision)
        run.counts.drafted += len(draft)
        run.counts.accepted += int((event.decision.tokens[: len(draft)] == draft[:num]).sum())
        start += num
        if given is not None:
            earlier, given = given, given.after(canvas.tokens[canvas.gaps[0][0] : start], num)
            run.counts.accept(given.accepted - earlier.accepted)
        draft = following[: max(0, end - start - 1)]
    return canvas


Cycled = tuple[Canvas, Event, np.ndarray]
"""The canvas after a cycle, its event, and the draft of the next cycle, int64 (d,)."""


def _cycle(
    run: Run, canvas: Canvas, draft: np.ndarray, rules: Sequence[Rule], size: int, should_stop: Stop, step: int
) -> Asking[Cycled]:
    """A cycle in one answer (`models.forward.Cycle`)."""
    assert canvas.span is not None
    start = canvas.span[0]
    drawing = run.sampler.rules(canvas, rules, 0)
    answer = yield from run.session.cycle(canvas, draft, size - 1, drawing, MIN_DRAFT_PROB)
    proposals = proposals_of(start + np.arange(len(draft) + 1), answer)
    canvas, decision = _agreed(canvas, draft, proposals, rules, should_stop)
    assert answer.draft is not None
    return canvas, Event(step, decision, canvas, evidence_of(decision, proposals)), answer.draft


def _cycle_slowly(
    run: Run, canvas: Canvas, draft: np.ndarray, rules: Sequence[Rule], size: int, should_stop: Stop, step: int
) -> Asking[Cycled]:
    """The same from logits: the reference, and the way of constraints, guidance and scorers."""
    assert canvas.span is not None
    (start, end), sampler = canvas.span, run.sampler
    verified = yield from run.session.verify(canvas, draft, size - 1)
    positions = start + np.arange(len(verified.logits))
    if sampler.constraint is not None:
        canvas, decision = _agreed_sequentially(sampler, canvas, draft, verified.logits, rules, should_stop)
    else:
        proposals = sampler.from_logits(canvas, positions, verified.logits, rules, 0)
        canvas, decision = _agreed(canvas, draft, proposals, rules, should_stop)
    event = Event(step, decision, canvas, evidence_at(decision, positions, verified.evidence))
    num = len(decision)
    if start + num == end or should_stop(canvas):
        return canvas, event, draft[:0]
    following = yield from _draft(sampler.greedy(), canvas, start + num, verified.following(num - 1), rules)
    return canvas, event, following


def _agreed(
    canvas: Canvas, draft: np.ndarray, proposals: Proposals, rules: Sequence[Rule], should_stop: Stop
) -> tuple[Canvas, Decision]:
    """The drawn tokens that equal the draft (D,), and one token more, up to the token at which the run should stop. All
    D + 1 are drawn at once: without a constraint a draw depends on its position and distribution alone.
    """
    differs = np.flatnonzero(proposals.tokens[: len(draft)] != draft)
    num = 1 + (int(differs[0]) if differs.size else len(draft))
    filled, decision = _commit_first(canvas, proposals, num, rules)
    if num > 1 and should_stop(filled):
        firsts = (_commit_first(canvas, proposals, count, rules) for count in range(1, num))
        return next((first for first in firsts if should_stop(first[0])), (filled, decision))
    return filled, decision


def _agreed_sequentially(
    sampler: TokenSampler,
    canvas: Canvas,
    draft: np.ndarray,
    logits: np.ndarray,
    rules: Sequence[Rule],
    should_stop: Stop,
) -> tuple[Canvas, Decision]:
    """`_agreed` under a constraint: a position is drawn once those before it are committed."""
    assert sampler.constraint is not None and canvas.span is not None
    start = canvas.span[0]
    decisions: list[Decision] = []
    for position, row in enumerate(logits, start):
        canvas = canvas.at((position, position + 1))
        decision = sampler.constraint.forced(canvas)  # which "ar" commits without a forward
        if not len(decision):
            decision = commit_all(sampler.from_logits(canvas, canvas.active_positions(), row[None], rules, 0))
        decisions.append(complete(rules, canvas, decision))
        canvas = canvas.apply(decisions[-1])
        if not np.array_equal(decisions[-1].tokens, draft[position - start :][:1]) or should_stop(canvas):
            break
    return canvas.at((start, start + len(decisions))), Decision.join(decisions)


def _commit_first(canvas: Canvas, proposals: Proposals, num: int, rules: Sequence[Rule]) -> tuple[Canvas, Decision]:
    """The canvas with the first `num` proposals, at the start of its active span, and their decision."""
    assert canvas.span is not None
    canvas = canvas.at((canvas.span[0], canvas.span[0] + num))
    decision = complete(rules, canvas, commit(proposals, np.arange(len(proposals)) < num))
    return canvas.apply(decision), decision


def _draft(
    greedy: TokenSampler, canvas: Canvas, start: int, behind: NextLogits, rules: Sequence[Rule]
) -> Asking[np.ndarray]:
    """A draft (D,) for the positions from `start` on, given the tokens before them.

    It has the most likely tokens at every temperature: at 1 more of them are accepted than of tokens that the same
    random numbers draw from the draft's distribution (docs/log.md).
    """
    out: list[int] = []
    token, product = int(canvas.tokens[start - 1]), 1.0
    while (logits := (yield from behind.after(token))) is not None:
        proposal = greedy.from_logits(canvas, np.array([start + len(out)]), logits[None], rules, 0)
        token, product = int(proposal.tokens[0]), product * float(proposal.probabilities[0])
        if product < MIN_DRAFT_PROB:
            break
        out.append(token)
    return np.array(out, dtype=np.int64)
