"""What controls of detection learn from: the presence of visible tokens, or pooled hidden states.

Letters: S cases, P features, V vocabulary, R scored rows, D width, N concepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.evals.concepts.cases import ConceptCase, Condition
from daguerre.models.core.config import ModelConfig


class CaseFeatures(Protocol):
    """Features of cases, a matrix X (S, P)."""

    @property
    def width(self) -> int:
        """P."""

    def product(self, weight: Tensor) -> Tensor:
        """X W, (S, N), of weights (P, N)."""

    def take(self, which: np.ndarray) -> CaseFeatures:
        """The rows of some cases, bool (S,)."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Features float32 (S, P)."""

    values: Tensor

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def product(self, weight: Tensor) -> Tensor:
        return self.values @ weight

    def take(self, which: np.ndarray) -> Dense:
        return Dense(self.values[torch.from_numpy(np.flatnonzero(which))])


@dataclass(frozen=True, eq=False)
class Presence:
    """Features that are 0 or 1: case s has `columns[ends[s - 1] : ends[s]]`, int64, of P = `width`."""

    columns: np.ndarray
    ends: np.ndarray
    width: int

    def product(self, weight: Tensor) -> Tensor:
        out: Tensor = _Sum.apply(weight, self)
        return out

    def transposed_product(self, values: Tensor) -> Tensor:
        """X'Y, (P, N), of Y (S, N)."""
        rows, starts = self._transposed
        return F.embedding_bag(rows, values, starts, mode="sum")

    def take(self, which: np.ndarray) -> Presence:
        parts = np.split(self.columns, self.ends[:-1])
        some = [parts[row] for row in np.flatnonzero(which)]
        joined = np.concatenate(some) if some else self.columns[:0]
        return Presence(joined, np.cumsum([len(part) for part in some], dtype=np.int64), self.width)

    @cached_property
    def starts(self) -> Tensor:
        """Where the features of each case begin, int64 (S,)."""
        return torch.from_numpy(np.concatenate([[0], self.ends[:-1]]).astype(np.int64)[: len(self.ends)])

    @cached_property
    def _transposed(self) -> tuple[Tensor, Tensor]:
        """The cases of each feature, and where they begin, int64 (P,)."""
        rows = np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))
        order = np.argsort(self.columns, kind="stable")
        starts = np.searchsorted(self.columns[order], np.arange(self.width))
        return torch.from_numpy(rows[order]), torch.from_numpy(starts)


class _Sum(torch.autograd.Function):
    """X W of a `Presence`, whose gradient, X'G, is a sum over the cases of each feature."""

    @staticmethod
    def forward(context: Any, weight: Tensor, features: Presence) -> Tensor:
        context.features = features
        return F.embedding_bag(torch.from_numpy(features.columns), weight, features.starts, mode="sum")

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.features.transposed_product(gradient.contiguous()), None


def presence(cases: Sequence[ConceptCase], condition: Condition, config: ModelConfig) -> Presence:
    """Which tokens are visible, (S, 2V): those of the prefix, then those of the span."""
    rows = []
    for case in cases:
        prefix, span = case.visible(condition, config)
        rows.append(np.concatenate([np.unique(prefix), config.vocab_size + np.unique(span)]))
    joined = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    return Presence(joined.astype(np.int64), ends, 2 * config.vocab_size)


def pooled(train: np.ndarray, *others: np.ndarray) -> tuple[Dense, ...]:
    """The mean and the maximum of each case's rows (S, R, D): (S, 2D), with mean 0 and variance 1 in the first set."""
    first, *more = (_mean_and_maximum(rows) for rows in (train, *others))
    mean, scale = first.mean(dim=0), first.std(dim=0).clamp_min(1e-6)
    return tuple(Dense((some - mean) / scale) for some in (first, *more))


def _mean_and_maximum(rows: np.ndarray) -> Tensor:
    out = np.empty((len(rows), 2 * rows.shape[2]), dtype=np.float32)
    for number, some in enumerate(rows):
        wide = some.astype(np.float32)
        out[number] = np.concatenate([wide.mean(axis=0), wide.max(axis=0)])
    return torch.from_numpy(out)
