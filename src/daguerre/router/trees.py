"""A forest of extremely randomized trees (Geurts et al., 2006) as plain arrays: what each backend's share of right
answers is among the training requests that fell into the same leaves.

One forest is for all backends, so that what is random about it is the same for each and does not blur which is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daguerre.errors import DataError

Array = NDArray[np.float64]
DEEPEST = 64
"""Levels that a tree may have."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Forest:
    """T trees with N nodes in all, for B backends.

    roots    int32 (T,): where each tree begins
    columns  int16 (N,): the measure that a node asks for
    cuts     float32 (N,): up to which a request goes to the first child, above it to the next node after that; a leaf
             has infinity, and is its own child
    children int32 (N,)
    leaves   float16 (N, B): shares of right answers
    """

    roots: NDArray[np.int32]
    columns: NDArray[np.int16]
    cuts: NDArray[np.float32]
    children: NDArray[np.int32]
    leaves: NDArray[np.float16]

    def of(self, values: NDArray[Any]) -> Array:
        """The share of right answers of each backend, the mean over trees, (B,); of a request with measures (M,)."""
        return np.asarray(self.leaves[self.places(values)].mean(axis=0, dtype=np.float64))

    def places(self, values: NDArray[Any]) -> NDArray[np.int32]:
        """The leaf of each tree, (T,)."""
        held, at = values.astype(np.float32), self.roots
        for _ in range(DEEPEST):
            below = self.children[at] + (held[self.columns[at]] > self.cuts[at])
            if (below == at).all():
                break
            at = below
        return at

    def check(self, measures: int, path: object) -> None:
        """DataError where a node names what there is not."""
        num = len(self.columns)
        ends = self.children == np.arange(num)
        sound = len(self.roots) and num and not ((self.columns < 0) | (self.columns >= measures)).any()
        sound = sound and not ((self.roots < 0) | (self.roots >= num)).any()
        sound = sound and not ((self.children < 0) | (self.children + ~ends >= num)).any()
        if not sound or np.isnan(self.cuts).any() or not np.isposinf(self.cuts[ends]).all():
            raise DataError(f"{path} holds no valid trees: run `daguerre route fit` again")


def plant(values: Array, right: Array, weights: Array, number: int, leaf: int, share: float, prior: float) -> Forest:
    """A forest of `number` trees, each leaf of `leaf` requests at least, that looks at a `share` of the measures for
    each cut. Where the trees cut depends on all outcomes, unknown ones taken as the backend's mean. A leaf has the
    weighted mean of the known ones and of `prior` requests that are as the backend's mean.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    known = weights > 0
    means = (np.where(known, right, 0.0) * weights).sum(axis=0) / weights.sum(axis=0)
    filled = np.where(known, right, means)
    each = weights.sum(axis=1) / weights.sum(axis=1).mean()
    found = ExtraTreesRegressor(number, min_samples_leaf=leaf, max_features=share, random_state=0)
    found.fit(values, filled if len(means) > 1 else filled[:, 0], sample_weight=each)
    places, parts, start = found.apply(values), list[tuple[Any, ...]](), 0
    for at, tree in enumerate(one.tree_ for one in found.estimators_):
        order = _children_together(tree.children_left, tree.children_right)
        new = np.argsort(order)
        inner = tree.children_left[order] >= 0
        child = np.where(inner, new[tree.children_left[order]], np.arange(len(order)))
        cuts = np.where(inner, _below(tree.threshold[order]), np.inf)
        shares = _shares(new[places[:, at]], len(order), right, weights, prior * means, prior)
        parts.append((start, np.maximum(tree.feature[order], 0), cuts, child + start, shares))
        start += len(order)
    columns = list(zip(*parts, strict=True))
    return Forest(
        roots=np.array(columns[0], np.int32),
        columns=np.concatenate(columns[1]).astype(np.int16),
        cuts=np.concatenate(columns[2]).astype(np.float32),
        children=np.concatenate(columns[3]).astype(np.int32),
        leaves=np.concatenate(columns[4]).astype(np.float16),
    )


def _shares(
    leaf: NDArray[np.int64], num: int, right: Array, weights: Array, more_right: Array, more: float
) -> NDArray[np.float64]:
    """The share of right answers at each of `num` nodes, (num, B), with `more` answers beside those that are known; 0
    where there is none.
    """
    out = np.zeros((num, right.shape[1]))
    for backend, beside in enumerate(more_right):
        row = weights[:, backend] > 0
        weight = weights[row, backend]
        total = np.bincount(leaf[row], weight, num) + more
        sums = np.bincount(leaf[row], weight * right[row, backend], num) + beside
        np.divide(sums, total, out=out[:, backend], where=total > 0)
    return out


def _children_together(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nodes of a tree, level by level, so that the two children of each are neighbors."""
    out, level = [0], [0]
    while level:
        level = [child for node in level if left[node] >= 0 for child in (left[node], right[node])]
        out += level
    return np.array(out, np.int64)


def _below(cuts: Array) -> NDArray[np.float32]:
    """The highest number of 32 bits that is not above each: it parts such numbers as the cut does."""
    near = cuts.astype(np.float32)
    return np.where(near > cuts, np.nextafter(near, np.float32(-np.inf)), near)
