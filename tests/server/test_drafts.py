"""Drafts and texts that are followed event by event equal those that are read anew at each event."""

from __future__ import annotations

import codecs
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from daguerre.canvas import Canvas
from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import committed_text, draft_text
from daguerre.decoding.running import pinned, reopened, unpinned
from daguerre.decoding.sample import Sample, Texts, drive
from daguerre.model import Model
from daguerre.server.drafts import Board, Drafts, Token
from daguerre.server.watching import _Edit
from daguerre.trace import Event

RUNS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("generate", ("import os\n", 60), {"mode": "ar", "min_tokens": 60}),
    ("generate", ("import os\nprin", 40), {"mode": "ar", "stop": ["\n\n", "os.p"], "stop_loops": True}),
    ("generate", ("naïve = 'é", 40), {"mode": "ar", "temperature": 3.0, "min_tokens": 40}),
    ("generate", ("x = ", 40), {"mode": "block", "revise": 1, "temperature": 1.0}),
    ("infill", ("def f(", "):\n    pass\n", 20), {"mode": "block"}),
    ("fill", ("a = <gap>\nb = <gap>\nc", [8, 8]), {}),
    ("generate", ("x = [", 30), {"mode": "ar", "regex": "[0-9, ]{4,20}\\]"}),
]


def planned(model: Model, operation: str, texts: tuple[Any, ...], options: dict[str, Any]) -> Plan:
    return plan_of(model.denoiser, model.tokenizer, Request.of(operation, *texts, **options))


def board_of(plan: Plan, canvas: Canvas, facts: dict[int, Any], committed: str) -> Board:
    """The tokens of a canvas, all read anew: the slow reference."""
    out = [_gap(plan, canvas, index, facts) for index in range(len(plan.gaps))]
    left = len(committed)
    for index, tokens in enumerate(out):
        left -= len(plan.around[index]) if plan.around is not None else 0
        for place, token in enumerate(tokens):
            if token.state == "end":
                break
            if token.state == "open" or left < max(1, len(token.text)):
                return out
            left -= len(token.text)
            tokens[place] = replace(token, final=True)
    return out


def _gap(plan: Plan, canvas: Canvas, index: int, facts: dict[int, Any]) -> list[Token]:
    gap, run, pins = plan.gaps[index], canvas.gaps[index], set(canvas.pins.tolist())
    decoder, skip, out = codecs.getincrementaldecoder("utf-8")("replace"), len(gap.healing.text), list[Token]()
    for position in range(run[0], min(run[1], gap.healing.end(canvas))):
        place, token = position - run[0], int(canvas.tokens[position])
        if canvas.open[position] or token in plan.ending:
            decoder.reset()
            out.append(Token(place, "", "open" if canvas.open[position] else "end"))
            continue
        piece = plan.vocabulary.of[token]
        text, skip = decoder.decode(piece[skip:]), max(0, skip - len(piece))
        state: Any = "pinned" if position in pins else "drawn" if position in facts else "kept"
        out.append(Token(place, text, state, *(facts[position] if state == "drawn" else ())))
    return out


class Followed:
    """Follows events both ways."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.drafts, self.following = plan, Drafts(plan), Texts(plan)
        self.facts: dict[int, Any] = {}
        self.before = board_of(plan, plan.canvas, {}, "")

    def check(self, event: Event) -> None:
        one, decision = self.following.event(event), event.decision
        assert one.text == draft_text(self.plan, event.canvas)
        assert one.committed == committed_text(self.plan, event.canvas)
        for number, position in enumerate(decision.positions.tolist()):
            self.facts[position] = event.step, float(decision.probabilities[number]), float(decision.confidence[number])
        changes, after = (
            self.drafts.after(event, one.committed),
            board_of(self.plan, event.canvas, self.facts, one.committed),
        )
        assert self.drafts.board == after
        for old, new, changed in zip(self.before, after, changes, strict=True):
            gone = [Token(token.position, "", "end") for token in old[len(new) :]]
            same = [b for a, b in zip(old, new, strict=False) if a != b]
            assert changed == [*same, *new[len(old) :], *gone]
        self.before = after


def test_what_is_followed_equals_what_is_read_anew(trained: Model, tiny: Model, subtests: pytest.Subtests) -> None:
    for number, (make, texts, options) in enumerate(RUNS):
        for model in (trained, tiny):
            with subtests.test(number=number, model=model is tiny):
                plan = planned(model, make, texts, options)
                sample, followed = Sample(model.denoiser, plan, 0, None), Followed(plan)
                events = list(drive(sample))
                for event in events:
                    followed.check(event)
                again = list(sample.events)
                for one, other in zip(again, events, strict=True):
                    for name in ("tokens", "open", "pins"):
                        assert np.array_equal(getattr(one.canvas, name), getattr(other.canvas, name))
                    assert (one.canvas.span, one.canvas.gaps) == (other.canvas.span, other.canvas.gaps)


def test_changes_of_the_caller_are_followed(trained: Model) -> None:
    how = {"changeable": True, "heal": False, "mode": "block", "block_size": 4, "context": "whole"}
    plan = planned(trained, "stream", ("import os\n", 24), how)
    sample, followed = Sample(trained.denoiser, plan, 0, None), Followed(plan)
    changes = iter(
        (
            lambda: pinned(sample, trained.tokenizer, 9, "path"),
            lambda: reopened(sample, 0, 2),
            lambda: unpinned(sample, 9, 10),
        )
    )
    for number, event in enumerate(drive(sample)):
        followed.check(event)
        if number % 3 == 2 and (change := next(changes, None)) is not None:
            followed.check(sample.change(change()))
    assert next(changes, None) is None


def test_a_text_is_kept_as_what_changed() -> None:
    texts = ["", "ab", "abc", "a░c", "░░", "xaby", "xby", "", "é"]
    for old in texts:
        for new in texts:
            edit = _Edit.between(old, new)
            assert edit.apply(old) == new and len(edit.new) <= len(new)
    assert _Edit.between("import os\n", "import os\nx").new == "x"
