"""Drafts as data: the tokens of a canvas, each with its text, its state and how sure the model was."""

from __future__ import annotations

import codecs
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

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
    """Follows the events of one sample."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._facts: dict[int, tuple[int, float, float]] = {}
        self.board = self._read(plan.canvas, "")

    def after(self, event: Event, committed: str) -> Board:
        """All tokens that are new or other than before; `board` has all. committed: the text that is final."""
        decision = event.decision
        numbers = decision.probabilities.tolist(), decision.confidence.tolist()
        for position, probability, confidence in zip(decision.positions.tolist(), *numbers, strict=True):
            self._facts[position] = event.step, probability, confidence
        before, self.board = self.board, self._read(event.canvas, committed)
        return [_changed(old, new) for old, new in zip(before, self.board, strict=True)]

    def _read(self, canvas: Canvas, committed: str) -> Board:
        return _finals(self.plan, [self._gap(canvas, index) for index in range(len(self.plan.gaps))], committed)

    def _gap(self, canvas: Canvas, index: int) -> list[Token]:
        """The tokens of a gap. Half a character's text comes with its last token."""
        plan, gap, run = self.plan, self.plan.gaps[index], canvas.gaps[index]
        pieces, pins = plan.vocabulary.of, set(canvas.pins.tolist())
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        skip, out = len(gap.healing.text), list[Token]()
        for position in range(run[0], min(run[1], gap.healing.end(canvas))):
            place, token = position - run[0], int(canvas.tokens[position])
            if canvas.open[position] or token in plan.ending:
                decoder.reset()
                out.append(Token(place, "", "open" if canvas.open[position] else "end"))
                continue
            text = decoder.decode(pieces[token][skip:])
            skip = max(0, skip - len(pieces[token]))
            if position in pins:
                out.append(Token(place, text, "pinned"))
            elif position in self._facts:
                out.append(Token(place, text, "drawn", *self._facts[position]))
            else:
                out.append(Token(place, text, "kept"))
        return out


def _finals(plan: Plan, board: Board, committed: str) -> Board:
    """The board with the tokens marked that lie in the text which is final."""
    left = len(committed)
    for index, tokens in enumerate(board):
        left -= len(plan.around[index]) if plan.around is not None else 0
        for place, token in enumerate(tokens):
            if token.state == "end":
                break
            if token.state == "open" or left < max(1, len(token.text)):
                return board
            left -= len(token.text)
            tokens[place] = replace(token, final=True)
    return board


def _changed(old: list[Token], new: list[Token]) -> list[Token]:
    """The tokens of `new` that `old` does not have; positions that are gone are open."""
    same = min(len(old), len(new))
    gone = [Token(token.position, "", "end") for token in old[len(new) :]]
    return [b for a, b in zip(old, new, strict=False) if a != b] + new[same:] + gone


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
    return (
        None
        if context is None
        else {"complete": context.complete, "lines": context.lines, "num_lines": context.num_lines}
    )


def result_json(result: Result) -> dict[str, Any]:
    """A result as JSON, but for its trace."""
    return {
        "text": result.text,
        "texts": result.texts,
        "spans": result.spans,
        "tokens": [asdict(token) for token in result.tokens],
        "finish_reason": result.finish_reason,
        "looped": result.looped,
        "usage": asdict(result.usage),
        "diff": None if result.original is None else result.diff,
        "ignored": result.ignored,
        "context": _shown(result.context),
        "concepts": None if result.concepts is None else concepts_of(result.concepts),
    }
