"""Fit P(right) of each backend, and say how it does on groups of requests that it has not seen.

scikit-learn is needed here, and only here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daguerre.errors import DataError, MissingExtra
from daguerre.router.measures import ROWS, counted, distinct, ends, hashes, measured, rarity, text_of
from daguerre.router.quality import QualityModel, standard
from daguerre.router.quality_rows import Outcomes
from daguerre.router.trees import plant

Array = NDArray[np.float64]
PENALTY = 100.0
"""Of the squares of the weights of measures, in the sum of log losses over rows."""
GROUP_PENALTY = 10.0
"""Of the squares of a constant of each group, which is fitted beside the weights and then left out, so that how hard a
subject is as a whole says less about its words."""
GRAM_PENALTY = 1.0
NUMBER, LEAF, LOOKED_AT, LEAF_PRIOR = 100, 25, 0.15, 1.0
"""Of the forest: trees, the fewest requests in a leaf, the share of measures that a cut is chosen from, and how many
requests as right as the backend's mean a leaf has beside its own."""
GROUPS, ROWS_OF_GROUP = 300, 10
"""Constants are for so many groups at most, and only for those with so many rows."""
FOLDS = 5
LEAST, LEAST_OF_KIND = 200, 20
"""Graded answers that a backend needs, and how many of them right, and wrong."""
BINS = 10
SEED = 0
CONSTANT = 1e-6
"""A measure that spreads less is the same in all rows."""
GAP = 0.01
"""Backends whose shares of right answers differ by less are not ranked."""
PARTS = {"cpt_50": 0.5, "cpt_80": 0.8}
"""Parts of the gap whose shares of requests a report has."""


@dataclass(frozen=True, kw_only=True)
class BackendReport:
    """A backend's predictions for groups that were held out. loss: log loss; `constant`: that of the share of right
    answers alone; ece: expected calibration error over bins of equal numbers of rows.
    """

    rows: int
    right: float
    loss: float
    constant: float
    brier: float
    ece: float
    auc: float | None


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """APGR of sending the requests with the highest P(strong right) - P(weak right) to the stronger of two backends,
    the mean over folds of groups that were held out; random order has .5. length: the longest first. cpt_50, cpt_80:
    the least share of requests to the stronger one that recovers half, or .8, of the gap; random order needs as much.
    """

    weak: str
    strong: str
    rows: int
    apgr: float | None
    length: float | None
    oracle: float | None
    cpt_50: float | None
    cpt_80: float | None


def fit_quality(given: Outcomes, folds: int = FOLDS, seed: int = SEED) -> QualityModel:
    """The model of all outcomes, with its report of held-out groups. Backends with too few graded answers are left out,
    and named in the report. DataError where none remains, or there are fewer groups than folds.
    """
    _need_sklearn()
    kept, why = _enough(given)
    if not kept:
        raise DataError(
            f"too few graded answers to fit: {'; '.join(why)}. A backend needs {LEAST}, {LEAST_OF_KIND} of them right "
            f"and {LEAST_OF_KIND} wrong"
        )
    some = Prepared.of(given.of(np.flatnonzero((given.weights[:, kept] > 0).any(axis=1)), kept))
    place = folds_of(some.given.groups, folds, seed)
    logits = held_out(some, place)
    report = {
        "rows": len(some.given.readings),
        "groups": len(set(some.given.groups.tolist())),
        "folds": folds,
        "left_out": why,
        "unused": dict(given.unused),
        **reported(some.given, place, logits),
    }
    return _fit(some, scales_of(logits, some.given), report)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Outcomes with what every fold reads of their requests: measures but RARITY, (N, M - 4), and hashes."""

    given: Outcomes
    values: Array
    places: Sequence[NDArray[np.int64]]

    @classmethod
    def of(cls, given: Outcomes) -> Prepared:
        """Read all requests."""
        values = np.array([measured(reading) for reading in given.readings])
        places = [hashes(ends(text_of(reading))) for reading in given.readings]
        return cls(given=given, values=values, places=places)

    def some(self, rows: NDArray[np.int64]) -> Prepared:
        """Some of the requests."""
        return Prepared(given=self.given.of(rows), values=self.values[rows], places=[self.places[row] for row in rows])


def held_out(some: Prepared, place: NDArray[np.int64]) -> Array:
    """Logits (N, B) for each row by a model of the other folds. DataError where a fold leaves a backend without right
    or without wrong answers.
    """
    out = np.zeros(some.given.right.shape)
    for fold in sorted(set(place.tolist())):
        inside, outside = some.some(np.flatnonzero(place != fold)), np.flatnonzero(place == fold)
        if len(_enough(inside.given, least=1)[0]) < len(inside.given.backends):
            raise DataError("a backend's right or wrong answers are all of a few groups: grade more kinds of requests")
        model = _fit(inside, np.tile([1.0, 0.0], (len(inside.given.backends), 1)), {})
        out[outside] = [model.logits(some.given.readings[row]) for row in outside.tolist()]
    return out


def _fit(some: Prepared, scales: Array, report: dict[str, Any]) -> QualityModel:
    given, counts, num = some.given, counted(some.places), len(some.places)
    values = np.hstack([some.values, [rarity(places, counts, num, own=1) for places in some.places]])
    center, spread = values.mean(axis=0).astype(np.float32), values.std(axis=0).astype(np.float32)
    spread[spread < CONSTANT] = 0
    measures = standard(values, center, spread)
    dense = np.hstack([measures / PENALTY**0.5, _constants(given) / GROUP_PENALTY**0.5])
    grams, size, found = gram_matrix(some.places), values.shape[1], list[tuple[Array, float, Array, float]]()
    for right, weight in zip(given.right.T, given.weights.T, strict=True):
        found.append((*_logistic(dense, right, weight, "newton-cholesky", 1.0), *_logistic(grams, right, weight)))
    return QualityModel(
        backends=given.backends,
        requests=num,
        counts=counts,
        center=center,
        spread=spread,
        weights=np.array([one[0][:size] / PENALTY**0.5 for one in found], np.float32).T,
        bias=np.array([one[1] for one in found], np.float32),
        grams=np.array([one[2] for one in found]).T.astype(np.float16),
        shift=np.array([one[3] for one in found], np.float32),
        trees=plant(measures, given.right, given.weights, NUMBER, LEAF, LOOKED_AT, LEAF_PRIOR),
        scales=scales.astype(np.float32),
        report=report,
    )


def gram_matrix(texts: Sequence[NDArray[np.int64]]) -> Any:
    """The hashes of texts as a sparse matrix of SciPy's, each row of length 1."""
    from scipy.sparse import csr_array

    found = [distinct(places) for places in texts]
    starts = np.cumsum([0, *map(len, found)])
    values = np.concatenate([np.full(len(one), 1 / max(len(one), 1) ** 0.5) for one in found])
    return csr_array((values, np.concatenate(found), starts), shape=(len(texts), ROWS))


