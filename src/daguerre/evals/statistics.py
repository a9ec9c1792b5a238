"""Errors and intervals of what the evaluations report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daguerre.scoring.agreement import Z95


def ratio_stderr(above: np.ndarray, below: np.ndarray, group: np.ndarray) -> float:
    """Standard error of sum(above) / sum(below) over samples (W,), with the samples of a group taken together.

    The linearized variance of a ratio of sums over independent groups: n/(n-1) sum_g (a_g - r b_g)^2 / (sum b)^2. NaN
    for one group.
    """
    _, number = np.unique(group, return_inverse=True)
    residual = np.bincount(number, above - above.sum() / below.sum() * below)
    num = len(residual)
    return float(np.sqrt(num / (num - 1) * (residual**2).sum()) / below.sum()) if num > 1 else float("nan")


def mean_stderr(values: np.ndarray, group: np.ndarray) -> float | None:
    """Standard error of the mean of samples (W,), with the samples of a group taken together; None for one group."""
    error = ratio_stderr(values.astype(np.float64), np.ones(len(values)), group)
    return None if np.isnan(error) else error


def wilson(successes: float, num: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a share, by default at 95%; (0, 1) where `num` is 0."""
    if num == 0:
        return 0.0, 1.0
    share, spread = successes / num, z * z / num
    center = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / num + spread / (4 * num))
    return max(0.0, center - half), min(1.0, center + half)


def shares(cases: Sequence[object], *names: str) -> dict[str, Any]:
    """Of attributes that are true or false of each case: the share of cases, by the attribute's name, and its 95%
    interval (Wilson), by the name and "_interval".
    """
    num, out = len(cases), dict[str, Any]()
    for name in names:
        true = sum(getattr(case, name) for case in cases)
        out |= {name: true / num, f"{name}_interval": wilson(true, num)}
    return out


def means(cases: Sequence[object], *names: str) -> dict[str, Any]:
    """The means of attributes over cases, by name."""
    return {name: sum(getattr(case, name) for case in cases) / len(cases) for name in names}


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value that two methods are equally often right, from the cases where only one was."""
    num = only_first + only_second
    tail = sum(math.comb(num, k) for k in range(min(only_first, only_second) + 1)) / 2**num
    return min(1.0, 2 * tail)


def paired_difference(only_first: int, only_second: int, num: int) -> tuple[float, tuple[float, float]]:
    """Difference of two shares of the same `num` cases, first less second, and its 95% interval.

    From the cases where only one method was right. The interval adds half a case to each of the four cells (Agresti
    and Min 2005, Statistics in Medicine 24:729), so it has a width even where the two never differ; (-1, 1) without
    cases.
    """
    if num == 0:
        return 0.0, (-1.0, 1.0)
    total = num + 2
    center = (only_first - only_second) / total
    half = Z95 * math.sqrt((only_first + only_second + 1) / total - center**2) / math.sqrt(total)
    return (only_first - only_second) / num, (max(-1.0, center - half), min(1.0, center + half))


def ratio_interval(above: np.ndarray, below: np.ndarray, group: np.ndarray) -> tuple[float, float] | None:
    """95% interval of sum(above) / sum(below), by `ratio_stderr`; None for one group, or if sum(below) is 0."""
    if not below.sum() or len(np.unique(group)) < 2:
        return None
    ratio, half = float(above.sum() / below.sum()), Z95 * ratio_stderr(above, below, group)
    return ratio - half, ratio + half


def clustered_wilson(above: np.ndarray, below: np.ndarray, group: np.ndarray) -> tuple[float, float]:
    """95% interval of a share sum(above) / sum(below) of cases that come in groups: Wilson's, for fewer cases.

    The number of cases is divided by the design effect (Kish 1965): the variance over groups over that of independent
    cases. Where all cases are alike, or there is one group, that is unknown, and cases count as independent.
    """
    num, share = float(below.sum()), float(above.sum() / max(1.0, below.sum()))
    effect = 1.0
    if 0 < share < 1 and len(np.unique(group)) > 1:
        effect = max(1.0, ratio_stderr(above, below, group) ** 2 * num / (share * (1 - share)))
    return wilson(share * num / effect, num / effect)


NUM_BINS = 15


@dataclass(frozen=True)
class Bin:
    """Answers of similar probability: how many, their mean probability, and the share right."""

    num: int
    confidence: float
    accuracy: float


def reliability(confidence: np.ndarray, right: np.ndarray, num_bins: int = NUM_BINS) -> list[Bin]:
    """Answers in bins of equal size by their probability `confidence` (N,), ascending; `right` bool (N,).

    Equal probabilities stay together, so a bin may be larger, and there may be fewer bins.
    """
    order = np.argsort(confidence, kind="stable")
    ranks = np.searchsorted(confidence[order], confidence[order])  # of the first equal one
    number = ranks * num_bins // len(order)
    cuts = np.flatnonzero(np.diff(number)) + 1
    parts = zip(np.split(confidence[order], cuts), np.split(right[order], cuts), strict=True)
    return [Bin(len(some), float(some.mean()), float(hits.mean())) for some, hits in parts]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: the mean over answers of |share right - mean probability| of their bin."""
    return sum(each.num * abs(each.accuracy - each.confidence) for each in bins) / sum(each.num for each in bins)
