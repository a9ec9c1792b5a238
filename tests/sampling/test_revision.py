"""Revision: what is replaced, in which order, and what never is."""

from __future__ import annotations

import numpy as np
import pytest

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.revision import revise
from daguerre.errors import InputError
from daguerre.trace import Event, Trace

PROBS = np.array(
    [
        [0.1, 0.9, 0.0, 0.0],  # holds 1: right
        [0.9, 0.1, 0.0, 0.0],  # holds 1: gain .8
        [0.6, 0.0, 0.4, 0.0],  # holds 2: gain .2
        [0.0, 0.0, 0.05, 0.95],  # holds 0: gain .95
    ]
)
LOGITS = np.log(np.maximum(PROBS, 1e-12))


@pytest.fixture
def canvas() -> Canvas:
    return Canvas(np.array([3, 1, 1, 2, 0, 3]), np.zeros(6, dtype=bool), ((1, 5),), (1, 5))


def revised(canvas: Canvas, threshold: float, limit: int | None = None) -> Decision:
    return revise(canvas, np.arange(1, 5), LOGITS, threshold, limit)


REPLACED: list[tuple[float, int | None, list[int]]] = [
    (0.5, None, [2, 3, 4]),
    (0.7, None, [2, 4]),
    (0.92, None, [4]),
    (0.96, None, []),
    (0.5, 1, [4]),
    (0.5, 2, [2, 4]),
    (0.5, 9, [2, 3, 4]),
]


def test_what_another_token_beats_is_replaced_highest_gain_first(canvas: Canvas, subtests: pytest.Subtests) -> None:
    for threshold, limit, positions in REPLACED:
        with subtests.test(str(threshold), limit=limit):
            decision = revised(canvas, threshold, limit)

            assert decision.positions.tolist() == decision.replace.tolist() == positions
            after = canvas.apply(decision)
            expected = canvas.tokens.copy()
            expected[positions] = PROBS.argmax(-1)[np.array(positions, dtype=np.int64) - 1]
            assert after.tokens.tolist() == expected.tolist()
            assert not after.open.any()


def test_a_revision_tells_the_probability_and_the_gain(canvas: Canvas) -> None:
    decision = revised(canvas, 0.5)

    assert decision.probabilities == pytest.approx([0.9, 0.6, 0.95])
    assert decision.confidence == pytest.approx([0.8, 0.2, 0.95])


def test_equal_gains_are_taken_from_the_left(canvas: Canvas) -> None:
    logits = np.log(np.full((2, 4), 0.1) + 0.6 * np.eye(4)[[3, 3]])

    assert revise(canvas, np.array([2, 3]), logits, 0.5, 1).positions.tolist() == [2]


def test_what_was_given_or_is_open_cannot_be_revised(canvas: Canvas) -> None:
    logits = LOGITS[1:2]
    with pytest.raises(InputError, match="replace a position that was not committed"):
        canvas.apply(revise(canvas, np.array([0]), logits, 0.5))
    opened = Canvas(canvas.tokens, np.arange(6) == 2, canvas.gaps, canvas.span)
    with pytest.raises(InputError, match="replace a position that was not committed"):
        opened.apply(revise(opened, np.array([2]), logits, 0.5))
    with pytest.raises(InputError, match="threshold"):
        revise(canvas, np.array([2]), logits, 1.5)


def test_a_revision_is_part_of_a_trace(canvas: Canvas) -> None:
    decision = revised(canvas, 0.5)
    after = canvas.apply(decision)

    trace = Trace.from_json(Trace.record(canvas, [Event(0, decision, after)]).to_json())

    assert [replayed.tokens.tolist() for replayed in trace.replay()] == [after.tokens.tolist()]