def _constants(given: Outcomes) -> Array:
    """A column for each large group that the file names, 1 in its rows."""
    names, place, sizes = np.unique(given.groups, return_inverse=True, return_counts=True)
    named = np.zeros(len(names), bool)
    named[place] = given.named
    large = [one for one in np.argsort(-sizes, kind="stable") if named[one] and sizes[one] >= ROWS_OF_GROUP]
    return np.asarray(place[:, None] == np.array(large[:GROUPS], np.int64)[None, :], np.float64)


def _logistic(
    values: Any, right: Array, weights: Array, solver: str = "newton-cg", strength: float = 1 / GRAM_PENALTY
) -> tuple[Array, float]:
    """Weights and constant of a logistic regression on the rows whose outcome is known. An outcome between 0 and 1 is a
    right and a wrong answer, with a part of the weight each.
    """
    from scipy.sparse import issparse, vstack
    from sklearn.linear_model import LogisticRegression

    known = np.flatnonzero(weights > 0)
    parts = [(known[right[known] > 0], 1), (known[right[known] < 1], 0)]
    rows = np.concatenate([some for some, _ in parts])
    labels = np.concatenate([np.full(len(some), kind) for some, kind in parts])
    share = np.where(labels == 1, right[rows], 1 - right[rows]) * weights[rows] / weights[known].mean()
    model = LogisticRegression(
        C=strength, solver=solver, max_iter=300, tol=1e-6 if solver == "newton-cholesky" else 1e-4
    )
    picked = vstack([values[some] for some, _ in parts]).tocsr() if issparse(values) else values[rows]
    model.fit(picked, labels, sample_weight=share)
    return model.coef_[0], float(model.intercept_[0])


def scales_of(logits: Array, given: Outcomes) -> Array:
    """The factor and the constant that make a backend's logits probabilities (Platt, 1999), (B, 2). The factor is that
    of all backends: factors of their own, fitted on few groups, would blur which backend is the better one.
    """
    rows, backends = np.nonzero(given.weights > 0)
    right, weights = given.right[rows, backends], given.weights[rows, backends]
    kinds = np.eye(len(given.backends))[backends]
    columns = np.hstack([logits[rows, backends, None], kinds[:, 1:]])
    (factor, *more), constant = _logistic(columns, right, weights, "newton-cholesky", 1e6)
    if factor > 0:
        return np.column_stack([np.full(len(more) + 1, factor), constant + np.array([0.0, *more])])
    share = kinds.T @ (right * weights) / (kinds.T @ weights)
    return np.column_stack([np.zeros(len(share)), np.log(share / (1 - share))])


def folds_of(groups: NDArray[np.str_], folds: int, seed: int) -> NDArray[np.int64]:
    """The fold of each row: groups are shuffled, and each goes where there are fewest rows so far. DataError where
    there are fewer groups than folds.
    """
    names, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < folds:
        raise DataError(f"{len(names)} groups are too few to hold out: give at least {folds}, or no `group` at all")
    of_group, load = np.zeros(len(names), np.int64), np.zeros(folds)
    for one in np.random.default_rng(seed).permutation(len(names)):
        of_group[one] = load.argmin()
        load[of_group[one]] += sizes[one]
    return of_group[place]


