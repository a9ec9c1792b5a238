"""Rules of a request: tokens that are never drawn, and how a gap ends.

A rule sees the canvas and may do three things: forbid tokens before the draw, hold a proposal back from the policy, and
complete a decision with commits that follow from it. Rules are pure, and read their state from the canvas alone. What
they forbid is data, so that a backend can apply it (`models.forward.Rules`).

Letters: A wanted positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from daguerre.canvas import Canvas, Decision, Span
from daguerre.sampling.logits import Proposals

SURE = 0.99
"""A gap filler may be committed before the positions to its left once its probability passes this."""
EVERYWHERE = 1 << 60
Ban = tuple[int, int, int]
"""A token, and the positions [start, end) at which it is not drawn."""


@dataclass(frozen=True, slots=True)
class Forbidden:
    """Tokens that may not be drawn: `bans`, and at the position `only_at` all but the tokens `only`."""

    bans: tuple[Ban, ...] = ()
    only_at: int | None = None
    only: tuple[int, ...] = ()

    def apply(self, positions: np.ndarray, logits: np.ndarray) -> None:
        """Write minus infinity into logits (A, V) of positions (A,)."""
        for token, start, end in self.bans:
            logits[(positions >= start) & (positions < end), token] = -np.inf
        if self.only_at is not None:
            banned = np.ones(logits.shape[1], dtype=bool)
            banned[list(self.only)] = False
            logits[np.ix_(positions == self.only_at, banned)] = -np.inf


class Rule:
    """One rule; this one does nothing."""

    holds_back: ClassVar[bool] = False
    """Whether `eligible` may hold a proposal back."""
    waits: ClassVar[bool] = False
    """Whether what it holds back is committed as soon as a step commits more than all others (`Proposals.waits`)."""
    constant: ClassVar[bool] = False
    """Whether `forbids` is the same for every canvas."""

    def forbids(self, canvas: Canvas) -> Forbidden:
        """The tokens that may not be drawn."""
        return Forbidden()

    def eligible(self, canvas: Canvas, proposals: Proposals) -> np.ndarray:
        """Boolean (A,): the proposals that a policy may commit now, at least one."""
        return np.ones(len(proposals), dtype=bool)

    def complete(self, canvas: Canvas, decision: Decision) -> Decision:
        """The decision with the commits that follow from it, and without those that contradict it; never emptied."""
        return decision


@dataclass(frozen=True)
class Never(Rule):
    """Tokens that are not drawn."""

    tokens: tuple[int, ...]
    constant: ClassVar[bool] = True

    def forbids(self, canvas: Canvas) -> Forbidden:
        """Everywhere."""
        return Forbidden(tuple((token, 0, EVERYWHERE) for token in self.tokens))


EndRule = Literal["fill", "plain", "last", "never"]


@dataclass(frozen=True)
class EndOfText(Rule):
    """<eos> and the other `tokens` that end a completion are not drawn at positions below `floor`.

    rule   fill: once one is committed, all open positions of the active span after it become the same token; plain: it
           is a token like any other, and text ends before the first; last: likewise, but it is held back while any
           other token is proposed (LLaDA's confidence_eos_eot_inf); never: none is drawn (LLaDA's logits_eos_inf)
    """

    tokens: tuple[int, ...]
    floor: int
    rule: EndRule = "fill"
    waits: ClassVar[bool] = True
    constant: ClassVar[bool] = True

    @property
    def holds_back(self) -> bool:  # type: ignore[override]
        """Whether ends of text wait for all other tokens."""
        return self.rule == "last"

    def forbids(self, canvas: Canvas) -> Forbidden:
        """Below the floor, or everywhere."""
        until = EVERYWHERE if self.rule == "never" else self.floor
        return Forbidden(tuple((token, 0, until) for token in self.tokens))

    def eligible(self, canvas: Canvas, proposals: Proposals) -> np.ndarray:
        """All that end no text."""
        return ~np.isin(proposals.tokens, self.tokens)

    def complete(self, canvas: Canvas, decision: Decision) -> Decision:
        """Fill the span after the first end of text of the decision: nothing after it is text."""
        if self.rule != "fill" or not set(self.tokens).intersection(decision.tokens.tolist()):
            return decision
        ends = np.flatnonzero(np.isin(decision.tokens, self.tokens))
        assert canvas.span is not None
        first, end, token = int(decision.positions[ends[0]]), canvas.span[1], int(decision.tokens[ends[0]])
        rest = first + np.flatnonzero(canvas.open[first:end])
        return decision.extended(np.setdiff1d(rest, decision.positions), token, int(ends[0]))


@dataclass(frozen=True)
class GapFillers(Rule):
    """Gap fillers are one run at the right end of each gap, and never below its floor.

    A filler is banned to the left of a committed token that is not one, and held back until everything to its left in
    the gap is committed or its probability passes SURE. Once one is committed, everything right of it in the gap
    becomes filler.
    """

    token: int
    floors: tuple[tuple[Span, int], ...]
    holds_back: ClassVar[bool] = True

    def forbids(self, canvas: Canvas) -> Forbidden:
        """Below the floor of the gap, and left of the last committed token of the gap that is not a filler."""
        bans = []
        for (start, end), floor in self.floors:
            solid = np.flatnonzero(~canvas.open[start:end] & (canvas.tokens[start:end] != self.token))
            last = start + int(solid[-1]) if solid.size else start - 1
            bans.append((self.token, start, max(last + 1, floor)))
        return Forbidden(tuple(bans))

    def eligible(self, canvas: Canvas, proposals: Proposals) -> np.ndarray:
        """Other tokens, fillers at the first open position of a gap, and fillers of high probability."""
        kept = (proposals.tokens != self.token) | (proposals.confidence > SURE)
        for (start, end), held in canvas.gap_of(proposals.positions):
            first = start + int(np.flatnonzero(canvas.open[start:end])[0])
            kept[held[proposals.positions[held] == first]] = True
        return kept

    def complete(self, canvas: Canvas, decision: Decision) -> Decision:
        """Where a gap gets a filler, every open position right of it becomes filler; the leftmost decides."""
        for (_, end), held in canvas.gap_of(decision.positions):
            fillers = decision.positions[held][decision.tokens[held] == self.token]
            if not fillers.size:
                continue
            first = int(fillers[0])
            beyond = (decision.positions > first) & (decision.positions < end)
            decision = decision.keep(~beyond)
            rest = first + 1 + np.flatnonzero(canvas.open[first + 1 : end])
            decision = decision.extended(rest, self.token, int(np.searchsorted(decision.positions, first)))
        return decision


def forbidden(rules: Sequence[Rule], canvas: Canvas) -> Forbidden:
    """Everything that the rules forbid together; at most one of them has an `only_at`."""
    found = [rule.forbids(canvas) for rule in rules]
    only = next((one for one in found if one.only_at is not None), Forbidden())
    return replace(only, bans=tuple(ban for one in found for ban in one.bans))


def eligible(rules: Sequence[Rule], canvas: Canvas, proposals: Proposals) -> Proposals:
    """The proposals that every rule lets a policy commit, those marked that wait for all others; all proposals where
    that would leave none.
    """
    kept = None
    for rule in rules:
        if rule.holds_back and rule.waits:
            proposals = replace(proposals, waits=~rule.eligible(canvas, proposals))
        elif rule.holds_back:
            by_rule = rule.eligible(canvas, proposals)
            kept = by_rule if kept is None else kept & by_rule
    return proposals if kept is None or kept.all() or not kept.any() else proposals.keep(kept)


def complete(rules: Sequence[Rule], canvas: Canvas, decision: Decision) -> Decision:
    """The decision after every rule in turn."""
    for rule in rules:
        decision = rule.complete(canvas, decision)
    return decision
