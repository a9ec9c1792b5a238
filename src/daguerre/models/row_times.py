"""What a further row of a forward takes, learned from the forwards that are computed anyway.

Of forwards of a few rows the time is taken to be a + b R, by least squares over the last ones: b / (a + b) is the share
of a row. It depends on the machine, the type of the weights and the model, and grows with the text.

Letters: R rows.
"""

from __future__ import annotations

import numpy as np

from daguerre.models.processor import in_crowd, row_time

MOST = 64
"""Forwards of more rows are a prompt's."""
KEPT, ENOUGH, SKIPPED = 0.98, 8, 2
"""The weight of a forward after one more; how many make a fit; and the first ones, whose weights may come from the
disk."""
SPREAD = 0.5
"""The least standard deviation of the numbers of rows: of less they say nothing."""
LEAST, MOST_SHARE = 0.01, 0.6
"""Bounds of the share, since times are noisy: with more, nothing would be drafted, and nothing learned any more."""
OUTLIER = 4.0
"""A forward that takes so many times what is expected was interrupted."""


class RowTimes:
    """The share of a row, as of now; that of the processor's table (`models.processor.ROW_TIMES`) at first."""

    def __init__(self) -> None:
        self._sums, self._seen = np.zeros(5), 0

    def took(self, rows: int, wanted: int, seconds: float) -> None:
        """A forward of so many rows, of which so many were read, was computed."""
        self._seen += 1
        if rows > MOST or 2 * wanted < rows or self._seen <= SKIPPED:
            return
        expected = self._expected(rows)
        if expected is not None and seconds > OUTLIER * expected:
            return
        self._sums = KEPT * self._sums + np.array([1, rows, seconds, rows * rows, rows * seconds])

    def share(self, crowd: int = 1) -> float:
        """What a further row takes, as a share of what a text's step of mode "ar" does, in a crowd of so many texts."""
        fit = self._fit()
        if fit is None or min(fit[1], sum(fit)) <= 0:
            return row_time(crowd)
        return in_crowd(min(max(fit[1] / sum(fit), LEAST), MOST_SHARE), crowd)

    def _expected(self, rows: int) -> float | None:
        fit = self._fit()
        return None if fit is None else fit[0] + fit[1] * rows

    def _fit(self) -> tuple[float, float] | None:
        """a and b, in seconds; None while too few forwards tell them."""
        num, x, y, xx, xy = self._sums.tolist()
        if num < ENOUGH * KEPT**ENOUGH or xx / num - (x / num) ** 2 < SPREAD**2:
            return None
        each = (xy / num - x * y / num**2) / (xx / num - (x / num) ** 2)
        return (y - each * x) / num, each
