"""Fitted quality on public outcomes: how much of the gap between two models is recovered, and at what share of calls.

`python benchmarks/routing_quality.py outcomes.jsonl.gz --out benchmarks/results/routing-quality`. The file has lines of
`source`, `prompt`, `weak` and `strong`.

Five times the subjects are dealt into five folds and held out as a whole; once the rows are. On the same folds stand
two logistic regressions on hashed words, pairs of words and groups of characters (the reference), the prompt's length,
random order and the oracle. APGR is the mean over the folds of a deal, each ranked by its own model, and over deals.
Intervals are of 2,000 bootstraps over subjects, each the same for all deals and sides. The model's calibration is
fitted within the training rows, on folds of its own. Its constants were chosen on the subjects that `in_design` names,
by their APGR when held out. That backends share a factor of their calibration was decided on all subjects.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_union

from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.router.quality_fit import PARTS, apgr, auc, calibration_error, cpt, curve, fit_quality, folds_of
from daguerre.router.quality_rows import Outcomes
from daguerre.router.reading import read
from daguerre.view.charts import BLUE, GRAY, GREEN, new_figure

FOLDS, INNER = 5, 3
SPLITS = {"unknown subjects": (0, 1, 2, 3, 4), "known subjects": (None,)}
"""The seeds that subjects are dealt with; None: rows are."""
BARS = {"unknown subjects": 0.60, "known subjects": 0.64}
DRAWS = 2000
SIDES = ("fitted", "reference", "length", "oracle")
COLORS = {"fitted": BLUE, "reference": GREEN, "length": GRAY}
GRID = np.linspace(0, 1, 101)
LEAST_DRAWN = 0.02
"""Drawn folds whose mean gain is not above it are left out."""
Run = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The fold of each row, and the chances by the fitted model and by the reference, (N, 2)."""
LEAST_GAP = 0.03
"""Subjects whose gap is smaller have no APGR of their own."""


@dataclass(frozen=True)
class Data:
    """outcomes: of weak and strong; subjects, gains (strong right less weak right) and prompts of N rows."""

    outcomes: Outcomes
    prompts: list[str]

    @property
    def subjects(self) -> np.ndarray:
        return self.outcomes.groups

    @property
    def gains(self) -> np.ndarray:
        return self.outcomes.right[:, 1] - self.outcomes.right[:, 0]


def read_data(path: Path) -> Data:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    right = np.array([[row["weak"], row["strong"]] for row in rows], float)
    readings = [read("completions", {"prompt": row["prompt"]}) for row in rows]
    return Data(
        Outcomes(
            readings=readings,
            backends=("weak", "strong"),
            right=right,
            weights=np.ones_like(right),
            groups=np.array([row["source"] for row in rows]),
            named=np.ones(len(rows), bool),
        ),
        [row["prompt"] for row in rows],
    )


def in_design(subject: str) -> bool:
    """Whether the model's constants were chosen on a subject."""
    return zlib.crc32(b"design" + subject.encode()) % 2 == 0


def counted(prompts: list[str]) -> Any:
    """What the reference reads of prompts, a sparse matrix."""
    grams = make_union(
        HashingVectorizer(n_features=2**18, ngram_range=(1, 2)),
        HashingVectorizer(n_features=2**18, analyzer="char_wb", ngram_range=(3, 5)),
    )
    return grams.transform(prompts).tocsr()


