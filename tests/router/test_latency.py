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
    times, size = Latencies(), (300, 100)
    assert times.of("a", size, (900.0, 20.0), 0.0) == (None, None, None, None)
    for at in range(2):
        times.add("a", size, first=100.0, whole=100.0 + 99 * 4.0, tokens=100, at=float(at))
    first, first_p95, token, token_p95 = times.of("a", (400, 200), (900.0, 20.0), 1.0)
    assert first == pytest.approx(100.0, rel=0.011) and token == pytest.approx(4.0, rel=0.011)
    assert first_p95 == pytest.approx((2 * 100.0 + 8 * 900.0) / 10, rel=0.01)
    assert token_p95 == pytest.approx((2 * 4.0 + 8 * 20.0) / 10, rel=0.01)
    assert times.of("a", (5000, 100), (900.0, 20.0), 1.0)[0] is None
    assert times.of("b", size, (900.0, 20.0), 1.0)[0] is None
    for at in range(2, 500):
        times.add("a", size, first=100.0, whole=496.0, tokens=100, at=float(at))
    weight = (2.0 ** ((np.arange(500) - 499) / latency.HALF_LIFE)).sum()
    expected = (weight * 100.0 + 8 * 900.0) / (weight + 8)
    assert times.of("a", size, (900.0, 20.0), 499.0)[1] == pytest.approx(expected, rel=0.01)


def test_an_answer_of_one_token_says_nothing_of_later_ones() -> None:
    times = Latencies()
    times.add("a", (1, 1), first=80.0, whole=80.0, tokens=1, at=0.0)
    assert times.of("a", (1, 1), (1.0, 1.0), 0.0)[2:] == (None, None)


def test_buckets_are_numbered_by_their_upper_edges() -> None:
    assert [bucket(size) for size in (0, 256, 257, 1024, 1025, 16384, 16385)] == [0, 0, 1, 1, 2, 3, 4]
