"""Figures of detection: scores of spans, areas under curves, calibration, and paired intervals over files.

Letters: S cases, N concepts, R scored rows, F files, B resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.evals.statistics import calibration_error, reliability
from daguerre.scoring.agreement import roc_auc

MIN_CASES = 20
"""A concept is scored if it has so many positive and so many negative cases."""
RESAMPLES = 1000


def log_any(logits: Tensor) -> Tensor:
    """log P(any) (..., N), float64, of logits (..., R, N): P(any) = 1 - prod_r (1 - sigmoid(z_r)).

    With s = sum_r softplus(z_r), which is -log P(none), this is log(1 - exp(-s)), in the form that keeps its digits:
    scores of sure cases stay apart.
    """
    return log_some(F.softplus(logits.double()).sum(dim=-2))


def log_some(none: Tensor) -> Tensor:
    """log(1 - exp(-s)) of s = -log P(none), 0 or more."""
    small = torch.log((-torch.expm1(-none)).clamp_min(torch.finfo(none.dtype).tiny))
    return torch.where(none < 0.7, small, torch.log1p(-torch.exp(-none.clamp_min(0.5))))


def scorable(labels: np.ndarray) -> np.ndarray:
    """Which concepts have MIN_CASES positive and negative cases, bool (N,), of bool labels (S, N)."""
    positive = labels.sum(axis=0)
    out: np.ndarray = (positive >= MIN_CASES) & (len(labels) - positive >= MIN_CASES)
    return out


def average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the precision-recall curve as a sum of steps, sum_k (R_k - R_{k-1}) P_k over distinct scores. NaN
    without a positive case.
    """
    if not labels.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    hits = np.cumsum(labels[order])[last]
    return float((np.diff(hits, prepend=0) * hits / (last + 1)).sum() / hits[-1])


@dataclass(frozen=True, eq=False)
class Wins:
    """How positive cases of each file stand against negative cases of each file, for one concept.

    wins       float64 (F, F): over a positive case of file f and a negative one of file g, how often the positive one
               has the higher score, ties counted half
    positive, negative  float64 (F,): cases of each file

    With file f taken w_f times, the area under the ROC curve is w'Ww / (w'p w'n): the figure of a resample is a
    quadratic form, and a thousand of them are one product of matrices.
    """

    wins: np.ndarray
    positive: np.ndarray
    negative: np.ndarray

    def areas(self, weights: np.ndarray) -> np.ndarray:
        """Areas (B,) of resamples, float64 (B, F); NaN where one has no positive or no negative case."""
        pairs = (weights @ self.positive) * (weights @ self.negative)
        above = ((weights @ self.wins) * weights).sum(axis=1)
        return np.divide(above, pairs, out=np.full(len(weights), np.nan), where=pairs > 0)


def wins_of(scores: np.ndarray, labels: np.ndarray, files: np.ndarray, num_files: int) -> Wins:
    """The `Wins` of scores (S,), bool labels (S,) and the numbers of files (S,)."""
    up, down = np.flatnonzero(labels), np.flatnonzero(~labels)
    order = down[np.argsort(scores[down], kind="stable")]
    below = np.zeros((len(order) + 1, num_files), dtype=np.float32)  # counts, which it holds exactly
    below[np.arange(1, len(order) + 1), files[order]] = 1
    np.cumsum(below, axis=0, out=below)
    first = np.searchsorted(scores[order], scores[up], side="left")
    last = np.searchsorted(scores[order], scores[up], side="right")
    wins = np.zeros((num_files, num_files))
    by_file = np.argsort(files[up], kind="stable")
    beaten = (below[first[by_file]] + below[last[by_file]]).astype(float) / 2
    present, starts = np.unique(files[up][by_file], return_index=True)
    if len(present):
        wins[present] = np.add.reduceat(beaten, starts, axis=0)
    counts = [np.bincount(files[some], minlength=num_files).astype(float) for some in (up, down)]
    return Wins(wins, *counts)


def resamples(num_files: int, seed: int, num: int = RESAMPLES) -> np.ndarray:
    """How often each file is in each resample of all files with replacement, float64 (B, F)."""
    return np.random.default_rng(seed).multinomial(num_files, np.full(num_files, 1 / num_files), num).astype(float)


def interval(values: np.ndarray) -> tuple[float, float]:
    """The middle 95% of resampled figures."""
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class Areas:
    """Areas under the ROC curves of one scorer: `each` (N,), and of resamples, `drawn` (N, B); NaN where undefined."""

    each: np.ndarray
    drawn: np.ndarray

    def macro(self, some: np.ndarray) -> tuple[float, tuple[float, float]]:
        """The mean over some concepts, bool (N,), and its 95% interval over files."""
        return float(self.each[some].mean()), interval(np.nanmean(self.drawn[some], axis=0))

    def less(self, other: Areas, some: np.ndarray) -> tuple[float, tuple[float, float]]:
        """The mean over some concepts of this area less another's, and its 95% interval: both of the same resamples."""
        difference = np.nanmean(self.drawn[some] - other.drawn[some], axis=0)
        return float((self.each - other.each)[some].mean()), interval(difference)


def areas(scores: np.ndarray, labels: np.ndarray, files: np.ndarray, weights: np.ndarray, some: np.ndarray) -> Areas:
    """The areas of scores (S, N) of bool labels (S, N) for `some` concepts, bool (N,); resamples as `resamples`."""
    each, drawn = np.full(len(some), np.nan), np.full((len(some), len(weights)), np.nan)
    for concept in np.flatnonzero(some):
        found = wins_of(scores[:, concept], labels[:, concept], files, weights.shape[1])
        each[concept] = found.areas(np.ones((1, weights.shape[1])))[0]
        drawn[concept] = found.areas(weights)
    return Areas(each, drawn)


def summary(log_probability: np.ndarray, labels: np.ndarray, some: np.ndarray) -> dict[str, float]:
    """Figures over `some` concepts, bool (N,), of log-probabilities (S, N) and bool labels (S, N).

    micro_auc   the area under the ROC curve of all pairs of case and concept together
    macro_ap    the mean over concepts of the average precision; prevalence, that of an unordered list
    ece         expected calibration error of the probabilities of all pairs, in 15 bins of equal size
    """
    scores, truth = log_probability[:, some], labels[:, some]
    each = [average_precision(scores[:, i], truth[:, i]) for i in range(scores.shape[1])]
    bins = reliability(np.exp(scores.ravel()), truth.ravel())
    return {
        "micro_auc": roc_auc(scores.ravel(), truth.ravel()),
        "macro_ap": float(np.mean(each)),
        "prevalence": float(truth.mean()),
        "ece": float(calibration_error(bins)),
    }


def resampled_ratio(
    above: np.ndarray, below: np.ndarray, files: Sequence[int] | np.ndarray, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """sum(above) / sum(below) of parts (P,) each, and its 95% interval over the files, (P,), that they are of."""
    _, number = np.unique(np.asarray(files), return_inverse=True)
    tops, bottoms = np.bincount(number, above), np.bincount(number, below)
    weights = resamples(len(tops), seed)
    drawn = (weights @ tops) / np.where((weights @ bottoms) == 0, np.nan, weights @ bottoms)
    return float(tops.sum() / bottoms.sum()), interval(drawn)