def reported(given: Outcomes, place: NDArray[np.int64], logits: Array) -> dict[str, Any]:
    """How held-out logits do: each fold is calibrated on the other folds."""
    chances = np.zeros_like(logits)
    for fold in sorted(set(place.tolist())):
        inside, outside = np.flatnonzero(place != fold), np.flatnonzero(place == fold)
        scales = scales_of(logits[inside], given.of(inside))
        chances[outside] = 1 / (1 + np.exp(-(scales[:, 0] * logits[outside] + scales[:, 1])))
    length = np.array([float(len(text_of(reading))) for reading in given.readings])
    pairs = [
        asdict(_pair(given, place, chances, length, one, other))
        for one, other in combinations(range(len(given.backends)), 2)
    ]
    return {
        "backends": {
            name: asdict(_of_backend(given.right[:, at], given.weights[:, at], chances[:, at]))
            for at, name in enumerate(given.backends)
        },
        "pairs": pairs,
    }


def _of_backend(right: Array, weights: Array, chances: Array) -> BackendReport:
    known = weights > 0
    right, weights, chances = right[known], weights[known], np.clip(chances[known], 1e-9, 1 - 1e-9)
    share = float(np.average(right, weights=weights))
    losses = -(right * np.log(chances) + (1 - right) * np.log(1 - chances))
    return BackendReport(
        rows=len(right),
        right=share,
        loss=float(np.average(losses, weights=weights)),
        constant=float(-(share * np.log(share) + (1 - share) * np.log(1 - share))),
        brier=float(np.average((chances - right) ** 2, weights=weights)),
        ece=calibration_error(chances, right, weights),
        auc=auc(chances, right, weights),
    )


def calibration_error(chances: Array, right: Array, weights: Array) -> float:
    """The weighted mean over bins of |mean probability - share of right answers|; rows sorted into bins of one size."""
    total = 0.0
    for rows in np.array_split(np.argsort(chances, kind="stable"), BINS):
        if weights[rows].sum() > 0:
            total += abs(float(weights[rows] @ (chances[rows] - right[rows])))
    return total / float(weights.sum())


def auc(chances: Array, right: Array, weights: Array) -> float | None:
    """The area under the curve, an outcome of .5 or more being right; None where all are of one kind."""
    from sklearn.metrics import roc_auc_score

    labels = right >= 0.5
    if labels.all() or not labels.any():
        return None
    return float(roc_auc_score(labels, chances, sample_weight=weights))


def _pair(given: Outcomes, place: NDArray[np.int64], chances: Array, length: Array, one: int, other: int) -> PairReport:
    known = (given.weights[:, [one, other]] > 0).all(axis=1)
    if known.any() and given.right[known, one].mean() > given.right[known, other].mean():
        one, other = other, one
    gain, score = given.right[:, other] - given.right[:, one], chances[:, other] - chances[:, one]
    scores, sums = {"apgr": score, "length": length, "oracle": gain}, dict[str, list[float]]()
    for fold in sorted(set(place.tolist())):
        rows = known & (place == fold)
        if not rows.any() or gain[rows].mean() < GAP:
            continue
        for name, values in scores.items():
            sums.setdefault(name, []).append(apgr(values[rows], gain[rows]))
        for name, part in PARTS.items():
            sums.setdefault(name, []).append(cpt(curve(score[rows], gain[rows]), part))
    found = {name: float(np.mean(sums[name])) if name in sums else None for name in (*scores, *PARTS)}
    return PairReport(weak=given.backends[one], strong=given.backends[other], rows=int(known.sum()), **found)


def curve(scores: Array, gains: Array) -> Array:
    """PGR(c), the part of the gap recovered when the share c = n/N of requests with the highest scores goes to the
    stronger backend, for n of 0 to N. gains: right of the stronger less right of the weaker. Equal scores share theirs.
    """
    _, place = np.unique(-scores, return_inverse=True)
    shared = (np.bincount(place, gains) / np.bincount(place))[place]
    sums = np.cumsum(shared[np.argsort(-scores, kind="stable")])
    return np.concatenate([[0.0], sums]) / gains.sum()


def apgr(scores: Array, gains: Array) -> float:
    """The mean of PGR(c) over c of 0 to 1, by trapezoids."""
    found = curve(scores, gains)
    return float((found[1:] + found[:-1]).mean() / 2)


def cpt(found: Array, part: float) -> float:
    """The least share c of requests at which a curve of PGR(c), for c of 0 to 1, has this part of the gap."""
    return float(np.argmax(found >= part)) / (len(found) - 1)


def _enough(given: Outcomes, least: int = LEAST) -> tuple[list[int], list[str]]:
    """The backends with enough graded answers, and what the others lack."""
    kept, why = list[int](), list[str]()
    for place, name in enumerate(given.backends):
        right = given.right[given.weights[:, place] > 0, place]
        good, bad = float(right.sum()), float((1 - right).sum())
        if len(right) >= least and min(good, bad) >= min(LEAST_OF_KIND, least):
            kept.append(place)
        else:
            why.append(f"{name} has {len(right)}, {good:g} right and {bad:g} wrong")
    return kept, why


def _need_sklearn() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise MissingExtra("scikit-learn", "fit") from None
