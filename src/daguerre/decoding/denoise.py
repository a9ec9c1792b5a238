"""THE MAIN PATH: `denoise` fills the active span of a canvas.

A step draws a token for each open position, lets the policy choose which of them to commit, and replaces the canvas.
`Run` is what a mode runs with: the plan of one request, and the session, sampler and deadline of one of its samples.

A text is finished by its deadline: forwards are timed, and where time is short a step commits more. A request that has
time for F more forwards commits at least ceil(open / F) positions in the next one, so that the last one fills the rest
of the budget. Until a forward has been timed, the policy alone decides.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.plan import Plan, Steps
from daguerre.decoding.result import has_ended, num_as_drafted
from daguerre.decoding.sampler import TokenSampler, evidence_at
from daguerre.models.drafting_model import DraftingSession
from daguerre.models.forward import Logits
from daguerre.models.row_times import RowTimes
from daguerre.models.rows import index_range
from daguerre.models.session import Asking, Counts, Session
from daguerre.sampling.logits import Proposals, biased, softmax
from daguerre.sampling.policies.base import Policy, Progress, commit, commit_all, top
from daguerre.sampling.rules import Rule, complete, eligible, forbidden
from daguerre.trace import Event

RECENT = 3
"""The next forward is expected to take as long as the longest of the last this many."""

Clock = Callable[[], float]


class Deadline:
    """One sample's time. seconds: None is no limit, of which `spent` have passed; clock: in seconds, from any moment.

    `busy` is the time in seconds of the sample's steps, and of the forwards that it waited for; the driver adds to it.
    The time that a consumer of its events takes is not part of it. `set`: there is a limit.
    """

    def __init__(self, seconds: float | None, clock: Clock | None = None, spent: float = 0.0) -> None:
        self.clock = clock or time.perf_counter
        self.started = self.clock() - spent
        self.busy = 0.0
        self._end = math.inf if seconds is None else self.started + seconds
        self.set = self._end < math.inf
        self._took: deque[float] = deque(maxlen=RECENT)
        self._mark: tuple[float, Counts] | None = None

    def end(self) -> None:
        """End the time now."""
        self._end, self.set = min(self._end, self.clock()), True

    def late(self) -> bool:
        """Whether the time is up."""
        return self.clock() >= self._end

    def min_commits(self, num_open: int, counts: Counts) -> int:
        """How many of `num_open` positions the next forward must commit; 0: as few as the policy chooses.

        counts: what the sample has computed.
        """
        forwards = self.forwards_left(counts)
        return 0 if forwards == math.inf else math.ceil(num_open / max(1.0, forwards))

    def forwards_left(self, counts: Counts) -> float:
        """How many more forwards there is time for; infinity without a limit, and until one has been timed.

        counts: what the sample has computed. The time of a forward is scaled to the share of its rows that the next one
        will have too: all but the caller's text.
        """
        if not self.set:
            return math.inf
        if self._mark is None:
            self._mark = self.busy, replace(counts)
        before, old = self._mark
        if counts.forwards > old.forwards:
            prompt = counts.prefill_tokens - old.prefill_tokens
            again = sum(
                getattr(counts, n) - getattr(old, n) for n in ("query_tokens", "finalized_tokens", "recomputed_tokens")
            )
            self._took.append((self.busy - before) * (again / (again + prompt) if again else 1.0))
            self._mark = self.busy, replace(counts)
        return (self._end - self.clock()) // max(*self._took, 1e-9) if self._took else math.inf


@dataclass(eq=False)
class Run:
    """One run of a mode.

    counts  what the sample has computed: those of the session
    crowd   how many texts are written in its forwards, with this one: whoever computes them changes it
    row_times  what rows were measured to take; None: by the table of the processor
    second  the session of a second model, which drafts; and how that is asked, which a scorer may change
    """

    plan: Plan
    session: Session
    sampler: TokenSampler
    deadline: Deadline
    counts: Counts
    crowd: int = 1
    row_times: RowTimes | None = None
    second: tuple[DraftingSession, Session] | None = None
    _last_end: tuple[object, bool] = field(default=(None, False))

    @property
    def policy(self) -> Policy:
        """The request's policy."""
        return self.plan.decode.commit_policy

    @property
    def threshold(self) -> float:
        """The probability from which on tokens are kept."""
        return self.plan.decode.threshold

    @property
    def fixed_pace(self) -> bool:
        """Whether a deadline does not change how much a step commits."""
        return self.plan.mode.autoregressive or not self.deadline.set

    def has_ended(self, canvas: Canvas) -> bool:
        """Whether the text has ended, or the time is up."""
        if self._last_end[0] is not canvas.open:  # another span of the canvas has the same array
            self._last_end = canvas.open, has_ended(self.plan, canvas)
        return self._last_end[1] or (self.deadline.set and self.deadline.late())

    def min_commits(self, canvas: Canvas) -> int:
        """How many positions the next forward must commit, because time is short; 0 where it is not."""
        if self.fixed_pace:
            return 0
        return self.deadline.min_commits(len(self.plan.opened(canvas)), self.counts)

    def has_time_to_edit(self, canvas: Canvas) -> bool:
        """Whether a forward that commits nothing leaves time for one for each open position."""
        return self.fixed_pace or self.deadline.forwards_left(self.counts) > len(self.plan.opened(canvas))

    def accept_draft(self, canvas: Canvas) -> None:
        """Count the tokens of the caller's draft that the text has at the drafted positions."""
        self.counts.accept(num_as_drafted(self.plan, canvas))


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
        threshold = 0.0 if last or min_commits > 0 else run.threshold
        proposals = yield from _propose(run, canvas, rules, request_step, threshold)
        progress = Progress(step, request_step, num_start)
        if last or min_commits >= num_open:
            run.counts.deadline_forced += not last
            decision = commit_all(proposals)
        else:
            decision = decide(run, policy, eligible(rules, canvas, proposals), progress, min_commits)
        decision = complete(rules, canvas, decision)
        canvas = canvas.apply(decision)
        yield Event(request_step, decision, canvas, evidence_at(decision, proposals.positions, proposals.evidence))
    return canvas


