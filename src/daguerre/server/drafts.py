"""Drafts as data: the tokens of a canvas, each with its text, its state and how sure the model was."""

from __future__ import annotations

import codecs
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.context import Context
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import Result
from daguerre.server.answers import concepts_of
from daguerre.trace import Event

State = Literal["open", "drawn", "pinned", "kept", "end"]


@dataclass(frozen=True, slots=True)
class Token:
    """A position of a gap, counted from 0, where the text that healing takes back comes first.

    state        open; drawn by the model; pinned by the caller; kept from a draft; end: the text ends before it
    step         the forward that committed it, from 0
    probability  of the token under the model at temperature 1
    confidence   what the policy ranked it by
    final        no later step can change it
    """

    position: int
    text: str
    state: State
    step: int | None = None
    probability: float | None = None
    confidence: float | None = None
    final: bool = False


Board = list[list[Token]]
"""The tokens of each gap."""


class Drafts:
    """Follows the events of one sample. An event costs as much as it changes, not as much as the draft is long."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self._canvas = plan, plan.canvas
        self._gaps = [_GapDraft(plan, index) for index in range(len(plan.gaps))]
        self._finals = _Finals(plan, self.board)

    @property
    def board(self) -> Board:
        """All tokens as they are now."""
        return [gap.tokens for gap in self._gaps]

    def after(self, event: Event, committed: str) -> Board:
        """All tokens that are new or other than before; `board` has all. committed: the text that is final."""
        before, canvas, decision = self._canvas, event.canvas, event.decision
        differs = np.flatnonzero((before.tokens != canvas.tokens) | (before.open != canvas.open))
        touched = set(np.concatenate([differs, decision.positions, decision.pin, decision.unpin]).tolist())
        numbers = decision.probabilities.tolist(), decision.confidence.tolist()
        facts = {
            position: (event.step, probability, confidence)
            for position, probability, confidence in zip(decision.positions.tolist(), *numbers, strict=True)
        }
        sizes = list(map(len, self.board))
        changed = [gap.update(canvas, touched, facts) for gap in self._gaps]
        anew = change_of(event) is not None or sizes != list(map(len, self.board))
        for index, place in self._finals.update(self.plan.plain(committed), anew):
            changed[index].add(place)
        self._canvas = canvas
        return [
            [*(tokens[place] for place in sorted(places) if place < len(tokens)), *_gone(len(tokens), size)]
            for tokens, places, size in zip(self.board, changed, sizes, strict=True)
        ]


def _gone(first: int, end: int) -> list[Token]:
    """What stands for positions that are not there any more."""
    return [Token(place, "", "end") for place in range(first, end)]


class _GapDraft:
    """The tokens of a gap. Half a character's text comes with its last token.

    Beside each token are the bytes of a character that it leaves unfinished, and how many bytes of the healed text are
    still to come: what the text of the next one depends on.
    """

    def __init__(self, plan: Plan, index: int) -> None:
        self._plan, self._index = plan, index
        self.tokens, self._behind = list[Token](), list[tuple[bytes, int]]()
        self._facts: dict[int, tuple[int, float, float]] = {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.update(plan.canvas, set(), {})

    def update(self, canvas: Canvas, touched: set[int], facts: dict[int, tuple[int, float, float]]) -> set[int]:
        """Read the touched positions, and those behind them whose text depends on them. Returns the places of tokens
        that have changed.
        """
        gap, run = self._plan.gaps[self._index], canvas.gaps[self._index]
        start, size = run[0], min(run[1], gap.healing.end(canvas)) - run[0]
        self._facts |= {position: fact for position, fact in facts.items() if run[0] <= position < run[1]}
        del self.tokens[size:], self._behind[size:]
        places = {position - start for position in touched if start <= position < start + size}
        places |= set(range(len(self.tokens), size))
        changed, pins, at, settled = set[int](), set(canvas.pins.tolist()), 0, True
        for place in sorted(places):
            at = max(at, place)
            while at < size and (at in places or not settled):
                before = self._behind[at - 1] if at else (b"", len(gap.healing.text))
                token, behind = self._read(canvas, start + at, before, pins)
                settled = at < len(self._behind) and self._behind[at] == behind
                if self._put(at, token, behind):
                    changed.add(at)
                at += 1
        return changed

    def _put(self, place: int, token: Token, behind: tuple[bytes, int]) -> bool:
        """Keep a token; whether it is another one than before."""
        if place == len(self.tokens):
            self.tokens.append(token)
            self._behind.append(behind)
            return True
        old, self._behind[place] = self.tokens[place], behind
        self.tokens[place] = replace(token, final=True) if old.final else token
        return old != self.tokens[place]

    def _read(
        self, canvas: Canvas, position: int, before: tuple[bytes, int], pins: set[int]
    ) -> tuple[Token, tuple[bytes, int]]:
        plan, place, (pending, skip) = self._plan, position - canvas.gaps[self._index][0], before
        token = int(canvas.tokens[position])
        if canvas.open[position] or token in plan.ending:
            return Token(place, "", "open" if canvas.open[position] else "end"), (b"", skip)
        piece = plan.piece(token)
        self._decoder.setstate((pending, 0))
        text = self._decoder.decode(piece[skip:])
        text = plan.plain(text) if plan.is_special(token) else text
        behind = self._decoder.getstate()[0], max(0, skip - len(piece))
        if position in pins:
            return Token(place, text, "pinned"), behind
        if position in self._facts:
            return Token(place, text, "drawn", *self._facts[position]), behind
        return Token(place, text, "kept"), behind


class _Finals:
    """Marks the tokens that lie in the text which is final."""

    def __init__(self, plan: Plan, board: Board) -> None:
        self._around, self._board = plan.around or [""] * (len(board) + 1), board
        self._begin()

    def _begin(self) -> None:
        """Before the first token."""
        self._index = self._place = 0
        self._used = len(self._around[0])

    def update(self, committed: str, anew: bool) -> list[tuple[int, int]]:
        """Mark what is final now; `anew`: what was final may not be so any more. Returns the gaps and places of the
        tokens that changed.
        """
        if not anew:
            return self._mark(len(committed))
        before = {(i, k) for i, tokens in enumerate(self._board) for k, token in enumerate(tokens) if token.final}
        for i, k in before:
            self._board[i][k] = replace(self._board[i][k], final=False)
        self._begin()
        return list(before ^ set(self._mark(len(committed))))

    def _mark(self, size: int) -> list[tuple[int, int]]:
        out = list[tuple[int, int]]()
        while self._index < len(self._board):
            tokens = self._board[self._index]
            while self._place < len(tokens) and tokens[self._place].state != "end":
                token = tokens[self._place]
                if token.state == "open" or size - self._used < max(1, len(token.text)):
                    return out
                tokens[self._place] = replace(token, final=True)
                out.append((self._index, self._place))
                self._used, self._place = self._used + len(token.text), self._place + 1
            self._index, self._place = self._index + 1, 0
            self._used += len(self._around[self._index])  # there is a text behind the last gap
        return out


def tokens_json(board: Board) -> list[list[dict[str, Any]]]:
    """The tokens of each gap as JSON."""
    return [[asdict(token) for token in tokens] for tokens in board]


def change_of(event: Event) -> str | None:
    """The caller's change that an event is; None for a step of decoding."""
    decision = event.decision
    if decision.pin.size:
        return "pin"
    if decision.unpin.size:
        return "unpin"
    return "remask" if decision.reopen.size and not decision.positions.size else None


def spans_in_gaps(canvas: Canvas) -> list[tuple[int, int] | None]:
    """The part of each gap that is decoded now, in the gap's positions; None where it is not there."""
    first, last = canvas.span or (0, 0)
    inside = [(max(first, start), min(last, end), start) for start, end in canvas.gaps]
    return [(a - start, b - start) if a < b else None for a, b, start in inside]


def _shown(context: Context | None) -> dict[str, Any] | None:
    """What the model was shown of the request's text; None: it was given as token ids."""
    if context is None:
        return None
    return {"complete": context.complete, "lines": context.lines, "num_lines": context.num_lines}


def result_json(plan: Plan, result: Result) -> dict[str, Any]:
    """A result of a plan as JSON, but for its trace."""
    return {
        "text": plan.plain(result.text),
        "texts": [plan.plain(text) for text in result.texts],
        "spans": result.spans,
        "tokens": [asdict(token) | {"text": plan.plain(token.text)} for token in result.tokens],
        "finish_reason": result.finish_reason,
        "looped": result.looped,
        "usage": asdict(result.usage),
        "diff": None if result.original is None else result.diff,
        "ignored": result.ignored,
        "context": _shown(result.context),
        "concepts": None if result.concepts is None else concepts_of(result.concepts),
    }
