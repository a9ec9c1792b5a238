"""What the tokens that end a completion do: filled, plain, last or never; one of them or several."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.result import Result
from daguerre.model import Model
from daguerre.sampling.logits import Proposals
from daguerre.sampling.rules import EVERYWHERE, EndOfText, EndRule, complete, eligible
from main_path import generate
from scripted import Scripted

EOS, END = 301, 300
RULES: tuple[EndRule, ...] = get_args(EndRule)
LATE: tuple[EndRule, ...] = ("plain", "last")
POLICIES = ("threshold", "factor", "entropy_bounded", "first_hitting")


def canvas() -> Canvas:
    """Three tokens, and six open positions, of which the first four are active; position 4 is committed."""
    laid = Canvas.lay_out([[20, 21, 22]], [6], 1).at((3, 7))
    return laid.apply(Decision(np.array([4]), np.array([30]), np.ones(1), np.ones(1)))


def proposed(*tokens: int) -> Proposals:
    """Tokens for positions 3, 5 and 6."""
    return Proposals(np.array([3, 5, 6]), np.array(tokens), np.array([0.9, 0.5, 0.7]))


def test_ends_are_banned_below_the_floor_or_everywhere() -> None:
    for rule in RULES:
        until = EVERYWHERE if rule == "never" else 5
        assert EndOfText((EOS, END), 5, rule).forbids(canvas()).bans == ((EOS, 0, until), (END, 0, until))


def test_only_ends_that_come_last_wait() -> None:
    for rule in RULES:
        ready = eligible([EndOfText((EOS, END), 0, rule)], canvas(), proposed(EOS, 40, END))
        assert len(ready) == 3
        if rule == "last":
            assert ready.waits is not None
            assert ready.waits.tolist() == [True, False, True]
        else:
            assert ready.waits is None


def test_an_end_fills_the_rest_of_its_span_only_by_the_rule_that_says_so(subtests: pytest.Subtests) -> None:
    """With its own token, and no position beyond the span; the first of several decides."""
    for rule in RULES:
        with subtests.test(rule):
            for token in (EOS, END):
                decision = Decision(np.array([3]), np.array([token]), np.array([0.8]), np.array([0.7]))
                made = complete([EndOfText((EOS, END), 0, rule)], canvas(), decision)
                if rule == "fill":
                    assert made.positions.tolist() == [3, 5, 6]
                    assert made.tokens.tolist() == [token] * 3
                    assert made.probabilities.tolist() == [0.8] * 3
                else:
                    assert made is decision
            two = Decision(np.array([5, 6]), np.array([END, EOS]), np.array([0.8, 0.6]), np.array([0.7, 0.5]))
            assert complete([EndOfText((EOS, END), 0, "fill")], canvas(), two).tokens.tolist() == [END, EOS]


# ---- whole decodes --------------------------------------------------------------------------------------------------


def denoiser(scripted: Any, surest: dict[int, dict[int, float]], **facts: Any) -> Scripted:
    """A denoiser without context that says the same at a position in every step."""
    made: Scripted = scripted(
        lambda canvas, position: surest[position], context="full", shift=False, bos_id=None, null_id=None, **facts
    )
    return made


def order(result: Result) -> list[list[tuple[int, int]]]:
    """The positions and tokens of each step, from the left."""
    return [
        list(zip(step.decision.positions.tolist(), step.decision.tokens.tolist(), strict=True))
        for step in result.trace.steps
    ]


SAID = {
    1: {40: 4.0, 50: 0.0},
    2: {END: 9.0, 41: 1.0, 50: 0.0},
    3: {42: 5.0, 50: 0.0},
    4: {EOS: 8.0, 43: 1.0, 50: 0.5},
    5: {44: 3.0, 50: 0.0},
    6: {END: 7.0, 45: 1.0, 50: 0.8},
}
"""The likeliest tokens are, in this order, those at 2, 4, 6, 3, 1 and 5; without the ends those at 3, 1, 5, 2, 4, 6."""
ORDERS: dict[EndRule, list[list[tuple[int, int]]]] = {
    "fill": [[(2, END), (3, END), (4, EOS), (5, END), (6, END)], [(1, 40)]],
    "plain": [[(2, END), (4, EOS)], [(3, 42), (6, END)], [(1, 40), (5, 44)]],
    "last": [[(1, 40), (3, 42)], [(2, END), (5, 44)]],
    "never": [[(1, 40), (3, 42)], [(2, 41), (5, 44)], [(4, 43), (6, 45)]],
}


def test_a_decode_commits_ends_in_the_order_of_their_rule(
    scripted: Any, tokenizer: Any, subtests: pytest.Subtests
) -> None:
    """Two positions a step. Where no more of other tokens are left, ends fill the step up, from the left; then the text
    has ended, and the run ends too.
    """
    for rule in RULES:
        with subtests.test(rule):
            made = denoiser(scripted, SAID, eos_id=EOS, end_ids=(END,))
            result = generate(
                made, tokenizer, [20], 6, mode="full", policy="confidence", steps=3, end_of_text=rule, heal=False
            )
            assert order(result) == ORDERS[rule]
            assert [token.id for token in result.tokens] == ([40, 41, 42, 43, 44, 45] if rule == "never" else [40])
            assert result.finish_reason == ("length" if rule == "never" else "stop")


def test_other_policies_leave_ends_that_come_last_to_the_end(
    scripted: Any, tokenizer: Any, subtests: pytest.Subtests
) -> None:
    for policy, rule in product(POLICIES, LATE):
        with subtests.test(policy, rule=rule):
            made = denoiser(scripted, SAID, eos_id=EOS, end_ids=(END,))
            result = generate(made, tokenizer, [20], 6, mode="full", policy=policy, end_of_text=rule, heal=False)
            positions = [position for step in order(result) for position, _ in step]
            if rule == "last":
                assert sorted(positions[:3]) == [1, 3, 5]
            else:
                assert set(positions[:3]) != {1, 3, 5}


def test_each_of_several_ends_stops_a_text_and_is_not_in_it(scripted: Any, tokenizer: Any) -> None:
    for end in (EOS, END):
        said = {1: {40: 4.0}, 2: {41: 4.0}, 3: {end: 4.0}, 4: {42: 4.0}}
        for mode in ("block", "full"):
            made = denoiser(scripted, said, eos_id=EOS, end_ids=(END,))
            result = generate(made, tokenizer, [20], 4, mode=mode, threshold=0.0, heal=False, end_of_text="plain")
            assert [token.id for token in result.tokens] == [40, 41]
            assert result.finish_reason == "stop"
        alone = denoiser(scripted, said, eos_id=EOS)
        tokens = generate(alone, tokenizer, [20], 4, mode="full", threshold=0.0, heal=False, end_of_text="plain").tokens
        assert [token.id for token in tokens] == ([40, 41] if end == EOS else [40, 41, END, 42])


def test_no_end_is_drawn_before_as_many_tokens_as_are_asked_for(make_model: Any) -> None:
    model: Model = make_model(context="full", shift=False, null_id=None, eos_id=EOS, end_ids=(END,))
    for rule in RULES:
        for seed in range(3):
            result = model.generate(
                "x = ",
                12,
                min_tokens=7,
                end_of_text=rule,
                logit_bias={EOS: 90.0, END: 90.0},
                temperature=1.0,
                seed=seed,
                heal=False,
            )
            assert len(result.tokens) == (12 if rule == "never" else 7), rule
