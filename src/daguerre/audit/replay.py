"""Replay: what the model says of each committed token, computed again from a record's trace, without sampling.

The trace gives the canvas before each step. That canvas and the options determine the distribution of a token:

    ar, speculative   the autoregressive distribution after the tokens before it; one forward for a whole text
    beam              the same, of the text before the gap and in it
    block, full       the canvas of the step, whichever policy chose among its tokens; one forward a step
                      with a policy that draws one token given the one before it, the chain of the recorded tokens
                      with `revise`, the canvas that was read, or with leave_one_out one canvas for each token

Steering and guidance wrap the denoiser as they did in the run. Forwards of many records share batches.

Letters: A tokens, P parts, E numbers of evidence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding import generate
from daguerre.decoding.generate import Request
from daguerre.decoding.plan import Plan
from daguerre.decoding.revision import readings
from daguerre.decoding.sample import wrapped
from daguerre.decoding.steering import ProgramControls, controls
from daguerre.errors import DataError
from daguerre.model import Model
from daguerre.models.catalog import Catalog
from daguerre.models.forward import Logits
from daguerre.models.rows import Tree, first_run
from daguerre.models.session import Asking, Session, together
from daguerre.models.stale import RULES
from daguerre.sampling.logits import biased, softmax
from daguerre.sampling.rules import Rule, forbidden
from daguerre.trace import Trace

RECORDED = ("generate", "infill", "fill", "edit")
"""The operations that records are made of."""


@dataclass(frozen=True, eq=False)
class ReplayedTokens:
    """What a replay found of some tokens of a step.

    step, places   which step, and which of its tokens, int64 (A,)
    evidence       float32 (A, P, E)
    probabilities  float64 (A,), at temperature 1, after bias and bans; NaN where the record has others: a constraint's,
                   or those of an end of text that filled other positions, too
    behind         float64 (A,): by how many logits another token was ahead; NaN where tokens are not the likeliest ones
    """

    step: int
    places: np.ndarray
    evidence: np.ndarray
    probabilities: np.ndarray
    behind: np.ndarray


@dataclass(frozen=True, eq=False)
class ReplayStep:
    """A step to replay: its number, the canvas before it, its decision, and the places of the tokens that were asked
    for, int64 (A,).
    """

    number: int
    before: Canvas
    decision: Decision
    places: np.ndarray

    @property
    def positions(self) -> np.ndarray:
        """Of the tokens that were asked for."""
        return self.decision.positions[self.places]


Replayed = Callable[[Callable[[], Session], Plan, Sequence[ReplayStep]], Iterator[Asking[list[ReplayedTokens]]]]


def why_not(plan: Plan) -> str | None:
    """Why a record's logits cannot be computed again; None: they can."""
    decode, mode = plan.decode, plan.mode
    if mode.distribution is None:
        return f'mode "{mode.name}" has tokens whose distribution no canvas of its trace alone gives'
    if decode.cache in RULES:
        return f'cache="{decode.cache}" reads keys that are out of date, and a trace does not say which'
    if plan.draft is not None and not plan.mode.autoregressive:
        return "a draft was read, and the trace has what was kept of it alone"
    if decode.accept_draft is not None:
        return "accept_draft may have taken a draft, whose tokens nobody drew"
    return None


def controls_of(model: Model, plan: Plan) -> ProgramControls | None:
    """What a plan's steering comes to; None: it has none."""
    program, shape = plan.decode.steering, model.config.concepts
    if not program or shape is None:
        return None
    return controls(program, model.denoiser.heads, plan.catalog or Catalog.numbered(shape))


