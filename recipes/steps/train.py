"""Train the classifier of step types: `python recipes/steps/train.py [--out steps.npz] [--report report.json]`.

Scores it on families of templates that it was not trained on (five folds; the content of the templates is dealt to the
folds, too), then trains on all rows and writes the arrays. Requests whose operation or suffix says their type are left
out of training and of the scores. Rows recorded from clients are scored apart with --recorded, each file by itself, and
never trained on. With --shipped the package's weights are scored on them as they are, and nothing is trained: a report
that is there must be of these weights, and gets their scores.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rows import FOLDS, SEED, rows
from sklearn.linear_model import LogisticRegression

from daguerre.router.config import STEPS
from daguerre.router.reading import read
from daguerre.router.steps import StepModel, certain_step, likeliest, load_steps, matrix

OUT = Path(__file__).parents[2] / "src" / "daguerre" / "assets" / "router" / "steps.npz"
STRENGTH = 2.0
"""Inverse of the regularization (scikit-learn's C)."""
SOURCES = {
    "recorded": "recorded from clients",
    "recorded_blind": "recorded from clients, blind",
    "recorded_editors": "recorded from editors' plugins",
}
"""What the rows of a file are, by its name."""


def fit(counts: Any, labels: np.ndarray) -> StepModel:
    """The model of features (a row each) and of the places of their types in STEPS."""
    found = LogisticRegression(C=STRENGTH, max_iter=400, tol=1e-4).fit(counts, labels)
    assert list(found.classes_) == list(range(len(STEPS)))
    return StepModel(found.coef_.T.astype(np.float16), found.intercept_.astype(np.float32))


def predicted(model: StepModel, some: Sequence[dict[str, Any]]) -> list[str]:
    read_rows = ((read(row["operation"], row["body"]), row["body"]) for row in some)
    return [likeliest(model.of(reading, body)) for reading, body in read_rows]


def report(actual: Sequence[str], found: Sequence[str]) -> dict[str, Any]:
    """Accuracy, by type, and how often each type is taken for each other."""
    counts = np.zeros((len(STEPS), len(STEPS)), dtype=int)
    for one, other in zip(actual, found, strict=True):
        counts[STEPS.index(one), STEPS.index(other)] += 1
    sums = counts.sum(axis=1)
    right = {step: round(counts[n, n] / sums[n], 3) for n, step in enumerate(STEPS) if sums[n]}
    return {"rows": len(actual), "accuracy": round(float(counts.trace() / counts.sum()), 4), "by_step": right} | {
        "confusion": counts.tolist()
    }


def table(said: dict[str, Any]) -> str:
    """The confusion as text: a row each type, a column each prediction."""
    width = max(map(len, STEPS))
    head = " " * width + "".join(f"{step[:6]:>7}" for step in STEPS)
    lines = [
        f"{step:{width}}" + "".join(f"{n:7d}" for n in row) for step, row in zip(STEPS, said["confusion"], strict=True)
    ]
    return "\n".join([f"{said['accuracy']:.3f} of {said['rows']} rows", head, *lines])


def held_out(counts: Any, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """The prediction for each row of a model that saw no row of its fold's families."""
    out = np.zeros(len(labels), dtype=int)
    for fold in range(FOLDS):
        model = fit(counts[folds != fold], labels[folds != fold])
        out[folds == fold] = np.argmax(counts[folds == fold] @ model.weights.astype(np.float32) + model.bias, axis=1)
    return out


def labeled_rows(seed: int = SEED) -> list[dict[str, Any]]:
    """Rows whose type has to be predicted."""
    return [row for row in rows(seed) if certain_step(read(row["operation"], row["body"])) is None]


def recorded_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a gzipped file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def weights_hash(model: StepModel) -> str:
    """Which weights a report is of."""
    return hashlib.sha256(model.weights.tobytes() + model.bias.tobytes()).hexdigest()


def recorded_reports(model: StepModel, paths: Sequence[Path]) -> dict[str, Any]:
    """The scores on each file of rows, by its name, which are printed, too."""
    said = dict[str, Any]()
    for path in paths:
        name, some = path.name.partition(".")[0], recorded_rows(path)
        said[name] = report([row["step"] for row in some], predicted(model, some))
        print(f"{SOURCES.get(name, name)}:", table(said[name]), flush=True)
    return said


def score_shipped(recorded: Sequence[Path], to: Path | None) -> None:
    """Score the package's weights on rows of files, and add that to their report."""
    model = load_steps()
    said: dict[str, Any] = {"sha256": weights_hash(model)}
    if to is not None and to.exists():
        kept = json.loads(to.read_text(encoding="utf-8"))
        if kept.get("sha256") != said["sha256"]:
            raise SystemExit(f"{to} is of other weights")
        said = kept
    said |= recorded_reports(model, recorded)
    if to is not None:
        to.write_text(json.dumps(said) + "\n", encoding="utf-8")


def main() -> None:
    """Score, train and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=OUT)
    options.add_argument("--report", type=Path)
    options.add_argument("--recorded", type=Path, nargs="+", default=[])
    options.add_argument("--shipped", action="store_true", help="train nothing, score the package's weights")
    options.add_argument("--no-folds", action="store_true", help="only train and write")
    given = options.parse_args()
    if given.shipped:
        score_shipped(given.recorded, given.report)
        return
    labeled, said = labeled_rows(), dict[str, Any]()
    counts = matrix([(row["operation"], row["body"]) for row in labeled])
    actual = [row["step"] for row in labeled]
    labels = np.array([STEPS.index(step) for step in actual])
    model = fit(counts, labels)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    model.save(given.out)
    said["sha256"] = weights_hash(model)
    print(
        f"{given.out.name}: {given.out.stat().st_size} bytes, {len(labeled)} rows, weights {said['sha256']}", flush=True
    )
    said |= recorded_reports(model, given.recorded)
    if not given.no_folds:
        found = [STEPS[place] for place in held_out(counts, labels, np.array([row["fold"] for row in labeled]))]
        said["held_out"] = report(actual, found)
        print("families held out:", table(said["held_out"]))
        for name in dict.fromkeys(row["family"] for row in labeled):
            own = [(row["step"], other) for row, other in zip(labeled, found, strict=True) if row["family"] == name]
            wrong = [other for one, other in own if one != other]
            if len(wrong) > 0.3 * len(own):
                print(f"  {name}: {len(wrong)} of {len(own)} wrong, as {max(set(wrong), key=wrong.count)}")
    if given.report is not None:
        given.report.write_text(json.dumps(said) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