def reference(counts: Any, data: Data, inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """P(right) of both backends by two logistic regressions on hashed n-grams."""
    found = [
        LogisticRegression(solver="liblinear").fit(counts[inside], right[inside]).predict_proba(counts[outside])[:, 1]
        for right in data.outcomes.right.T
    ]
    return np.array(found).T


def run_deal(path: Path, seed: int | None) -> Run:
    """Hold out each fold of a deal."""
    data = read_data(path)
    rows, counts = len(data.prompts), counted(data.prompts)
    if seed is None:
        place = np.random.default_rng(0).integers(0, FOLDS, rows)
    else:
        place = folds_of(data.subjects, FOLDS, seed)
    own, theirs = np.zeros((rows, 2)), np.zeros((rows, 2))
    for fold in range(FOLDS):
        inside, outside = np.flatnonzero(place != fold), np.flatnonzero(place == fold)
        model = fit_quality(data.outcomes.of(inside), INNER)
        assert model.backends == ("weak", "strong")
        own[outside] = [list(model.predict(data.outcomes.readings[row]).values()) for row in outside.tolist()]
        theirs[outside] = reference(counts, data, inside, outside)
        print(f"deal {seed}, fold {fold}", flush=True)
    return place, own, theirs


def mean_apgr(score: np.ndarray, gains: np.ndarray, places: list[np.ndarray]) -> float:
    """The mean over folds, each given by its rows."""
    return float(np.mean([apgr(score[rows], gains[rows]) for rows in places]))


def weighted_apgr(score: np.ndarray, gains: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """APGR of N rows that are taken `weights` (D, N) times each, for each of D draws; NaN where there is no gain."""
    order = np.argsort(-score, kind="stable")
    starts = np.flatnonzero(np.diff(-score[order], prepend=-np.inf))
    drawn = weights[:, order]
    sizes = np.add.reduceat(drawn, starts, axis=1)
    parts = np.add.reduceat(drawn * gains[order], starts, axis=1)
    rows, total = sizes.sum(axis=1), parts.sum(axis=1)
    area = ((np.cumsum(parts, axis=1) - parts / 2) * sizes).sum(axis=1)
    some = total > LEAST_DRAWN * rows
    return np.where(some, area / np.where(some, rows * total, 1), np.nan)


def folds_in(place: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    folds = [np.flatnonzero(mask & (place == fold)) for fold in range(FOLDS)]
    return [rows for rows in folds if len(rows)]


def bootstrapped(scores: list[np.ndarray], data: Data, runs: list[Run], mask: np.ndarray) -> np.ndarray:
    """The mean APGR of a side over deals, for draws of subjects with replacement, which are the same for every side."""
    names, of_row = np.unique(data.subjects, return_inverse=True)
    drawn = np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), DRAWS).astype(float)
    return np.mean(
        [
            np.nanmean(
                [
                    weighted_apgr(score[rows], data.gains[rows], drawn[:, of_row[rows]])
                    for rows in folds_in(place, mask)
                ],
                axis=0,
            )
            for score, (place, _, _) in zip(scores, runs, strict=True)
        ],
        axis=0,
    )


def within(score: np.ndarray, gains: np.ndarray, subjects: np.ndarray, place: np.ndarray, mask: np.ndarray) -> float:
    """APGR where only rows of one subject and fold are ranked against each other, in proportion to their gain."""
    total = recovered = 0.0
    for name in set(subjects[mask]):
        for fold in range(FOLDS):
            rows = np.flatnonzero(mask & (subjects == name) & (place == fold))
            gain = gains[rows].sum()
            if gain:
                recovered += apgr(score[rows], gains[rows]) * gain
                total += gain
    return recovered / total


def interval(values: np.ndarray) -> list[float]:
    return [round(float(one), 4) for one in np.percentile(values, [2.5, 97.5])]


def judged(data: Data, runs: list[Run], mask: np.ndarray) -> dict[str, Any]:
    """All numbers of a split over some rows, the means over its deals."""
    gains, subjects, length = data.gains, data.subjects, np.array([float(len(one)) for one in data.prompts])
    scores = {
        "fitted": [own[:, 1] - own[:, 0] for _, own, _ in runs],
        "reference": [theirs[:, 1] - theirs[:, 0] for _, _, theirs in runs],
        "length": [length] * len(runs),
        "oracle": [gains] * len(runs),
    }
    places = [place for place, _, _ in runs]
    draws = {name: bootstrapped(each, data, runs, mask) for name, each in scores.items()}
    said: dict[str, Any] = {"rows": int(mask.sum()), "subjects": len(set(subjects[mask]))}
    for name, each in scores.items():
        both = list(zip(each, places, strict=True))
        deals = [mean_apgr(score, gains, folds_in(place, mask)) for score, place in both]
        said[name] = {
            "apgr": round(float(np.mean(deals)), 4),
            "interval": interval(draws[name]),
            "deals": np.round(deals, 4).tolist(),
            "within_subjects": round(np.mean([within(one, gains, subjects, place, mask) for one, place in both]), 4),
        }
    for name in ("reference", "length"):
        less = draws["fitted"] - draws[name]
        said[f"over_{name}"] = {
            "apgr": round(said["fitted"]["apgr"] - said[name]["apgr"], 4),
            "interval": interval(less),
            "above_0": round(float((less > 0).mean()), 4),
        }
    said["curves"] = {
        name: np.mean(
            [
                np.interp(GRID, np.linspace(0, 1, len(rows) + 1), curve(score[rows], gains[rows]))
                for score, place in zip(scores[name], places, strict=True)
                for rows in folds_in(place, mask)
            ],
            axis=0,
        )
        .round(4)
        .tolist()
        for name in COLORS
    }
    said["chances"] = {
        side: {
            name: mean_scored([run[which][mask, at] for run in runs], data.outcomes.right[mask, at])
            for at, name in enumerate(data.outcomes.backends)
        }
        for which, side in ((1, "fitted"), (2, "reference"))
    }
    return said


def mean_scored(deals: list[np.ndarray], right: np.ndarray) -> dict[str, float]:
    found = [scored(chances, right) for chances in deals]
    return {name: round(float(np.mean([one[name] for one in found])), 4) for name in found[0]}


def scored(chances: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    ones, chances = np.ones_like(right), np.clip(chances, 1e-9, 1 - 1e-9)
    loss = -(right * np.log(chances) + (1 - right) * np.log(1 - chances)).mean()
    found: dict[str, Any] = {"loss": loss, "brier": ((chances - right) ** 2).mean()}
    found |= {"ece": calibration_error(chances, right, ones), "auc": auc(chances, right, ones)}
    return found


def by_subject(data: Data, runs: list[Run]) -> list[dict[str, Any]]:
    """Each subject's rows, shares of right answers and APGR of its own rows: the mean over the deals."""
    out = []
    for name in sorted(set(data.subjects)):
        rows = np.flatnonzero(data.subjects == name)
        gains = data.gains[rows]
        line: dict[str, Any] = {"subject": name, "rows": len(rows), "design": in_design(name)}
        line |= dict(zip(("weak", "strong"), data.outcomes.right[rows].mean(axis=0).round(3).tolist(), strict=True))
        if gains.mean() >= LEAST_GAP:
            for at, side in ((1, "fitted"), (2, "reference")):
                line[side] = round(float(np.mean([apgr(one[at][rows] @ [-1, 1], gains) for one in runs])), 3)
            line["length"] = round(apgr(np.array([float(len(data.prompts[row])) for row in rows]), gains), 3)
        out.append(line)
    return out


def picture(said: dict[str, Any]) -> Any:
    figure = new_figure(10, 4.2)
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), SPLITS, strict=True):
        one = said["splits"][kind]
        for name, color in COLORS.items():
            label = f"{name}, APGR {one[name]['apgr']:.3f}"
            axes.plot(GRID, one["curves"][name], color=color, label=label)
        axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":", label="random, APGR .5")
        axes.set(title=kind, xlabel="share of requests to the stronger model", xlim=(0, 1), ylim=(0, 1.08))
        axes.legend(frameon=False, loc="lower right")
        axes.grid(alpha=0.2)
    figure.axes[0].set_ylabel("part of the gap recovered")
    return figure


