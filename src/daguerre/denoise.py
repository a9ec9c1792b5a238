"""THE MAIN PATH: `denoise` fills the active span of a canvas; beside it `speculate`, the same tokens as mode "ar".

The denoiser is asked for logits at the open positions, the rules ban what may not be drawn, a token is drawn for each,
the policy decides which to commit, the canvas is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.models import draft_head
from daguerre.models.denoiser import Behind, Session
from daguerre.sampling.constrained import Constraint
from daguerre.sampling.deadline import hastened
from daguerre.sampling.draft import Alignment
from daguerre.sampling.logits import Law, Proposals, biased, propose, softmax
from daguerre.sampling.policies.base import Policy, Progress, commit
from daguerre.sampling.policies.chain import Chain
from daguerre.sampling.random import TOKEN, Counter
from daguerre.sampling.rules import Rule, ban, complete, eligible
from daguerre.trace import Event

WORTH = 0.05
"""A drafted token is put to the test while the draft gives itself and those before it at least this probability."""

Steps = Generator[Event, None, Canvas]
Over = Callable[[Canvas], bool]
"""Whether a run is to end early at this canvas: its text has ended, or its time."""

Least = Callable[[Canvas], int]
"""How many positions the forward to come has to commit, because time is short; 0 where it is not."""


@dataclass(frozen=True)
class Draw:
    """How tokens are drawn. Without `by_step` a position's random number is the same in every step: modes "ar" and
    "speculative". With a constraint all tokens of a gap are on one path of it.
    """

    law: Law
    rng: Counter
    by_step: bool = True
    constraint: Constraint | None = None

    def __call__(
        self, canvas: Canvas, asked: np.ndarray, logits: np.ndarray, rules: Sequence[Rule], step: int
    ) -> Proposals:
        """A token for each asked position (A,), from its logits (A, V) under the rules."""
        own = biased(logits, self.law, precise=self.constraint is None)
        ban(rules, canvas, asked, own)
        greedy = self.law.temperature == 0
        u = np.zeros(len(asked)) if greedy else self.rng.uniform(TOKEN, asked, step if self.by_step else 0)
        if self.constraint is not None:
            return self.constraint.propose(canvas, asked, own, self.law, u)
        return propose(asked, own, self.law, u)


def never(canvas: Canvas) -> bool:
    return False


def as_the_policy_likes(canvas: Canvas) -> int:
    return 0


def denoise(
    session: Session,
    policy: Policy,
    canvas: Canvas,
    draw: Draw,
    rules: Sequence[Rule] = (),
    over: Over = never,
    least: Least = as_the_policy_likes,
) -> Steps:
    """Fill the active span of `canvas`: yields one event a step, returns the canvas; who iterates observes.

    Takes at most `policy.bound` forwards, and the last of them commits everything still open. Ends early, with open
    positions, once the canvas is `over`.
    """
    num_start = len(canvas.asked())
    bound = policy.bound(num_start)
    for step in range(bound):
        canvas = yield from _commit_forced(session, canvas, draw, rules)
        asked = canvas.asked()
        if not asked.size or over(canvas):
            break
        request_step, num_least = session.counts.forwards, least(canvas)
        if isinstance(policy, Chain):
            wanted = policy.threshold if step + 1 < bound and not num_least else 0.0
            proposals = in_turn(session, canvas, draw, rules, request_step, wanted)
        else:
            proposals = draw(canvas, asked, session.logits(canvas, asked), rules, request_step)
        if step + 1 < bound and num_least < len(asked):
            ready = proposals.keep(eligible(rules, canvas, proposals))
            progress = Progress(step, request_step, num_start)
            decision = policy.decide(ready, progress, draw.rng)
            if len(decision) < num_least:
                session.counts.hurried += 1
                decision = hastened(decision, ready, policy.rank(ready, progress, draw.rng), num_least)
        else:
            session.counts.hurried += int(step + 1 < bound)
            decision = commit(proposals, np.ones(len(proposals), dtype=bool))
        decision = complete(rules, canvas, decision)
        canvas = canvas.apply(decision)
        yield Event(request_step, decision, canvas)
    return canvas


def in_turn(
    session: Session, canvas: Canvas, draw: Draw, rules: Sequence[Rule], step: int, threshold: float
) -> Proposals:
    """Tokens for the first open positions of the active span, from the left, each drawn once the one before it is.

    They end with the first, from the second on, whose probability is below `threshold`, and with what is committed.
    """
    first, behind, parts = int(canvas.asked()[0]), session.in_turn(canvas), list[Proposals]()
    proposals = _all_greedy(canvas, first, behind, draw, rules, threshold=threshold)
    if proposals is not None:
        return proposals
    token = int(canvas.tokens[first - 1])
    while (logits := behind(token)) is not None:
        parts.append(draw(canvas, np.array([first + len(parts)]), logits[None], rules, step))
        token = int(parts[-1].tokens[0])
        if len(parts) > 1 and parts[-1].probabilities[0] < threshold:
            break
    return Proposals.join(parts)


def _all_greedy(
    canvas: Canvas,
    first: int,
    behind: Behind,
    draw: Draw,
    rules: Sequence[Rule],
    worth: float = 0.0,
    threshold: float = 0.0,
) -> Proposals | None:
    """The most likely tokens from position `first` on, all in one call (`models.draft_head.Chain.greedy`); None where
    each law has to be asked for by itself.
    """
    if draw.law.temperature > 0 or draw.constraint is not None or not isinstance(behind, draft_head.Chain):
        return None
    positions = first + np.arange(len(behind))
    added = np.zeros((len(behind), behind.vocab_size), dtype=np.float32)
    ban(rules, canvas, positions, biased(added, draw.law))
    tokens, probabilities, logits = behind.greedy(int(canvas.tokens[first - 1]), added, worth, threshold)
    if not np.isfinite(probabilities).all():
        softmax(logits)  # says that nothing is left to draw
    return Proposals(positions[: len(tokens)], tokens, probabilities, logits)


def _commit_forced(session: Session, canvas: Canvas, draw: Draw, rules: Sequence[Rule]) -> Steps:
    """Commit, without a forward, what a constraint leaves no choice about."""
    decision = None if draw.constraint is None else draw.constraint.forced(canvas)
    if decision is not None and len(decision):
        decision = complete(rules, canvas, decision)
        canvas = canvas.apply(decision)
        yield Event(session.counts.forwards, decision, canvas)
    return canvas


def read_draft(
    session: Session, canvas: Canvas, draft: np.ndarray, draw: Draw, rules: Sequence[Rule], threshold: float
) -> Steps:
    """Commit what the model, reading all of `draft` (k,), the first tokens of the active span, believes in: in one
    forward, each token that it gives a probability of `threshold` or more, and that a constraint allows beside the
    others. What a model that was never trained to correct says of a token that it sees is worth little.
    """
    assert canvas.span is not None
    positions, step = canvas.span[0] + np.arange(len(draft)), session.counts.forwards
    still = canvas.open[positions]
    positions, draft = positions[still], draft[still]
    shown = canvas.apply(Decision(positions, draft, np.ones(len(draft)), np.ones(len(draft))))
    logits = biased(session.logits(shown, positions), draw.law)
    ban(rules, canvas, positions, logits)
    probs = softmax(logits)[np.arange(len(draft)), draft]
    kept = (probs >= threshold) & (probs > 0)
    decision = Decision(positions[kept], draft[kept], probs[kept], probs[kept])
    if draw.constraint is not None:
        decision = draw.constraint.allowed(canvas, decision)
    if len(decision):
        canvas = canvas.apply(decision)
        yield Event(step, decision, canvas)
    return canvas


def speculate(
    session: Session,
    canvas: Canvas,
    draw: Draw,
    rules: Sequence[Rule],
    size: int,
    over: Over = never,
    given: Alignment | None = None,
) -> Steps:
    """Fill the active span with the tokens that one span of one position after the other would get, in fewer forwards.

    A forward verifies a draft of fewer than `size` tokens against the autoregressive law: what that draws stands, up to
    the first token that the draft has otherwise. The same forward drafts what comes behind each place where this may
    be. It commits one token or more, and none that mode "ar" would not draw. Where a draft is `given` that is put to
    the test as long as the text follows it; `size` 1 drafts nothing else.
    """
    assert canvas.span is not None
    (start, end), draft = canvas.span, np.zeros(0, dtype=np.int64)
    likely = replace(draw, law=replace(draw.law, temperature=0.0))
    while start < end and not over(canvas):
        step = session.counts.forwards
        if given is not None and given.ahead(end - start - 1).size:
            draft = given.ahead(end - start - 1)
        verified = session.verify(canvas.at((start, end)), draft, size - 1)
        canvas, decision = _agreed(canvas, start, draft, verified.logits, draw, rules, over)
        num = len(decision)
        session.counts.drafted += len(draft)
        session.counts.accepted += int((decision.tokens[: len(draft)] == draft[:num]).sum())
        yield Event(step, decision, canvas)
        start += num
        if given is not None:
            before, given = given, given.after(canvas.tokens[canvas.gaps[0][0] : start], num)
            session.counts.accept(given.accepted - before.accepted)
        if start < end and not over(canvas):
            draft = _draft(canvas, start, verified.behind(num - 1), likely, rules)
    return canvas


def _agreed(
    canvas: Canvas,
    start: int,
    draft: np.ndarray,
    logits: np.ndarray,
    draw: Draw,
    rules: Sequence[Rule],
    over: Over,
) -> tuple[Canvas, Decision]:
    """What the autoregressive law, logits (D + 1, V), draws from `start` on: as far as it draws the draft (D,), and one
    token more, but none behind the one at which the canvas is `over`.

    All D + 1 are drawn at once: without a constraint a draw depends on its position and law alone.
    """
    if draw.constraint is not None:
        return _agreed_in_turn(canvas, start, draft, logits, draw, rules, over)
    proposals = draw(canvas, start + np.arange(len(logits)), logits, rules, 0)
    differs = np.flatnonzero(proposals.tokens[: len(draft)] != draft)
    num = 1 + (int(differs[0]) if differs.size else len(draft))
    filled, decision = _commit_first(canvas, start, proposals, num, rules)
    if num > 1 and over(filled):
        firsts = (_commit_first(canvas, start, proposals, count, rules) for count in range(1, num))
        return next((first for first in firsts if over(first[0])), (filled, decision))
    return filled, decision


def _agreed_in_turn(
    canvas: Canvas,
    start: int,
    draft: np.ndarray,
    logits: np.ndarray,
    draw: Draw,
    rules: Sequence[Rule],
    over: Over,
) -> tuple[Canvas, Decision]:
    """`_agreed`, each position drawn once those before it are committed, as a constraint wants it."""
    assert draw.constraint is not None
    decisions: list[Decision] = []
    for position, row in enumerate(logits, start):
        canvas = canvas.at((position, position + 1))
        decision = draw.constraint.forced(canvas)  # as sure of it as "ar" is, which asks nothing then
        if not len(decision):
            decision = commit(draw(canvas, canvas.asked(), row[None], rules, 0), np.ones(1, dtype=bool))
        decisions.append(complete(rules, canvas, decision))
        canvas = canvas.apply(decisions[-1])
        if not np.array_equal(decisions[-1].tokens, draft[position - start :][:1]) or over(canvas):
            break
    return canvas.at((start, start + len(decisions))), Decision.join(decisions)


def _commit_first(
    canvas: Canvas, start: int, proposals: Proposals, num: int, rules: Sequence[Rule]
) -> tuple[Canvas, Decision]:
    """The canvas with the first `num` proposals, which begin at `start`, and their decision."""
    canvas = canvas.at((start, start + num))
    decision = complete(rules, canvas, commit(proposals, np.arange(len(proposals)) < num))
    return canvas.apply(decision), decision


def _draft(canvas: Canvas, start: int, behind: Behind, likely: Draw, rules: Sequence[Rule]) -> np.ndarray:
    """Tokens (D,) for the positions from `start` on, by what is said `behind` the token before, as far as they are
    worth a test.

    The most likely ones at every temperature: at 1 more of them stand than of tokens drawn by the same random numbers
    from a law that knows less (docs/log.md).
    """
    proposals = _all_greedy(canvas, start, behind, likely, rules, worth=WORTH)
    if proposals is not None:
        return proposals.tokens[np.cumprod(proposals.probabilities) >= WORTH]
    out: list[int] = []
    token, worth = int(canvas.tokens[start - 1]), 1.0
    while (logits := behind(token)) is not None:
        proposal = likely(canvas, np.array([start + len(out)]), logits[None], rules, 0)
        token, worth = int(proposal.tokens[0]), worth * float(proposal.probabilities[0])
        if worth < WORTH:
            break
        out.append(token)
    return np.array(out, dtype=np.int64)
