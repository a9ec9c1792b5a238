"""From scores of labels to probabilities that can be trusted: a temperature, and a bias for each label.

Scores s are log-probabilities in nats. The calibrated probabilities are softmax(s / T + b) (Guo et al. 2017,
temperature scaling; with b, vector scaling with one common slope). Both are fitted by the likelihood of held-out
answers, which is concave in (1/T, b), and kept as JSON beside the model that they were fitted for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError, DataError, InputError
from daguerre.files import write_json
from daguerre.sampling.logits import log_softmax

FILE = "decisions.json"
MAX_TEMPERATURE = 100.0
RIDGE = 1.0
"""Precision of the normal prior on a bias: a label that was never seen keeps some probability."""
ROUNDS, TOLERANCE = 100, 1e-9


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What turns scores into probabilities; the default changes nothing.

    temperature  above 0; the scores are divided by it
    bias         nats added to a label's score; of a label that is not named, 0
    """

    temperature: float = 1.0
    bias: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (0 < self.temperature < math.inf and all(map(math.isfinite, self.bias.values()))):
            raise InputError(f"a calibration needs a temperature above 0 and finite biases, not {self}")

    def log_probabilities(self, scores: Sequence[float] | np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """Log-probabilities, float64, of labels along the last axis of `scores`."""
        shifted = np.asarray(scores, dtype=np.float64) / self.temperature
        return log_softmax(shifted + np.array([self.bias.get(label, 0.0) for label in labels]))

    def check(self, labels: Sequence[str]) -> None:
        """InputError when a bias is of a label that the question does not have."""
        strange = sorted(self.bias.keys() - set(labels))
        if strange:
            raise InputError(f"the calibration has a bias for {strange[0]!r}, which is no label of the question: refit")


def fit(scores_NL: np.ndarray, truth_N: np.ndarray, labels: Sequence[str] | None = None) -> Calibration:
    """The calibration under which N answers are most likely; a temperature is at most MAX_TEMPERATURE.

    scores_NL  of L labels for each question
    truth_N    the index of the right one
    labels     their names, the same for all questions, to fit a bias for each; None: the temperature alone

    InputError for no questions.
    """
    num, num_labels = scores_NL.shape
    if not num:
        raise InputError("a calibration is fitted to answered questions, and there are none: give more documents")
    scores = scores_NL - scores_NL.max(axis=1, keepdims=True)
    features = scores[:, :, None]  # (N, L, 1 or 1 + L): the score, and which label it is
    if labels is not None:
        features = np.concatenate(
            [features, np.broadcast_to(np.eye(num_labels), (num, num_labels, num_labels))], axis=2
        )
    penalty = np.full(features.shape[2], RIDGE / num)
    penalty[0] = 0.0
    weights = np.zeros(features.shape[2])
    weights[0] = 1.0
    weights = _newton(features, truth_N, penalty, weights)
    bias = {} if labels is None else dict(zip(labels, weights[1:].tolist(), strict=True))
    return Calibration(temperature=float(1 / weights[0]), bias=bias)


def _newton(features: np.ndarray, truth: np.ndarray, penalty: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Minimize the mean of -log softmax(features weights)[truth] plus penalty weights^2 / 2, weights[0] positive."""
    right = features[np.arange(len(truth)), truth].mean(axis=0)
    loss = _loss(features, truth, penalty, weights)
    for _ in range(ROUNDS):
        probs = np.exp(log_softmax(features @ weights))
        mean = np.einsum("nl,nlf->nf", probs, features)
        gradient = mean.mean(axis=0) - right + penalty * weights
        spread = np.einsum("nl,nlf,nlg->fg", probs, features, features) / len(truth) - mean.T @ mean / len(truth)
        step = np.linalg.solve(spread + np.diag(penalty) + 1e-12 * np.eye(len(weights)), gradient)
        size = 1.0
        while True:
            tried = weights - size * step
            tried[0] = max(tried[0], 1 / MAX_TEMPERATURE)
            tried_loss = _loss(features, truth, penalty, tried)
            if tried_loss <= loss or size < TOLERANCE:
                break
            size /= 2
        moved = float(np.abs(tried - weights).max())
        weights, loss = tried, tried_loss
        if moved < TOLERANCE:
            break
    return weights


def _loss(features: np.ndarray, truth: np.ndarray, penalty: np.ndarray, weights: np.ndarray) -> float:
    chosen = log_softmax(features @ weights)[np.arange(len(truth)), truth]
    return float(-chosen.mean() + 0.5 * (penalty * weights**2).sum())


def save_calibrations(folder: Path, weights_sha256: str, calibrations: Mapping[str, Calibration]) -> Path:
    """Write FILE into a model folder, whole or not at all. DataError where that cannot be written."""
    named = {name: {"temperature": c.temperature, "bias": dict(c.bias)} for name, c in calibrations.items()}
    body = {"weights_sha256": weights_sha256, "calibrations": named}
    try:
        write_json(folder / FILE, body)
    except OSError as error:
        raise DataError(f"cannot write {folder / FILE}: {error}; calibrate a copy of the model") from error
    return folder / FILE


def load_calibrations(folder: Path, weights_sha256: str) -> dict[str, Calibration]:
    """The calibrations of a model folder, none where it has no FILE. CheckpointError for those of other weights."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        owner, named = body["weights_sha256"], body["calibrations"]
        calibrations = {name: Calibration(**values) for name, values in named.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, InputError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): remove it, or run `daguerre calibrate`") from None
    if owner != weights_sha256:
        raise CheckpointError(f"{path} was fitted to other weights: remove it, then run `daguerre calibrate` to refit")
    return calibrations
