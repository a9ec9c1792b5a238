"""Mode "expand": gaps that grow and shrink while they are decoded, by models trained to (DreamOn, arXiv 2602.01326).

A gap begins with a few open positions. Beside words, such a model predicts two tokens that are no text: one expands an
open position into two, and the gap filler deletes it. What a policy commits is applied at once, so nothing of either is
left in the text, and the next forward has another number of rows.

The canvas of a request keeps its length all the same. A gap holds its text and its open positions from the left, and
gap fillers to the right of them, which the model does not see. A token that moves is replaced where it was, by a
decision like any other, so that traces, streams and pictures are those of every mode. Nothing moves to the left of the
first open position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from daguerre.canvas import Canvas, Span
from daguerre.decoding.denoise import Run, decide
from daguerre.decoding.modes.windows import OPEN, Window, difference, edited, seen
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.plan import SAMPLING, Mode, Plan, Steps
from daguerre.decoding.sampler import evidence_at
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.session import Asking
from daguerre.sampling.policies import POLICIES
from daguerre.sampling.policies.base import Progress, commit_all
from daguerre.sampling.rules import Ban, EndOfText, Forbidden, Never, Rule, eligible
from daguerre.trace import Event

START_TOKENS = 4
"""With how many open positions a gap begins: DreamOn's own number."""
USABLE = frozenset(POLICIES) - {"chain", "first_hitting", "joint_threshold", "origin"}
"""Policies that need neither positions that stay where they are, nor a schedule known at the start."""


class Expand(Mode):
    """All gaps at once, each as long as the model makes it."""

    name = "expand"
    policies = USABLE
    options = (
        frozenset({"start_tokens", "policy", "rank_by", "end_of_text"})
        .union(SAMPLING, *(POLICIES[name].options for name in USABLE))
        .difference({"cache", "steps", "schedule"})
    )
    heals = shapes = changeable = keeps_drafts = searches_length = commits_each_step = False
    ends_gaps = True
    traced = False
    no_spans = "moves text while it is written"

    def check_model(self, config: ModelConfig) -> None:
        """A token that expands."""
        super().check_model(config)
        if config.expand_id is None:
            raise UnsupportedError(
                'mode "expand" needs a model with a token that expands a gap, as DreamOn has: use mode "block" or '
                '"full"'
            )

    def check_draft(self, settings: DecodeOptions) -> None:
        """It takes none."""
        raise UnsupportedError(
            'mode "expand" begins with open positions and takes no draft: leave out the draft, or use mode "full"'
        )

    def check_canvas(
        self, settings: DecodeOptions, config: ModelConfig, canvas: Canvas, budgets: Sequence[Span]
    ) -> None:
        """The start within each budget, room for <eos> at the end, and guidance of one gap alone."""
        for fewest, most in budgets:
            if settings.start_tokens is not None and not fewest <= settings.start_tokens <= most:
                raise InputError(
                    f"start_tokens={settings.start_tokens} is not from min_tokens={fewest} to max_tokens={most}: "
                    "change one of them, or leave out start_tokens"
                )
        if len(canvas) >= config.max_positions:
            raise InputError(
                f"the text and max_tokens leave no room for <eos> among {config.max_positions} positions: shorten the "
                "text or ask for fewer tokens"
            )
        if settings.guidance != 1 and len(budgets) > 1:
            raise UnsupportedError('guidance in mode "expand" is for one gap: leave out guidance, or use mode "full"')

    def bound(self, plan: Plan) -> int:
        """A forward takes an open position away, or adds one and uses up an expansion."""
        return sum(len(window.slots) + 2 * window.budget for window in first_windows(plan))

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """Fill all gaps: yields forwards, one event a step, and before them one for the fillers of short gaps."""
        plan, windows = run.plan, first_windows(run.plan)
        canvas = canvas.at((canvas.gaps[0][0], canvas.gaps[-1][1]))
        whole = [replace(window, slots=(OPEN,) * (window.gap[1] - window.gap[0])) for window in windows]
        decision, _ = difference(whole, windows, plan.ending[0])
        if len(decision):
            canvas = canvas.apply(decision)
            yield Event(run.counts.forwards, decision, canvas)
        while canvas.active_positions().size and not run.has_ended(canvas):
            before, step = windows, run.counts.forwards
            windows = yield from take_step(run, canvas, before)
            decision, evidence = difference(before, windows, plan.ending[0])
            canvas = canvas.apply(decision)
            yield Event(step, decision, canvas, evidence)
        return canvas


@dataclass(frozen=True)
class Bans(Rule):
    """Tokens that are not drawn in this step."""

    bans: tuple[Ban, ...]

    def forbids(self, canvas: Canvas) -> Forbidden:
        """As given."""
        return Forbidden(self.bans)


def first_windows(plan: Plan) -> list[Window]:
    """The windows of all gaps before the first forward. A gap has as many expansions as it may have tokens, and none if
    its length is given.
    """
    start = plan.decode.start_tokens or START_TOKENS
    windows = []
    for span, gap in zip(plan.canvas.gaps, plan.gaps, strict=True):
        fewest, most = gap.min_tokens, gap.max_tokens
        slots = (OPEN,) * min(max(start, fewest), most)
        windows.append(Window(span, slots, fewest, most, most if fewest < most else 0))
    return windows


def take_step(run: Run, canvas: Canvas, windows: Sequence[Window]) -> Asking[list[Window]]:
    """The windows after one forward: a token for each open position, of which the policy commits some.

    Where time is short no gap grows.
    """
    config, decode, step = run.plan.config, run.plan.decode, run.counts.forwards
    min_commits, sight = run.min_commits(canvas), seen(config, canvas, windows)
    rules = rules_of(config, decode, windows, sight.runs, grows=not min_commits)
    proposals = yield from run.sampler.propose(run.session, sight.canvas, rules, step)
    if min_commits >= len(proposals):
        run.counts.deadline_forced += 1
        decision = commit_all(proposals)
    else:
        ready = eligible(rules, sight.canvas, proposals)
        decision = decide(run, run.policy, ready, Progress(0, step, len(proposals)), min_commits)
    evidence = evidence_at(decision, proposals.positions, proposals.evidence)
    return [
        edited(config, window, place, decision, evidence, decode.end_of_text == "fill")
        for window, place in zip(windows, sight.runs, strict=True)
    ]


def rules_of(
    config: ModelConfig, decode: DecodeOptions, windows: Sequence[Window], runs: Sequence[Span], grows: bool
) -> list[Rule]:
    """What is not drawn: ends of text that are no filler; expansions unless a gap `grows` and has room and budget left;
    deletions where it may not be shorter. And whether deletions wait for all other tokens.
    """
    assert config.null_id is not None and config.expand_id is not None
    bans = list[Ban]()
    for window, (start, end) in zip(windows, runs, strict=True):
        if not (grows and window.budget and len(window.slots) < window.most):
            bans.append((config.expand_id, start, end))
        if len(window.slots) == window.fewest:
            bans.append((config.null_id, start, end))
    no_words = {*config.ends} - {config.null_id, config.expand_id}
    return [Never(tuple(sorted(no_words))), Bans(tuple(bans)), EndOfText((config.null_id,), 0, decode.end_of_text)]
