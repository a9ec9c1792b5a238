"""Denoising with token-to-token editing: a step fills masks and replaces tokens of the active span, by one forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.denoise import Stop, decide
from daguerre.decoding.mode import Steps
from daguerre.decoding.run import Run
from daguerre.decoding.sampler import evidence_of
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Policy, Progress, commit_all
from daguerre.sampling.rules import Rule, complete, eligible
from daguerre.trace import Event


def denoise_and_edit(run: Run, canvas: Canvas, rules: Sequence[Rule], should_stop: Stop) -> Steps:
    """Fill and edit the active span of `canvas` until it is full and nothing changes; `denoise.denoise` without edits.

    Takes at most `policy.bound` forwards while positions are open, then at most `policy.num_extra`, fewer where time is
    short. An end of text does not end it early, because the end may be edited.
    """
    policy = run.policy
    num_start, post_steps, step = len(canvas.active_positions()), 0, 0
    while not should_stop(canvas) and post_steps < policy.num_extra:
        opened, written = canvas.active_positions(), _editable(run, canvas)
        if not opened.size:
            post_steps += 1
        if not (opened.size or (written.size and run.has_time_to_edit(canvas))):
            break
        request_step, min_commits = run.counts.forwards, run.min_commits(canvas)
        proposals = yield from run.sampler.propose(
            run.session, canvas, rules, request_step, np.union1d(opened, written)
        )
        is_open = canvas.open[proposals.positions]
        parts = []
        if opened.size:
            fresh, progress = proposals.keep(is_open), Progress(step, request_step, num_start)
            parts.append(_filled(run, eligible(rules, canvas, fresh), fresh, progress, min_commits))
        edits = _edits(policy, canvas, proposals.keep(~is_open))
        decision = complete(rules, canvas, _merged([*parts, edits]))
        if not len(decision):
            break
        canvas, step = canvas.apply(decision), step + 1
        yield Event(request_step, decision, canvas, evidence_of(decision, proposals))
    return canvas


def _filled(run: Run, ready: Proposals, fresh: Proposals, progress: Progress, min_commits: int) -> Decision:
    """What fills masks: what the policy commits of `ready`, or all of `fresh` where time is short."""
    if min_commits < len(fresh):
        return decide(run, run.policy, ready, progress, min_commits)
    run.counts.deadline_forced += 1
    return commit_all(fresh)


def _editable(run: Run, canvas: Canvas) -> np.ndarray:
    """Committed positions of the active span that may be edited, int64: none that was given, pinned or healed; and no
    end of text where it has filled the rest of its span.
    """
    if run.plan.decode.end_of_text == "fill":
        return run.plan.revisable(canvas)
    return run.plan.revisable(canvas, with_ends=True)


def _edits(policy: Policy, canvas: Canvas, proposals: Proposals) -> Decision:
    chosen = proposals.keep(policy.edit(proposals, canvas.tokens[proposals.positions]))
    values = chosen.positions, chosen.tokens, chosen.probabilities, chosen.confidence
    return Decision(*values, replace=chosen.positions)


def _merged(parts: Sequence[Decision]) -> Decision:
    """One decision of several about different positions."""
    positions = np.concatenate([part.positions for part in parts])
    order = np.argsort(positions, kind="stable")

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    tokens, probabilities, confidence = (joined(name)[order] for name in ("tokens", "probabilities", "confidence"))
    return Decision(positions[order], tokens, probabilities, confidence, replace=joined("replace"))
