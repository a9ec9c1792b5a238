"""Cohen's kappa and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from daguerre.scoring.agreement import Z95, agreement, kappa_of, kappa_stderr


def test_kappa_is_that_of_the_textbook() -> None:
    assert kappa_of(np.array([[20, 5], [10, 15]])) == pytest.approx(0.4)
    assert math.isnan(kappa_of(np.zeros((2, 2)))) and math.isnan(kappa_of(np.array([[9, 0], [0, 0]])))


def test_the_error_is_that_of_the_delta_method() -> None:
    rng = np.random.default_rng(0)
    for size in (2, 3, 4):
        table = rng.integers(1, 40, (size, size)) + 30 * np.eye(size)
        p = table / table.sum()

        def moved(cell: int, by: float, p: np.ndarray = p) -> float:
            changed = p.copy().ravel()
            changed[cell] += by
            shaped = changed.reshape(p.shape)
            expected = shaped.sum(axis=1) @ shaped.sum(axis=0)
            return float((np.trace(shaped) - expected) / (1 - expected))

        slope = np.array([(moved(cell, 1e-6) - moved(cell, -1e-6)) / 2e-6 for cell in range(p.size)])
        spread = np.diag(p.ravel()) - np.outer(p.ravel(), p.ravel())  # of the shares, times the number of cases
        assert kappa_stderr(table) == pytest.approx(math.sqrt(slope @ spread @ slope / table.sum()), rel=1e-6)


def test_the_interval_holds_kappa_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    share = np.array([[0.35, 0.1], [0.15, 0.4]])
    true, inside = kappa_of(share), 0
    for _ in range(500):
        found = agreement(rng.multinomial(60, share.ravel()).reshape(2, 2))
        inside += found.low <= true <= found.high
    assert 0.92 < inside / 500 < 0.98
    perfect = agreement(np.array([[10, 0], [0, 10]]))
    assert perfect.kappa == perfect.high == 1 and perfect.low == pytest.approx(
        1 - Z95 * kappa_stderr(np.array([[10.5, 0.5], [0.5, 10.5]]))
    )
