"""Intervals and errors against values worked out elsewhere, or by repetition."""

from __future__ import annotations

import numpy as np
import pytest

from daguerre.evals.statistics import (
    Bin,
    calibration_error,
    clustered_wilson,
    mcnemar,
    paired_difference,
    ratio_interval,
    ratio_stderr,
    reliability,
    wilson,
)

PUBLISHED = {(5, 10): (0.2366, 0.7634), (0, 20): (0.0, 0.1611), (20, 20): (0.8389, 1.0), (1, 100): (0.0018, 0.0545)}


def test_wilson_gives_the_published_interval() -> None:
    for (successes, num), interval in PUBLISHED.items():
        assert wilson(successes, num) == pytest.approx(interval, abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_mcnemar_is_the_two_sided_sign_test() -> None:
    for first, second, p in ((0, 0, 1.0), (10, 0, 2 / 1024), (1, 9, 22 / 1024), (3, 3, 1.0)):
        assert mcnemar(first, second) == mcnemar(second, first) == pytest.approx(p)


def test_the_error_of_a_ratio_is_that_of_repeated_samples() -> None:
    rng = np.random.default_rng(0)
    ratios, stated = [], []
    for _ in range(400):
        below = rng.uniform(50, 150, size=40)
        hardness = np.repeat(rng.normal(1, 0.2, size=10), 4)  # four samples to a group
        above = below * (hardness + rng.normal(0, 0.1, size=40))
        ratios.append(above.sum() / below.sum())
        stated.append(ratio_stderr(above, below, np.repeat(np.arange(10), 4)))

    assert np.mean(stated) / np.std(ratios) == pytest.approx(1, abs=0.15)


def test_one_group_has_no_error() -> None:
    assert np.isnan(ratio_stderr(np.ones(3), np.ones(3), np.zeros(3)))


def test_the_interval_of_a_paired_difference_holds_the_truth_as_often_as_it_says() -> None:
    rng, held = np.random.default_rng(0), 0
    for first, second, _ in rng.multinomial(100, (0.08, 0.03, 0.89), size=2000):
        low, high = paired_difference(int(first), int(second), 100)[1]
        held += low <= 0.05 <= high

    assert held / 2000 == pytest.approx(0.95, abs=0.02)


def test_a_paired_difference_by_hand() -> None:
    difference, (low, high) = paired_difference(30, 10, 398)  # 400 after the half cases: (20/400) +- 1.96 sqrt(...)

    half = 1.959964 * np.sqrt(41 / 400 - 0.05**2) / 20
    assert difference == pytest.approx(20 / 398)
    assert (low, high) == pytest.approx((0.05 - half, 0.05 + half), abs=1e-6)
    assert paired_difference(10, 30, 398)[1] == pytest.approx((-high, -low))
    assert paired_difference(0, 0, 2000)[1][1] > 0
    assert paired_difference(0, 0, 0) == (0.0, (-1.0, 1.0))


def test_the_interval_of_a_ratio_is_two_of_its_errors_each_way() -> None:
    above, below, group = np.array([1.0, 2.0, 6.0]), np.array([2.0, 4.0, 6.0]), np.arange(3)

    interval = ratio_interval(above, below, group)

    error = 1.959964 * ratio_stderr(above, below, group)
    assert interval == pytest.approx((0.75 - error, 0.75 + error))
    assert ratio_interval(above, below, np.zeros(3)) is None
    assert ratio_interval(above, np.zeros(3), group) is None


def test_a_share_of_things_in_groups_has_the_interval_of_fewer_things() -> None:
    alike = np.tile([1.0, 0.0, 1.0, 1.0], 25)
    whole = np.repeat([[1.0], [0.0], [1.0], [1.0]], 25, axis=1).ravel()
    ones = np.ones(100)

    spread_out = clustered_wilson(alike, ones, np.arange(100))
    by_group = clustered_wilson(whole, ones, np.repeat(np.arange(4), 25))

    assert spread_out == pytest.approx(wilson(75, 100), abs=0.01)
    assert by_group == pytest.approx(wilson(2.25, 3), abs=0.05), "four groups that are all one thing or the other"
    assert clustered_wilson(0 * ones, ones, np.arange(100)) == wilson(0, 100)
    assert clustered_wilson(whole, ones, 0 * ones) == wilson(75, 100)
    assert clustered_wilson(np.zeros(2), np.zeros(2), np.arange(2)) == (0.0, 1.0)


def test_a_calibration_error_by_hand() -> None:
    """Bins of two: .2 and .4 with none right, .5 and .7 with one, .9 and 1 with both: (2(.3) + 2(.1) + 2(.05))/6."""
    confidence = np.array([0.9, 0.2, 0.5, 1.0, 0.4, 0.7])
    right = np.array([True, False, True, True, False, False])
    bins = reliability(confidence, right, 3)

    assert [each.num for each in bins] == [2, 2, 2]
    assert [each.confidence for each in bins] == pytest.approx([0.3, 0.6, 0.95])
    assert [each.accuracy for each in bins] == [0.0, 0.5, 1.0]
    assert calibration_error(bins) == pytest.approx(0.15)


def test_equal_probabilities_are_one_bin() -> None:
    """Cut by their order, the six right and the four wrong would be two bins, each far off."""
    right = np.arange(10) < 6
    (only,) = reliability(np.full(10, 0.6), right)

    assert only == Bin(10, pytest.approx(0.6), 0.6)
    assert calibration_error([only]) == pytest.approx(0.0)


def test_bins_have_equal_mass_and_a_calibrated_answer_a_small_error() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.random(30_000) ** 2
    bins = reliability(confidence, rng.random(30_000) < confidence)

    assert [each.num for each in bins] == [2000] * 15
    assert calibration_error(bins) < 0.015
    assert calibration_error(reliability(confidence, rng.random(30_000) < confidence**2)) > 0.1
