"""A canvas is replaced, never edited; a decision can touch only what is open."""

from __future__ import annotations

import numpy as np
import pytest

from daguerre.canvas import Canvas, Decision
from daguerre.errors import InputError


def decide(positions: list[int], tokens: list[int], **others: list[int]) -> Decision:
    ones = np.ones(len(positions))
    return Decision(np.array(positions), np.array(tokens), ones, ones, **others)


def test_laying_out_segments_and_gaps() -> None:
    canvas = Canvas.lay_out([[1, 20, 21], [22], [23, 24]], [2, 3], 3)
    assert canvas.tokens.tolist() == [1, 20, 21, 3, 3, 22, 3, 3, 3, 23, 24]
    assert np.flatnonzero(canvas.open).tolist() == [3, 4, 6, 7, 8]
    assert canvas.gaps == ((3, 5), (6, 9))
    assert canvas.segments == ((0, 3), (5, 6), (9, 11))
    assert not canvas.continues
    assert Canvas.lay_out([[1]], [4], 3).continues
    assert canvas.active_positions().tolist() == []
    assert canvas.at((4, 8)).active_positions().tolist() == [4, 6, 7]


def test_a_decision_makes_a_new_canvas_and_leaves_the_old() -> None:
    canvas = Canvas.lay_out([[1]], [3], 3)
    after = canvas.apply(decide([1, 3], [30, 31]))
    assert canvas.open.tolist() == [False, True, True, True]
    assert after.tokens.tolist() == [1, 30, 3, 31]
    assert after.filled((1, 4)).tolist() == [30]
    again = after.apply(decide([2], [33], reopen=[1]))
    assert np.flatnonzero(again.open).tolist() == [1]
    with pytest.raises(ValueError, match="read-only"):
        canvas.tokens[1] = 5


def test_a_decision_that_does_not_fit_is_refused() -> None:
    for decision, message in (
        (decide([0], [5]), "not open"),
        (decide([9], [5]), "outside the canvas"),
        (decide([1], [5], reopen=[0]), "was not committed"),
        (decide([1], [5], reopen=[2]), "was not committed"),
        (decide([1], [5], replace=[1]), "replace a position that was not committed"),
        (decide([0], [5], replace=[0]), "replace a position that was not committed"),
    ):
        with pytest.raises(InputError, match=message):
            Canvas.lay_out([[1]], [3], 3).apply(decision)


def test_a_decision_needs_one_token_for_each_ascending_position() -> None:
    for positions, tokens in (([1, 1], [5, 5]), ([2, 1], [5, 5])):
        with pytest.raises(InputError, match="ascending"):
            decide(positions, tokens)
    with pytest.raises(InputError, match="one token"):
        Decision(np.array([1]), np.array([5, 6]), np.ones(1), np.ones(1))


def test_a_decision_replaces_only_what_it_says_it_replaces() -> None:
    canvas = Canvas.lay_out([[1]], [3], 3).apply(decide([1, 2], [30, 31]))
    decision = decide([2, 3], [41, 42], replace=[2])
    assert canvas.apply(decision).tokens.tolist() == [1, 30, 41, 42]
    assert decision.extended(np.array([1]), 9, 0).replace.tolist() == [2]
    assert decision.keep(np.array([False, True])).replace.tolist() == []
    with pytest.raises(InputError, match="overwrite a position that is not open"):
        canvas.apply(decide([2, 3], [41, 42]))
    with pytest.raises(InputError, match="list the position"):
        decide([3], [42], replace=[2])


def test_a_canvas_that_contradicts_itself_is_refused() -> None:
    tokens, nothing = np.zeros(6, dtype=np.int64), np.zeros(6, dtype=bool)
    for gaps in (((4, 2),), ((2, 4), (3, 5)), ((4, 9),), ((2, 2),)):
        with pytest.raises(InputError, match="ascending runs"):
            Canvas(tokens, nothing, gaps)
    with pytest.raises(InputError, match="must lie in a gap"):
        Canvas(tokens, ~nothing, ((2, 4),))
    with pytest.raises(InputError, match="not a run"):
        Canvas(tokens, nothing, ()).at((3, 9))
