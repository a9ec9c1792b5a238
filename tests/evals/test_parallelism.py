"""Accuracy under parallelism: its closed forms, the published figures, and the curves of a report."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest

from daguerre.errors import InputError
from daguerre.evals.parallelism import aup, curves, parallelism_section, report_rows, upper_envelope


def row(policy: str, num: int, speed: float, same: float, exact: float, exact_of_ar: float = 0.1) -> dict[str, Any]:
    return {
        "mode": "block" if policy else "ar", "policy": policy or "threshold", "num": num, "tokens_per_forward": speed,
        "same_as_ar": same, "accuracy": exact, "difference": exact - exact_of_ar,
    }  # fmt: skip


def test_one_point_is_a_rectangle_that_is_not_weighted() -> None:
    assert aup([(1.5, 40)], 80) == 60


def test_what_loses_nothing_has_y_max_times_its_tokens_per_forward() -> None:
    assert aup([(1, 70), (2.5, 70), (9, 70)], 70) == pytest.approx(9 * 70)
    assert aup([(3, 70)], 70) == 3 * 70


def test_an_accuracy_above_y_max_has_no_more_weight_than_one() -> None:
    assert aup([(1, 80), (2, 80)], 70) == 160


def test_three_points_by_hand() -> None:
    """Weighted accuracies 80, 40 / e and 20 / e^1.5, two and one token apart."""
    curve = [(4.0, 20.0), (1.0, 80.0), (3.0, 40.0)]
    by_hand = 80 + (80 + 40 / exp(1)) + (40 / exp(1) + 20 / exp(1.5)) / 2

    assert aup(curve, 80, alpha=2, y_min=0) == pytest.approx(by_hand)
    assert aup(curve, 80, alpha=0, y_min=0) == pytest.approx(80 + 120 + 30)


def test_points_more_than_five_below_the_first_are_dropped() -> None:
    """Of d3LLM's script, the first figure; it refuses the second curve."""
    assert aup([(3, 48), (1, 50), (2, 40)], 50) == pytest.approx(142.57218096242354)
    assert aup([(1, 50), (2, 44.9)], 50) == 50
    assert aup([(1, 50), (2, 45)], 50) > 80
    assert aup([(1, 50), (2, 40), (3, 48)], 50, y_min=48) == aup([(1, 50), (3, 48)], 50)


@pytest.mark.parametrize(
    ("points", "y_max", "published"),
    [
        ([(1, 74.02), (9.11, 73.09)], 74.98, 637.6549264841269),
        ([(1, 42.0), (4.21, 40.6)], 63.6, 88.3560100633047),
        ([(1, 79.15), (4.49, 76.65)], 82.56, 309.0755528854472),
    ],
)
def test_it_is_what_the_published_script_prints(
    points: list[tuple[float, float]], y_max: float, published: float
) -> None:
    """AUP_leaderboard/main.py on data_llada.yaml: d3LLM on GSM8K and MBPP, dParallel on Long-GSM8K."""
    assert aup(points, y_max) == pytest.approx(published)


def test_what_has_no_area_is_refused() -> None:
    for points, y_max, y_min, words in (
        ([], 1, None, "one point or more"),
        ([(0, 1)], 1, None, "more than 0 tokens"),
        ([(1, 0)], 0, None, "y_max must be above 0"),
        ([(1, 5)], 5, 6, "lower y_min"),
    ):
        with pytest.raises(InputError, match=words):
            aup(points, y_max, y_min=y_min)


def test_the_upper_envelope_leaves_out_what_another_point_equals_or_exceeds() -> None:
    points = [(1, 50), (2, 50), (3, 20), (3, 30), (1.5, 60), (2.5, 10), (3, 30), (1.5, 40)]

    assert upper_envelope(points) == [(1.5, 60), (2, 50), (3, 30)]
    assert upper_envelope([]) == []


def test_curves_are_of_one_policy_or_all_on_the_same_lines() -> None:
    rows = [
        row("", 200, 1.0, 1.0, 0.2, 0.2), row("chain", 200, 3.0, 1.0, 0.2, 0.2),
        row("threshold", 50, 1.0, 0.5, 0.1), row("threshold", 50, 2.0, 0.4, 0.1), row("chain", 50, 1.5, 0.8, 0.02),
        row("chain", 50, 1.2, 0.7, 0.02), row("chain", 50, 4.0, 0.75, 0.0),
        row("threshold", 50, 9.0, 1.0, 0.1) | {"mode": "speculative"},
    ]  # fmt: skip

    found = {(curve.num, curve.policy): curve for curve in curves(rows)}

    assert list(found) == [(200, "chain"), (200, None), (50, "chain"), (50, "threshold"), (50, None)]
    assert [curve.settings for curve in found.values()] == [1, 1, 3, 2, 5]
    whole = found[200, "chain"]
    assert (whole.same_as_ar.aup, whole.same_as_ar.relative) == pytest.approx((300, 3))
    assert (whole.exact.y_max, whole.exact.aup, whole.exact.relative) == pytest.approx((20, 60, 3))
    assert found[50, "chain"].same_as_ar.points == ((1.5, 80), (4, 75))
    area = 1.5 * 80 + 2.5 * (80 * exp(-0.6) + 75 * exp(-0.75)) / 2
    assert found[50, "chain"].same_as_ar.aup == found[50, None].same_as_ar.aup == pytest.approx(area)
    assert found[50, "threshold"].same_as_ar.aup == 50, "the second point is ten points lower"
    assert found[50, "threshold"].exact.points == ((2, 10),)
    assert found[50, "threshold"].exact.relative == pytest.approx(2)
    assert found[50, None].exact.points == ((2, 10), (4, 0))


def test_shares_at_the_cut_stay() -> None:
    """0.56 and 0.51 of the lines, in floats, are more than five points apart."""
    (_, curve) = curves([row("chain", 100, 1.3, 0.56, 0.1), row("chain", 100, 1.4, 0.51, 0.1)])

    assert curve.same_as_ar.aup == pytest.approx(1.3 * 56 + 0.1 * (56 * exp(-1.32) + 51 * exp(-1.47)) / 2)


def test_a_report_has_its_curves_as_a_table() -> None:
    task = {"rows": [row("", 200, 1.0, 1.0, 0.2, 0.2), row("chain", 200, 3.0, 1.0, 0.2, 0.2)]}
    later = task | {"grid_rows": [row("chain", 50, 2.0, 0.5, 0.0, 0.0)]}

    assert report_rows(task) == task["rows"]
    text = parallelism_section(later)
    assert "y_max = 100%" in text
    assert "| chain | 200 | 1 | 300.0 | 3.000 | 20.0 | 60.00 | 3.000 |" in text
    assert "| all | 50 | 1 | 100.0 | 1.000 | 0.0 |  |  |" in text
    assert "| 50 |" not in parallelism_section(task)
