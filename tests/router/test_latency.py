"""Decayed quantiles against weighted quantiles of all measurements, and what is predicted of few."""

from __future__ import annotations

import numpy as np
import pytest

from daguerre.router import latency
from daguerre.router.latency import DecayedQuantiles, Latencies, bucket


def weighted(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The smallest value that a share of the weight does not exceed."""
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, share * total[-1])])


@pytest.mark.parametrize("most", [512.0, 4.0])
def test_quantiles_are_those_of_weights_that_halve(monkeypatch: pytest.MonkeyPatch, most: float) -> None:
    """Also where weights begin again, which moves quantiles by little."""
    monkeypatch.setattr(latency, "MOST_DOUBLINGS", most)
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(2.0, 3000))
    values = rng.lognormal(5.0, 0.6, 3000) * np.where(times > 4000, 2.5, 1.0)
    found = DecayedQuantiles(half_life=300.0)
    for value, at in zip(values, times, strict=True):
        found.add(value, at)
    weights = 2.0 ** ((times - times[-1]) / 300.0)
    for share in (0.1, 0.5, 0.9, 0.95):
        got = found.quantile(share)
        assert got == pytest.approx(weighted(values, weights, share), rel=0.025 if most > 4 else 0.06)
    assert found.weight(times[-1]) == pytest.approx(weights.sum(), rel=1e-6 if most > 4 else 0.03)
    assert found.weight(times[-1] + 300) == pytest.approx(weights.sum() / 2, rel=1e-6 if most > 4 else 0.03)


def test_after_a_long_time_the_newest_measurement_is_all_that_counts() -> None:
    found = DecayedQuantiles(half_life=1.0)
    for at in range(100):
        found.add(50.0, at)
    found.add(400.0, 5000.0)
    for share in (0.05, 0.5, 0.95):
        assert found.quantile(share) == pytest.approx(400.0, rel=0.011)


def test_of_nothing_there_is_no_quantile() -> None:
    found = DecayedQuantiles()
    assert found.quantile(0.5) is None and found.weight(3.0) == 0.0


def test_a_backend_is_measured_by_size_and_few_samples_are_drawn_towards_what_is_declared() -> None:
    times, size, declared = Latencies(), (300, 100), (900.0, 5000.0)
    assert times.of("a", size, declared, 0.0) == (None, None, None, None)
    for at in range(2):
        times.add("a", size, first=100.0, whole=496.0, at=float(at))
    first, first_p95, whole, whole_p95 = times.of("a", (400, 120), declared, 1.0)
    assert first == pytest.approx(100.0, rel=0.011) and whole == pytest.approx(496.0, rel=0.011)
    weight = 1 + 2.0 ** (-1 / latency.HALF_LIFE)
    assert first_p95 == pytest.approx(100.0 ** (weight / (weight + 8)) * 900.0 ** (8 / (weight + 8)), rel=0.01)
    assert whole_p95 == pytest.approx(496.0 ** (weight / (weight + 8)) * 5000.0 ** (8 / (weight + 8)), rel=0.01)
    assert times.of("a", (5000, 100), declared, 1.0)[0] is None
    assert times.of("b", size, declared, 1.0)[0] is None
    for number in range(2, 500):
        times.add("a", size, first=100.0, whole=496.0, at=float(number))
    weight = (2.0 ** ((np.arange(500) - 499) / latency.HALF_LIFE)).sum()
    expected = 100.0 ** (weight / (weight + 8)) * 900.0 ** (8 / (weight + 8))
    assert times.of("a", size, declared, 499.0)[1] == pytest.approx(expected, rel=0.01)


def test_a_backend_that_nobody_asks_is_soon_expected_to_be_as_declared() -> None:
    found = DecayedQuantiles(half_life=60.0)
    for at in range(1000):
        found.add(4000.0, at / 10)
    weight = found.weight(99.9)
    for idle in (0.0, 60.0, 240.0):
        kept = weight * 2.0 ** (-(1 + latency.IDLE) * idle / 60.0)
        expected = 4000.0 ** (kept / (kept + 8)) * 500.0 ** (8 / (kept + 8))
        assert found.near(500.0, 99.9 + idle)[1] == pytest.approx(expected, rel=0.011)
    assert expected < 520.0, "of several hundred slow answers nothing is left after four half lives"


def test_an_answer_that_is_not_streamed_says_nothing_of_first_texts() -> None:
    times = Latencies()
    times.add("a", (1, 1), first=None, whole=80.0, at=0.0)
    assert times.of("a", (1, 1), (1.0, 1.0), 0.0)[:2] == (None, None)
    assert times.of("a", (1, 1), (1.0, 1.0), 0.0)[2] == pytest.approx(80.0, rel=0.011)


def test_buckets_are_numbered_by_their_upper_edges() -> None:
    assert [bucket(size) for size in (0, 256, 257, 1024, 1025, 16384, 16385)] == [0, 0, 1, 1, 2, 3, 4]


def test_a_backend_that_slows_down_is_slower_for_all_sizes_after_three_answers() -> None:
    times, declared = Latencies(half_life=60.0), (900.0, 5000.0)
    for number in range(200):
        for size, usual in (((300, 100), 400.0), ((300, 1000), 3000.0)):
            times.add("a", size, first=usual / 4, whole=usual, at=number / 10)
    before = times.of("a", (300, 1000), declared, 20.0)
    for number in range(3):
        times.add("a", (300, 100), first=400.0, whole=1600.0, at=20.0 + number / 10)
    after = times.of("a", (300, 1000), declared, 20.3)
    assert after == tuple(pytest.approx(4 * one, rel=0.03) for one in before if one is not None)
    assert times.of("a", (300, 1000), declared, 20.2 + 7.6)[2] == pytest.approx(3000.0, rel=0.02), "tried again"
    for number in range(3):
        times.add("a", (300, 100), first=100.0, whole=400.0, at=28.0 + number / 10)
    assert times.of("a", (300, 1000), declared, 28.3)[2] == pytest.approx(3000.0, rel=0.02)
    assert times.of("b", (300, 1000), declared, 28.3) == (None, None, None, None)


def test_what_lasts_for_a_half_life_is_usual_and_two_slow_answers_are_an_accident() -> None:
    pace = latency.Slowdown(memory=8.0, lasting=60.0)
    for _ in range(2):
        pace.add(9.0, 0.0)
    assert pace.now(0.0) == 1.0
    for at in range(1, 100):
        pace.add(4.0, float(at))
        assert pace.now(float(at)) == 4.0 or at < 3
        assert pace.unusual(float(at)) == (pace.now(float(at)) if at < 61 else 1.0)
    for at in range(100, 103):
        pace.add(1.0, float(at))
    assert pace.now(102.0) == pace.unusual(102.0) == 1.0
    for at in range(103, 106):
        pace.add(4.0, float(at))
    assert pace.unusual(105.0) == 4.0, "a new episode"
    assert pace.now(105.0 + 7.9) == 4.0 and pace.now(105.0 + 8.0) == 1.0


def test_one_request_at_a_time_finds_out_whether_a_slow_backend_still_is() -> None:
    pace = latency.Slowdown(memory=8.0, lasting=600.0)
    for at in range(3):
        pace.add(4.0, float(at))
    assert pace.now(9.9) == 4.0 and not pace.doubtful(9.9)
    assert pace.now(10.0) == 1.0 and pace.doubtful(10.0)
    pace.asked(10.0)
    assert pace.now(10.1) == 4.0, "one request tries it"
    assert pace.now(18.0) == 1.0, "an answer that does not come holds up no other for ever"
    pace.asked(18.0)
    pace.add(3.0, 19.0)
    assert pace.now(26.9) == 4.0 and pace.now(27.0) == 1.0, "one slow answer is enough"
    pace.asked(27.0)
    pace.add(1.0, 28.0)
    assert pace.now(28.0) == 1.0 and not pace.doubtful(99.0), "and one that is as usual"


def test_requests_that_wait_longer_than_usual_count_before_they_are_answered() -> None:
    pace = latency.Slowdown(memory=8.0, lasting=600.0)
    for at in range(5):
        pace.add(1.0, float(at))
    assert pace.now(5.0, [3.0, 1.2, 5.0]) == 1.0, "two are an accident"
    assert pace.now(5.0, [3.0, 4.0, 5.0]) == 3.0
    times = Latencies(half_life=60.0)
    for at in range(10):
        times.add("a", (300, 100), first=100.0, whole=400.0, at=float(at))
    assert times.over("a", (300, 100), True, 250.0) == pytest.approx(2.5, rel=0.011)
    assert times.over("a", (300, 100), False, 1000.0) == pytest.approx(2.5, rel=0.011)
    assert times.over("a", (9000, 100), False, 1000.0) == times.over("b", (300, 100), True, 9.0) == 0.0
    usual = times.of("a", (300, 100), (100.0, 400.0), 9.0)
    slow = times.of("a", (300, 100), (100.0, 400.0), 9.0, [2.0, 2.0, 2.0])
    assert slow == tuple(pytest.approx(2 * one) for one in usual if one is not None)


def test_a_backend_that_stays_slow_is_soon_known_as_slow() -> None:
    times, size = Latencies(half_life=10.0), (300, 100)
    for number in range(2000):
        times.add("a", size, first=None, whole=400.0 if number < 500 else 1600.0, at=number / 20)
    at = 1999 / 20
    for later in (at, at + 2.0):
        assert times.of("a", size, (900.0, 5000.0), later)[2] == pytest.approx(1600.0, rel=0.02)
