"""THE MAIN PATH: `denoise` fills the active span of a canvas.

A step draws a token for each open position, lets the policy choose which of them to commit, and replaces the canvas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.deadline import with_more
from daguerre.decoding.mode import Steps
from daguerre.decoding.run import Run
from daguerre.decoding.sampler import TokenSampler, evidence_at, evidence_of
from daguerre.models.forward import Logits
from daguerre.models.session import Asking, Session
from daguerre.sampling.logits import Proposals, biased, softmax
from daguerre.sampling.policies.base import Policy, Progress, commit_all
from daguerre.sampling.rules import Rule, complete, eligible, forbidden
from daguerre.trace import Event

Stop = Callable[[Canvas], bool]
"""Whether a run ends early at this canvas, because its text has ended or its time is up."""


def denoise(run: Run, canvas: Canvas, rules: Sequence[Rule], should_stop: Stop) -> Steps:
    """Fill the active span of `canvas`: yields forwards, and one event a step; returns the canvas.

    Takes at most `policy.bound` forwards, of which the last commits everything that is still open. Ends early, with
    open positions, once it should stop.
    """
    policy, num_start = run.policy, len(canvas.active_positions())
    bound = policy.bound(num_start)
    for step in range(bound):
        canvas = yield from commit_forced(run.session, run.sampler, canvas, rules)
        num_open = len(canvas.active_positions())
        if not num_open or should_stop(canvas):
            break
        request_step, min_commits = run.counts.forwards, run.min_commits(canvas)
        last = step + 1 == bound
        proposals = yield from _propose(run, canvas, rules, request_step, last or min_commits > 0)
        progress = Progress(step, request_step, num_start)
        if last or min_commits >= num_open:
            run.counts.deadline_forced += not last
            decision = commit_all(proposals)
        else:
            decision = decide(run, policy, eligible(rules, canvas, proposals), progress, min_commits)
        decision = complete(rules, canvas, decision)
        canvas = canvas.apply(decision)
        yield Event(request_step, decision, canvas, evidence_of(decision, proposals))
    return canvas


def _propose(run: Run, canvas: Canvas, rules: Sequence[Rule], step: int, every: bool) -> Asking[Proposals]:
    """A token for each open position. For a sequential policy they end with the first below the threshold,
    unless `every` position gets one.
    """
    if not run.policy.sequential:
        return (yield from run.sampler.propose(run.session, canvas, rules, step))
    threshold = 0.0 if every else run.threshold
    return (yield from run.sampler.propose_sequentially(run.session, canvas, rules, step, threshold))


def decide(run: Run, policy: Policy, ready: Proposals, progress: Progress, min_commits: int) -> Decision:
    """What the policy commits, and at least `min_commits`."""
    rng, ready = run.sampler.rng, ready if policy.fixed_counts else ready.first
    decision = policy.decide(ready, progress, rng)
    if len(decision) >= min_commits:
        return decision
    run.counts.deadline_forced += 1
    return with_more(decision, ready, policy.rank(ready, progress, rng), min_commits)


def heal(run: Run, canvas: Canvas) -> Steps:
    """Draw the text that was taken back before each gap again, one token at a time."""
    for gap in run.plan.gaps:
        while gap.healing.where(canvas)[1] and not run.late():
            position = gap.healing.where(canvas)[0]
            here = canvas.at((position, position + 1))
            canvas = yield from denoise(run, here, [gap.healing], lambda now: run.late())
    return canvas


def commit_forced(session: Session, sampler: TokenSampler, canvas: Canvas, rules: Sequence[Rule]) -> Steps:
    """Commit, without a forward, the positions for which a constraint allows one token alone."""
    decision = None if sampler.constraint is None else sampler.constraint.forced(canvas)
    if decision is not None and len(decision):
        decision = complete(rules, canvas, decision)
        canvas = canvas.apply(decision)
        yield Event(session.counts.forwards, decision, canvas)
    return canvas


def read_draft(run: Run, canvas: Canvas, draft: np.ndarray, rules: Sequence[Rule]) -> Steps:
    """Read all of `draft` (k,), the first tokens of the active span, in one forward, and commit the tokens to which the
    model gives a probability of `threshold` or more, as far as a constraint allows them together.

    Only a model that was trained to correct gives useful probabilities of tokens that it sees.
    """
    assert canvas.span is not None
    positions, step, constraint = canvas.span[0] + np.arange(len(draft)), run.counts.forwards, run.sampler.constraint
    still_open = canvas.open[positions]
    positions, draft = positions[still_open], draft[still_open]
    shown = canvas.apply(Decision(positions, draft, np.ones(len(draft)), np.ones(len(draft))))
    answer = yield from run.session.ask(shown, positions, Logits())
    assert answer.logits is not None
    logits = biased(answer.logits, run.sampler.params)
    forbidden(rules, canvas).apply(positions, logits)
    probs = softmax(logits)[np.arange(len(draft)), draft]
    kept = (probs >= run.threshold) & (probs > 0)
    decision = Decision(positions[kept], draft[kept], probs[kept], probs[kept])
    if constraint is not None:
        decision = constraint.allowed(canvas, decision)
    if len(decision):
        canvas = canvas.apply(decision)
        yield Event(step, decision, canvas, evidence_at(decision, positions, answer.evidence))
    return canvas