def replay(
    model: Model, plan: Plan, trace: Trace, asked: Sequence[np.ndarray | None], steered: ProgramControls | None
) -> Asking[list[ReplayedTokens]]:
    """What the model says of the tokens of a trace that were asked for: `asked`, bool (k,) of each step's tokens; None:
    of none. DataError for a step that the mode cannot have taken.
    """
    denoiser = wrapped(model.denoiser, plan, steered, explain=True)
    steps, before = list[ReplayStep](), trace.canvas
    cache = plan.decode.cache if plan.decode.cache == "approximate_int8" else "none"

    def session() -> Session:
        return denoiser.session(plan.canvas, cache)

    for number, (step, after) in enumerate(zip(trace.steps, trace.replay(), strict=True)):
        wanted = asked[number]
        places = np.zeros(0, dtype=np.int64) if wanted is None else np.flatnonzero(wanted)
        if len(places):
            steps.append(ReplayStep(number, before.at(step.span), step.decision, places))
        before = after
    found = yield from together(*REPLAYS[plan.mode.distribution](session, plan, steps))
    return [one for several in found for one in several]


def _autoregressive(
    session: Callable[[], Session], plan: Plan, steps: Sequence[ReplayStep]
) -> Iterator[Asking[list[ReplayedTokens]]]:
    """All in one forward where the text was written from the left, else a forward for each token."""
    if not steps:
        return
    positions = np.concatenate([step.decision.positions for step in steps])
    plain = not (plan.canvas.pins.size or any(_changes(step.decision) for step in steps))
    from_left = plan.canvas.continues and bool((np.diff(positions) > 0).all())
    if plain and from_left:
        yield _in_one(session(), plan, steps)
        return
    for step in steps:
        for index, place in enumerate(step.places):
            earlier = step.decision.keep(step.decision.positions < step.decision.positions[place])
            position = int(step.decision.positions[place])
            now = step.before.apply(earlier).at((position, position + 1))
            yield _at(session(), plan, ReplayStep(step.number, now, step.decision, step.places[index : index + 1]))


def _changes(decision: Decision) -> bool:
    """Whether a decision takes anything back; `Decision.only_commits` knows decisions of a run alone."""
    return bool(decision.reopen.size or decision.replace.size or decision.pin.size or decision.unpin.size)


def _in_one(session: Session, plan: Plan, steps: Sequence[ReplayStep]) -> Asking[list[ReplayedTokens]]:
    """The distributions of all tokens that were written from the left, as a draft that is verified."""
    last, first = steps[-1], int(steps[0].before.active_positions()[0])
    whole = last.before.apply(last.decision)
    end = int(last.positions[-1]) + 1
    start = steps[0].before.at((first, end))
    verified = yield from session.verify(start, whole.tokens[first : end - 1], 0, ())
    assert verified.evidence is not None
    out = list[ReplayedTokens]()
    for step in steps:
        rows = step.positions - first
        out.append(_found(plan, step, verified.logits[rows], verified.evidence[rows]))
    return out


def _by_canvas(
    session: Callable[[], Session], plan: Plan, steps: Sequence[ReplayStep]
) -> Iterator[Asking[list[ReplayedTokens]]]:
    """A forward, or a chain of them, for each step."""
    policy, decode = plan.decode.commit_policy, plan.decode
    for step in steps:
        read_again = bool(step.decision.replace.size) and not policy.edits
        if read_again and decode.revise_reading == "leave_one_out":
            yield _one_left_out(session(), plan, step)
        elif policy.sequential and not read_again:
            yield _in_chain(session(), plan, step)
        else:
            yield _at(session(), plan, step, read_again)


def _at(session: Session, plan: Plan, step: ReplayStep, read_again: bool = False) -> Asking[list[ReplayedTokens]]:
    answer = yield from session.ask(step.before, step.positions, Logits())
    assert answer.logits is not None and answer.evidence is not None
    return [_found(plan, step, answer.logits, answer.evidence, read_again)]


def _one_left_out(session: Session, plan: Plan, step: ReplayStep) -> Asking[list[ReplayedTokens]]:
    logits, evidence = list[np.ndarray](), list[np.ndarray]()
    for now, wanted in readings(step.before, step.positions, "leave_one_out"):
        answer = yield from session.ask(now, wanted, Logits())
        assert answer.logits is not None and answer.evidence is not None
        logits.append(answer.logits)
        evidence.append(answer.evidence)
    return [_found(plan, step, np.concatenate(logits), np.concatenate(evidence), True)]


