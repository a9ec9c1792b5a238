"""How well two judges agree, and how well scores tell cases apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054


@dataclass(frozen=True)
class RaterAgreement:
    """Cohen's kappa of two judges, its 95% interval, and the number of cases."""

    kappa: float
    low: float
    high: float
    cases: int


def agreement(table: np.ndarray) -> RaterAgreement:
    """Cohen's kappa, (p_o - p_e) / (1 - p_e), of a table (L, L): how often one judge said l and the other m.

    The interval is kappa +- 1.96 standard errors. The error is that of `kappa_stderr`, of the table with half a case
    added to each cell, so that it has a width even where the judges never differ. NaN without cases, and where both
    judges say one label alone.
    """
    counts = np.asarray(table, dtype=np.float64)
    value, cases = kappa_of(counts), int(counts.sum())
    half = Z95 * kappa_stderr(counts + 0.5)
    low, high = np.clip([value - half, value + half], -1.0, 1.0).tolist()  # NaN stays
    return RaterAgreement(value, low, high, cases)


def kappa_of(table: np.ndarray) -> float:
    """Cohen's kappa of a table of counts; NaN where it is not defined."""
    num = table.sum()
    if not num:
        return math.nan
    expected = float(table.sum(axis=1) @ table.sum(axis=0)) / num**2
    return math.nan if expected == 1 else float((np.trace(table) / num - expected) / (1 - expected))


def kappa_stderr(table: np.ndarray) -> float:
    """The standard error of kappa in a large sample (Fleiss, Cohen, Everitt 1969, Psychological Bulletin 72:323): with
    shares p, a = 1 - kappa and margins r (rows) and c (columns),

        n (1 - p_e)^2 var = sum_i p_ii (1 - (r_i + c_i) a)^2 + a^2 sum_{i != j} p_ij (c_i + r_j)^2
                            - (kappa - p_e a)^2
    """
    num = table.sum()
    p, kappa = table / num, kappa_of(table)
    rows, columns = p.sum(axis=1), p.sum(axis=0)
    expected, a = float(rows @ columns), 1 - kappa
    same = float((np.diag(p) * (1 - (rows + columns) * a) ** 2).sum())
    apart = p * (columns[:, None] + rows[None, :]) ** 2
    other = a**2 * float(apart.sum() - np.trace(apart))
    variance = (same + other - (kappa - expected * a) ** 2) / (num * (1 - expected) ** 2)
    return math.sqrt(max(0.0, variance))


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve of scores (S,) and bool labels (S,): the chance that a positive case has the higher
    score, ties counted half. NaN where a class is empty.
    """
    num, positive = len(labels), int(labels.sum())
    if positive in (0, num):
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((rank[labels].sum() - positive * (positive + 1) / 2) / (positive * (num - positive)))