def page(said: dict[str, Any]) -> str:
    """The results as markdown."""
    sides, splits = (*COLORS, "random"), said["splits"].items()
    recovered = [
        [split, side, f"{each['apgr']:.3f}", f"{each['interval'][0]:.3f} to {each['interval'][1]:.3f}",
         " ".join(f"{value:.3f}" for value in each["deals"]), f"{each['within_subjects']:.3f}"]
        for split, one in splits for side, each in ((side, one[side]) for side in SIDES)
    ]  # fmt: skip
    less = [
        [split, side, f"{each['apgr']:+.3f}", f"{each['interval'][0]:+.3f} to {each['interval'][1]:+.3f}",
         f"{each['above_0']:.1%}"]
        for split, one in splits for side, each in ((side, one[f"over_{side}"]) for side in ("reference", "length"))
    ]  # fmt: skip
    shares = list[list[str]]()
    for split, one in splits:
        curves = {side: np.array(one["curves"][side]) for side in COLORS}
        parts = {side: [f"{cpt(each, part):.2f}" for part in PARTS.values()] for side, each in curves.items()}
        shares += [[split, side, *each] for side, each in (parts | {"random": ["0.50", "0.80"]}).items()]
    chances = [
        [split, side, name, *(f"{each[key]:.3f}" for key in ("loss", "brier", "ece", "auc"))]
        for split, one in splits for side, models in one["chances"].items() for name, each in models.items()
    ]  # fmt: skip
    subjects = []
    for subject in said["subjects"]:
        one = {"random": 0.5, **subject} if "fitted" in subject else subject
        numbers = [f"{one[key]:.3f}" if key in one else "" for key in ("weak", "strong", *sides)]
        subjects.append([one["subject"], one["rows"], *numbers, "yes" if one["design"] else "no"])
    header = ("held-out subject", "rows", "weak", "strong", *sides, "constants chosen on it")
    return "\n\n".join(
        [
            table(["split", "side", "APGR", "95% interval", "deals", "within subjects"], recovered, left=2),
            table(["split", "fitted less", "APGR", "95% interval", "draws above 0"], less, left=2),
            table(["split", "side", "CPT(.5)", "CPT(.8)"], shares, left=2),
            "CPT(x): the least share of requests to the stronger model at which the mean curve has x of the gap.",
            table(["split", "side", "model", "log loss", "Brier", "ECE", "AUC"], chances, left=3),
            table(header, subjects),
            f"Blank: the stronger model is not {LEAST_GAP} better there, too little for an APGR.\n"
            "Random order has .5 of any gap.\n",
        ]
    )


def main() -> None:
    """Run all splits and write the table, the numbers and the picture."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("data", type=Path)
    options.add_argument("--out", type=Path, required=True, help="where the files go, without their ending")
    options.add_argument("--jobs", type=int, default=1)
    given = options.parse_args()
    began, data = time.monotonic(), read_data(given.data)
    with ProcessPoolExecutor(given.jobs) as pool:
        seeds = [seed for some in SPLITS.values() for seed in some]
        deals = dict(zip(seeds, pool.map(run_deal, [given.data] * len(seeds), seeds), strict=True))
    runs = {name: [deals[seed] for seed in some] for name, some in SPLITS.items()}
    design = np.array([in_design(name) for name in data.subjects])
    said: dict[str, Any] = {"machine": machine_facts(), "splits": {}}
    for name, some in runs.items():
        said["splits"][name] = judged(data, some, np.ones(len(design), bool))
        said["splits"][f"{name}, not of the design"] = judged(data, some, ~design)
    said["bars"] = BARS
    said["subjects"] = by_subject(data, runs["unknown subjects"])
    said["seconds"] = round(time.monotonic() - began)
    publish(given.out, said, page(said), picture(said))


if __name__ == "__main__":
    main()