def _in_chain(session: Session, plan: Plan, step: ReplayStep) -> Asking[list[ReplayedTokens]]:
    run = first_run(step.before.active_positions())
    if not np.array_equal(step.positions, run[: len(step.places)]):
        raise DataError(f"step {step.number} commits tokens that its policy does not draw one after the other")
    distributions = yield from session.sequential_logits(step.before)
    token, logits, evidence = int(step.before.tokens[run[0] - 1]), list[np.ndarray](), list[np.ndarray]()
    for place in step.places:
        row = yield from distributions.after(token)
        assert row is not None and distributions.evidence is not None
        logits.append(row[None])
        evidence.append(distributions.evidence)
        token = int(step.decision.tokens[place])
    return [_found(plan, step, np.concatenate(logits), np.concatenate(evidence))]


def _searched(
    session: Callable[[], Session], plan: Plan, steps: Sequence[ReplayStep]
) -> Iterator[Asking[list[ReplayedTokens]]]:
    """The distributions of a gap's tokens after the text before it."""
    for step in steps:
        yield _after_prefix(session(), plan, step)


def _after_prefix(session: Session, plan: Plan, step: ReplayStep) -> Asking[list[ReplayedTokens]]:
    if not np.array_equal(step.places, np.arange(len(step.places))):
        raise DataError(f"step {step.number} has evidence of tokens that a search does not write")
    tokens = step.decision.tokens[step.places]
    tree, _ = Tree.of([tokens[:-1].tolist()])
    given = step.before.tokens[: step.decision.positions[0]]
    answer = yield from session.tree_logits(given, tree, np.arange(-1, len(tokens) - 1))
    assert answer.logits is not None and answer.evidence is not None
    return [_found(plan, step, answer.logits, answer.evidence)]


def _found(
    plan: Plan, step: ReplayStep, logits: np.ndarray, evidence: np.ndarray, read_again: bool = False
) -> ReplayedTokens:
    """With what logits (A, V) say of the recorded tokens."""
    tokens, config = step.decision.tokens[step.places], plan.config
    probabilities, behind = np.full(len(tokens), np.nan), np.full(len(tokens), np.nan)
    ends = np.isin(step.decision.tokens, config.ends)
    drawn = ~ends[step.places] | (ends.sum() == 1)
    if plan.constraint is None and drawn.any():
        rows = biased(logits[drawn].astype(np.float64), plan.decode.sampling)
        if read_again:
            rows[:, config.ends] = -np.inf
        elif plan.mode.distribution != "search":
            forbidden(rules_at(plan, step.before), step.before).apply(step.positions[drawn], rows)
        index = np.arange(len(rows)), tokens[drawn]
        rows[index] = np.maximum(rows[index], np.finfo(np.float64).min)  # a forbidden one has no probability
        probabilities[drawn] = softmax(rows)[index]
        if plan.decode.temperature == 0 and plan.mode.distribution != "search":
            behind[drawn] = rows.max(axis=-1) - rows[index]
    return ReplayedTokens(step.number, step.places, evidence, probabilities, behind)


def rules_at(plan: Plan, canvas: Canvas) -> list[Rule]:
    """The rules that tokens were drawn under: those of the first gap whose text is not healed, or the plan's."""
    for gap in plan.gaps:
        if gap.healing.where(canvas)[1]:
            return [gap.healing]
    return plan.rules(canvas)


REPLAYS: dict[str | None, Replayed] = {"left": _autoregressive, "search": _searched, "canvas": _by_canvas}
"""By what gives the distribution of a mode's tokens again (`Mode.distribution`)."""


def plan_of(model: Model, request: Any, decode: Any) -> Plan:
    """The plan of a recorded request. DataError for an unknown operation."""
    if request["operation"] not in RECORDED:
        raise DataError(f"there is no operation {request['operation']!r}")
    asked = Request.of(request["operation"], decode=decode, **model.with_defaults(decode, request["arguments"]))
    return generate.plan_of(model.denoiser, model.tokenizer, asked)