def _propose(run: Run, canvas: Canvas, rules: Sequence[Rule], step: int, threshold: float) -> Asking[Proposals]:
    """A token for each open position. For a sequential policy they end with the first below the threshold."""
    if not run.policy.sequential:
        return (yield from run.sampler.propose(run.session, canvas, rules, step))
    return (yield from run.sampler.propose_sequentially(run.session, canvas, rules, step, threshold))


def decide(run: Run, policy: Policy, ready: Proposals, progress: Progress, min_commits: int) -> Decision:
    """What the policy commits, and at least `min_commits`."""
    rng, ready = run.sampler.rng, ready if policy.fixed_counts else ready.first
    decision = policy.decide(ready, progress, rng)
    if len(decision) >= min_commits:
        return decision
    run.counts.deadline_forced += 1
    return with_more(decision, ready, policy.rank(ready, progress, rng), min_commits)


def with_more(decision: Decision, ready: Proposals, ranked: np.ndarray, min_commits: int) -> Decision:
    """The decision with more of the proposals `ready` (A,), highest of `ranked` (A,) first, until it has `min_commits`
    or all.
    """
    chosen = np.isin(ready.positions, decision.positions)
    waits = None if ready.waits is None else ready.waits & ~chosen
    return commit(ready, top(np.where(chosen, np.inf, ranked), min_commits, waits), ranked)


def heal(run: Run, canvas: Canvas) -> Steps:
    """Draw the text that was taken back before each gap again, one token at a time."""
    for gap in run.plan.gaps:
        rules = [gap.healing]
        while gap.healing.where(canvas)[1]:
            if run.deadline.set:
                if run.deadline.late():
                    break
                run.deadline.forwards_left(run.counts)  # which times the forwards
            position = gap.healing.where(canvas)[0]
            canvas = yield from draw_one(run, canvas.at((position, position + 1)), rules)
    return canvas


def draw_one(run: Run, canvas: Canvas, rules: Sequence[Rule]) -> Steps:
    """Commit a token at the only open position of the active span, by one forward."""
    step = run.counts.forwards
    assert canvas.span is not None
    proposals = yield from run.sampler.propose(run.session, canvas, rules, step, index_range(*canvas.span))
    canvas, decision = commit_first(canvas, proposals, 1, rules)
    yield Event(step, decision, canvas, evidence_at(decision, proposals.positions, proposals.evidence))
    return canvas


def commit_first(canvas: Canvas, proposals: Proposals, num: int, rules: Sequence[Rule]) -> tuple[Canvas, Decision]:
    """The canvas with the first `num` proposals, at the start of its active span, and their decision."""
    assert canvas.span is not None
    canvas = canvas.at((canvas.span[0], canvas.span[0] + num))
    tokens, probabilities = proposals.tokens[:num], proposals.probabilities[:num]
    ranked = probabilities if proposals.marginals is None else proposals.marginals[:num]
    decision = complete(rules, canvas, Decision.plain(proposals.positions[:num], tokens, probabilities, ranked))
    return canvas.apply(decision), decision


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
        yield Event(request_step, decision, canvas, evidence_at(decision, proposals.positions, proposals.evidence))
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
